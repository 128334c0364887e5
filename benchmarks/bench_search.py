"""How fast the samplers find good values among 60 real trials, and what a suggestion costs.

python benchmarks/bench_search.py
"""

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/fixtures")]

if __name__ == "__main__":
    import trial_table

    reached = sorted(trial_table.REACHED.values())
    print(f"{len(reached)} trials: best {reached[-1]:.3f}, median {reached[len(reached) // 2]:.3f}")
    for budget in (6, 12, 18, 24):
        found = trial_table.compare(budget)
        words = ", ".join(
            f"{name} median {middle:.3f} mean {mean:.3f}" for name, (middle, mean) in found.items()
        )
        print(f"best of {budget} suggestions over 20 seeds: {words}", flush=True)
    started = time.perf_counter()
    trial_table.replay("tpe", 0, 24)
    print(f"a suggestion takes {(time.perf_counter() - started) / 24 * 1000:.0f} ms")
