"""What is printed of metrics.json, for people: one run by its types and parts, several as a table,
and comparisons with an earlier one."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.evaluation import comparison, metrics

PARTS = ("tag", "group")  # of rows, beside their types
PARTS_SHOWN = 20
COLUMNS = "{:>8} {:>9} {:>15} {:>10} {:>8} {:>15} {:>7}"
TITLES = ("rows", "accuracy", "95 % interval", "commonest", "balanced", "unparseable", "failed")


def one_run(run: dict) -> list[str]:
    """Return one run, for people: a line per type and tag, and what else was measured."""
    named = [*run["per_type"].items(), ("all", run)]
    for kind in PARTS:
        for name, summary in list(run[f"per_{kind}"].items())[:PARTS_SHOWN]:
            named.append((f"{kind} {name}", summary))
    lines = [f"{run['results']}: {len(run['per_type'])} question type(s)", *table(named)]
    for kind in PARTS:
        more = len(run[f"per_{kind}"]) - PARTS_SHOWN
        if more > 0:
            lines.append(f"... and {more} more {kind}s in metrics.json")
    if run["unread_rate"]:
        parts = [
            f"{form} {part['unread']} of {part['rows']}" for form, part in run["per_form"].items()
        ]
        lines.append(f"unread by the form asked for: {', '.join(parts)}")
    if "judge" in run:
        lines.append(judge_line(run))
    for name, value in run.get("custom", {}).items():
        lines.append(f"{name}: {value:g}")
    for kind, overlap in run["overlap"].items():
        shares = [f"{share:.1%} above {limit}" for limit, share in overlap["share_above"].items()]
        lines.append(f"{kind}: mean IoU {overlap['mean_iou']:.3f}, {', '.join(shares)}")
    for kind, means in run["parts"].items():
        told = [f"{name} {value:.3f}" for name, value in means.items() if isinstance(value, float)]
        lines.append(f"{kind}: {', '.join(told)}; {means['measured']} of {means['rows']} read")
    if run["text"]:
        text = run["text"]
        bertscore = ""
        if "bertscore_f1" in text:
            bertscore = f", BERTScore {text['bertscore_f1']:.3f}"
        lines.append(
            f"free text: BLEU {text['bleu']:.1f}, ROUGE-L {text['rouge_l']:.3f}{bertscore}; "
            f"{run['soft_accuracy']:.1%} of all rows right "
            f"when texts that overlap by {metrics.SOFT_F1:.0%} count"
        )
    if "likelihood" in run:
        lines.append(likelihood_line(run["likelihood"]))
    return lines + floors([run]) + ([comparison_line(run)] if "comparison" in run else [])


def several_runs(runs: list[dict]) -> list[str]:
    """Return a line per run, named by the folder or file of its results."""
    if not runs:
        return []
    named = list(zip(names_of(runs), runs, strict=True))
    lines = table(named)
    for name, run in named:
        if "judge" in run:
            lines.append(f"{name} {judge_line(run)}")
    lines += floors(runs)
    for name, run in named:
        if "comparison" in run:
            lines.append(f"{name} {comparison_line(run)}")
    return lines


def names_of(runs: list[dict]) -> list[str]:
    """Return what tells runs apart: short names, or else their paths."""
    paths = [Path(run["results"]) for run in runs]
    names = [short_name(path) for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def short_name(path: Path) -> str:
    return path.parent.name if path.name.startswith("results.json") else path.name


def table(named: list[tuple[str, dict]]) -> list[str]:
    width = max(10, *(len(name) for name, _ in named))
    lines = [f"{'':<{width}} {COLUMNS.format(*TITLES)}"]
    for name, summary in named:
        balanced = summary.get("balanced_accuracy")
        columns = COLUMNS.format(
            summary["rows"],
            f"{summary['accuracy']:.1%}",
            "{:.1%} - {:.1%}".format(*summary["accuracy_interval"]),
            f"{summary['majority_accuracy']:.1%}",
            "-" if balanced is None else f"{balanced:.1%}",
            f"{summary['unparseable']} ({summary['unparseable_rate']:.1%})",
            summary["failed"],
        )
        lines.append(f"{name:<{width}} {columns}")
    return lines


def judge_line(run: dict) -> str:
    judge = run["judge"]
    return (
        f"accuracy {run['accuracy']:.1%}, of which {judge['right']} rows by judge "
        f"({judge['model']} read {judge['right'] + judge['wrong']} of {judge['asked']}); "
        f"by the rules alone {judge['accuracy_by_rules']:.1%}"
    )


def likelihood_line(weighed: dict) -> str:
    line = (
        f"by likelihood: {weighed['accuracy']:.1%} of {weighed['rows']} right, calibration error "
        f"(ECE) {weighed['ece']:.3f}; {weighed['mass']:.1%} of the probability is on these answers"
    )
    if weighed["yes_no"]:
        line += f"; yes/no: ROC-AUC {weighed['yes_no']['roc_auc']:.3f}"
    if weighed["agreement"] is not None:
        line += f"; the text agrees in {weighed['agreement']:.1%}"
    if "threshold" in weighed:
        told = weighed["threshold"]
        line += f"; yes from {told['value']:g} on in {told['rows']} rows"
        line += f" (chosen on {told['chosen_on']})" if told["chosen_on"] else ""
    return line


def floors(runs: list[dict]) -> list[str]:
    """Return what to say before all comparisons, each once: they share the earlier run."""
    told = [comparison.no_better_than_commonest(run.get("comparison", {})) for run in runs]
    return list(dict.fromkeys(filter(None, told)))


def comparison_line(run: dict) -> str:
    pair = run["comparison"]
    line = (
        f"against {pair['before']}, {pair['paired']} question(s) that both answered: "
        f"{pair['fixed']} fixed, {pair['broken']} broken, "
        f"{pair['unchanged_right']} right and {pair['unchanged_wrong']} wrong in both, "
        f"McNemar p = {pair['p_value']:.3g}"
    )
    if pair["unread_before"] or pair["unread_after"]:
        line += f"; unread {pair['unread_before']} -> {pair['unread_after']}"
    if not pair.get("settings_known", True):
        line += "; whether frames, pixels and system prompt were the same is not recorded"
    # What `floors` says before all of them is not said again.
    told = comparison.NO_FLOOR if comparison.no_better_than_commonest(pair) else ""
    if pair["paired"]:
        line += f"\n{change('all', pair, told)}"
    if len(pair["per_type"]) > 1:
        for name, part in pair["per_type"].items():
            line += f"\n{change(name, part, told)}"
    # A tag or group is told only where its own change is more than chance among all of them.
    for kind in PARTS:
        for name, part in pair[f"per_{kind}"].items():
            if part["p_adjusted"] < comparison.CHANCE:
                line += f"\n{change(f'{kind} {name}', part)}"
    return line


def change(name: str, part: dict, told: str = "") -> str:
    """Return both accuracies with their intervals, and the verdict without what was `told`."""
    return (
        f"  {name}: {part['before_accuracy']:.1%} ({{:.1%}} - {{:.1%}})".format(
            *part["before_interval"]
        )
        + f" -> {part['accuracy']:.1%} "
        + "({:.1%} - {:.1%})".format(*part["accuracy_interval"])
        + f", over {part['clips']} {'clip' if part.get('clips_named', True) else 'question'}(s) "
        + "{:+.1%} to {:+.1%}".format(*part["difference_interval"])
        + f": {part['verdict'].removesuffix(told)}"
    )
