#!/usr/bin/env python3
"""Seconds and peak memory of scoring and gap analysis on closed answers
(goal: 1,000,000 rows in 30 s and 750 MiB on the machine where d55d661 took 43 s, which is 0.70 of
its processor time), and apart from them of the text metrics on 20,000 captions.

examples:
  benchmarks/bench_scoring.py
  benchmarks/bench_scoring.py --rows 100000
  benchmarks/bench_scoring.py --against d55d661
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
OPTIONS = (
    "\n(A) turn left\n(B) turn right\n(C) go straight\n(D) stop\nAnswer with the option's letter."
)
KINDS = (
    ("What does vehicle {n} do at second {s}?" + OPTIONS, "ABCD"),
    ("Does vehicle {n} brake at second {s}? Answer yes or no.", ("yes", "no")),
    ("Which way does vehicle {n} go at second {s}?", ("left", "right", "straight")),
)
FORMS = (
    "{}",
    "{}.",
    "The answer is {}.",
    "<think>It may be this or that.</think>\n\n{}",
    "<answer>{}</answer>",
    "At frame {n} this is plain to see. The answer is {}.",  # like no other response
)
MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss // 1024)
sys.exit(code)
"""


def write_data(folder: Path, rows: int) -> None:
    """results.json in our form and the annotations it answers:
    ten questions a clip, one answer in five wrong."""
    rng = random.Random(0)
    with (
        open(folder / "results.json", "w") as out,
        open(folder / "annotations.json", "w") as annotations,
    ):
        for number in range(rows):
            template, choices = KINDS[number % 3]
            question = template.format(n=number % 997, s=number % 61)
            gt = rng.choice(choices)
            said = gt if rng.random() < 0.8 else rng.choice([*choices, "I cannot tell."])
            name, media = (
                f"clip-{number // 10:06d}-{number % 10}",
                f"videos/clip-{number // 10:06d}.mp4",
            )
            row = {"id": name, "video_id": name, "media": media, "question": question, "gt": gt,
                   "response": rng.choice(FORMS).format(said, n=number), "answer": said,
                   "type": "mcq",
                   "correct": said == gt, "error": None, "vision_tokens": 2880}  # fmt: skip
            turns = [
                {"from": "human", "value": f"<video>\n{question}"},
                {"from": "gpt", "value": gt},
            ]
            record = {"id": name, "video": media, "conversations": turns}
            start = ",\n" if number else "[\n"
            out.write(start + json.dumps(row))
            annotations.write(start + json.dumps(record))
        out.write("\n]\n")
        annotations.write("\n]\n")


def write_texts(folder: Path, rows: int) -> None:
    """results.json of captions of about 30 words, of which a model got most right."""
    rng = random.Random(0)
    words = [f"word{n}" for n in range(2000)]
    made = []
    for number in range(rows):
        gt = rng.choices(words, k=rng.randint(20, 40))
        said = [word if rng.random() < 0.7 else rng.choice(words) for word in gt]
        made.append(
            {
                "id": f"r{number}",
                "question": "Describe it.",
                "gt": " ".join(gt),
                "response": " ".join(said),
            }
        )
    (folder / "results.json").write_text(json.dumps(made))


def measure(name: str, *args, scripts: Path = SCRIPTS) -> tuple[float, float, int]:
    """(seconds, seconds of processor time, peak MiB) of one script."""
    started = time.perf_counter()
    command = [sys.executable, "-c", MEASURED, sys.executable, str(scripts / name), *map(str, args)]
    busy, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return time.perf_counter() - started, float(busy), int(peak)


def both(folder: Path, scripts: Path = SCRIPTS) -> list[tuple[float, float, int]]:
    """Return what `measure` says of scoring and of the gap analysis of the same results."""
    gaps = ["--gaps-parquet", folder / "gaps.parquet",
            "--kpi-ann-path", folder / "annotations.json", "--kpi-media-path", folder,
            "--html", folder / "report.html"]  # fmt: skip
    return [
        measure("score_predictions.py", folder, scripts=scripts),
        measure("analyze_gaps.py", "--results-dir", folder, *gaps, scripts=scripts),
    ]


def compare(rows: int, revision: str) -> None:
    """Processor time of both here and at another revision, in turn: the better of two turns."""
    with tempfile.TemporaryDirectory() as name:
        folder, other = Path(name) / "data", Path(name) / "other"
        folder.mkdir()
        write_data(folder, rows)
        git = ["git", "-C", str(SCRIPTS.parent)]
        subprocess.run(
            [*git, "worktree", "add", "--detach", "--quiet", str(other), revision], check=True
        )
        try:
            turns = [(both(folder, other / "scripts"), both(folder)) for _ in range(2)]
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)
    for place, what in enumerate(("scored", "analysed")):
        before, now = (
            min((turn[which][place] for turn in turns), key=lambda one: one[1]) for which in (0, 1)
        )
        print(
            f"{rows:,} rows {what}: {revision} {before[1]:.1f} s of processor and {before[2]} MiB, "
            f"now {now[1]:.1f} s and {now[2]} MiB, ratio {now[1] / before[1]:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="rows of results.json (default: 1,000,000)"
    )
    parser.add_argument(
        "--against",
        metavar="REVISION",
        help="compare with another commit, and stop",
    )
    args = parser.parse_args()
    rows = args.rows
    if args.against:
        compare(rows, args.against)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, rows)
        size = (folder / "results.json").stat().st_size / 1e6
        print(f"{rows:,} rows, {size:.0f} MB")
        totals = [0.0, 0.0]
        names = ("score_predictions.py", "analyze_gaps.py")
        for script, (seconds, busy, peak) in zip(names, both(folder), strict=True):
            totals = [totals[0] + seconds, totals[1] + busy]
            print(f"{script:<22} {seconds:6.1f} s  {busy:6.1f} s of processor  {peak:6,} MiB")
        print(f"{'together':<22} {totals[0]:6.1f} s  {totals[1]:6.1f} s of processor")
        write_texts(folder, 20_000)
        seconds, busy, peak = measure("score_predictions.py", folder)
        print(
            f"{'20,000 captions':<22} {seconds:6.1f} s  {busy:6.1f} s of processor  {peak:6,} MiB"
        )


if __name__ == "__main__":
    main()
