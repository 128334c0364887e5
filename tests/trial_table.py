"""Studies replayed on tests/data/trials.json: 60 real short trainings (made by benchmarks/make_trial_table.py).

Every suggestion is a point of the table, so what it reached is known at once and was measured, not modelled.
"""

import json
from pathlib import Path
from statistics import mean, median

from cosmos_reason import spec
from cosmos_reason.search import space, study

TABLE = json.loads((Path(__file__).parent / "data" / "trials.json").read_text())
REACHED = {tuple(row["values"].values()): row["accuracy"] or 0.0 for row in TABLE["trials"]}
DEFAULT = (1e-4, 8, 0.05)


def make_study(sampler, seed):
    base = spec.template("train")
    for key, value in zip(TABLE["grid"], DEFAULT, strict=True):
        spec.set_value(base, key, value)
    spec.set_value(base, "train.train_policy.mini_batch", 8)
    spec.set_value(base, "policy.model_name_or_path", "nvidia/Cosmos-Reason2-2B")
    spec.set_value(base, "custom.train_dataset.annotation_path", "train.json")
    made, found = space.build(base, "", [f"{key}={values}" for key, values in TABLE["grid"].items()], None)
    assert not found
    plan = {"spec": base, "dimensions": [vars(d) for d in made], "objective": "accuracy", "sampler": sampler}
    return study.Study(Path("."), plan | {"seed": seed, "engine": "transformers", "facts": None})


def replay(sampler, seed, budget):
    """Accuracies of `budget` suggestions in order, after the untouched model and the default."""
    made, trials = make_study(sampler, seed), []
    while len(trials) < budget + 2:
        trial, table = study.propose(made, trials)
        assert table, "the table has points that have not been tried"
        reached = REACHED[tuple(trial["values"][key] for key in TABLE["grid"])] if trial["values"] else 0.0
        trials.append(trial | {"state": study.COMPLETE, "objective": reached})
    return [trial["objective"] for trial in trials[2:]]


def compare(budget, seeds=20):
    """{sampler: (median and mean over seeds of the best accuracy)}."""
    best = {name: [max(replay(name, seed, budget)) for seed in range(seeds)] for name in ("tpe", "random")}
    return {name: (median(values), mean(values)) for name, values in best.items()}
