"""Cosmos-Reason1's evaluation config as one evaluate spec: a YAML that names datasets, which lie
below a data folder, and whose frame rate stands among the options of the evaluation."""

from __future__ import annotations

import copy
import os
import shlex

from cosmos_reason.base.findings import Failure, Finding, bad_input, error, info, warning
from cosmos_reason.base.fix import Fix, value_text
from cosmos_reason.data import annotations, raw_clips
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.data.record_checks import Tally
from cosmos_reason.media import archives
from cosmos_reason.media.files import resolve
from cosmos_reason.rules import command_line, mixture
from cosmos_reason.rules.draft import Draft, Part, absolute
from cosmos_reason.spec import document

DATASETS = "datasets"  # the key that tells such a config
FLAG = "--eval-root"
RAW = "raw"  # where the guide keeps raw data, below the data folder
BUILT = "train"  # the part that build_dataset writes where none is held out
SYSTEM_PROMPT = "Answer the questions."
ANSWER_TYPE = "evaluation.answer_type"
SHARES, GPUS = "model.tp_size", "num_gpus"
VARIABLE = "TP_SIZE"  # as a key, or of the environment
# What the evaluator sets by itself for an answer type, whatever the config says.
OF_ANSWER_TYPE = {
    "letter": {"temperature": 0.0, "top_k": 1, "max_tokens": 10},
    "reasoning": {"top_p": 0.95},
}


def is_config(table: dict) -> bool:
    names = table.get(DATASETS)
    if isinstance(names, list):
        return all(isinstance(name, str) for name in names)
    return isinstance(names, str)


def datasets_of(table: dict) -> list[str]:
    """Return the names in such a config, of which one may stand alone. Raises Failure without
    any."""
    names = table[DATASETS]
    if isinstance(names, str):
        names = [names]
    if not all(names) or not names:
        message = "got no dataset, expected names such as robovqa"
        raise bad_input("SPEC-VALUE", DATASETS, message)
    return names


def converted(table: dict, engine: str) -> tuple[dict, list[Finding]]:
    """Return the evaluate spec that the config means, without the datasets, and what is to be said
    of it."""
    spec = copy.deepcopy(table)
    del spec[DATASETS]
    evaluation = spec.setdefault("evaluation", {})
    spec.setdefault("model", {})
    spec["vision"] = {"fps": evaluation.pop("fps", 4)}
    spec["dataset"] = {"system_prompt": SYSTEM_PROMPT}
    evaluation.setdefault("answer_type", "reasoning")
    spec["results_dir"] = ""
    found = []
    if engine == "transformers" and "num_processes" in evaluation:
        message = f"got {value_text(evaluation.pop('num_processes'))}, left out: engine {engine} "
        message += "chooses its loader processes by itself"
        found.append(info("SPEC-KEY-LEFT-OUT", "evaluation.num_processes", message))
    # How many GPUs share the model stands in one of several places, and in none of ours.
    stated = {}
    for place in ("", "model.", "evaluation."):
        for name in (VARIABLE, VARIABLE.lower()):
            key = place + name
            value = document.get(spec, key, document.MISSING)
            if value is not document.MISSING:
                stated[key] = value
                document.delete(spec, key)

    for written, count in list(stated.items())[:1]:
        found += _share_out(spec, count, written, engine)
    if any(count != spec[GPUS] for count in stated.values()):
        listed = ", ".join(f"{key} {value_text(count)}" for key, count in stated.items())
        found.append(error("SPEC-KEY-TWICE", SHARES, f"got {listed}, expected one number"))
    return spec, found


def _share_out(spec: dict, count: object, written: str, engine: str) -> list[Finding]:
    """Let so many GPUs share the model; the embedded engine has the whole model on each, which
    answer different questions."""
    spec[GPUS] = count
    if engine != "transformers":
        document.set_value(spec, SHARES, count)
        if written == SHARES:
            return []
        return [info("SPEC-TRANSLATED", SHARES, f"{written} is {SHARES} = {value_text(count)}")]
    if count == 1:
        return []
    message = (
        f"{written} is {GPUS} = {value_text(count)}: engine {engine} has the whole model on each "
        "GPU and shares out the questions"
    )
    return [info("SPEC-TRANSLATED", GPUS, message)]


def take_environment(draft: Draft) -> None:
    """Take TP_SIZE of the environment where neither the config nor the command line says how many
    GPUs share the model; what it says otherwise is warned of."""
    written = os.environ.get(VARIABLE)
    is_said = "--gpus-per-node" in draft.flags or {SHARES, GPUS} & draft.named.keys()
    if written is None or is_said:
        return
    where = f"${VARIABLE}"
    stated = document.get(draft.spec, GPUS)
    if not written.isdecimal() or not int(written):
        message = (
            f"got {written!r} in the environment, which is not read: expected a number of GPUs"
        )
        draft.findings.append(warning("SPEC-TRANSLATED", where, message))
    elif stated is None:
        spec: dict = {}
        draft.findings += _share_out(spec, int(written), where, draft.engine)
        for key, value in document.items(draft.action, spec):
            draft.put(key, value, f"{VARIABLE} of the environment")
    elif stated != int(written):
        message = f"got {written} in the environment, which is not read: the config has {stated}"
        key = GPUS if draft.engine == "transformers" else SHARES
        changes = {GPUS: int(written), key: int(written)}
        draft.findings.append(warning("SPEC-TRANSLATED", where, message, Fix(changes=changes)))


def take_sampling(draft: Draft) -> None:
    """Take what the evaluator sets for the answer type, however that was chosen; what the command
    line sets stays."""
    answer_type = document.get(draft.spec, ANSWER_TYPE)
    for name, value in OF_ANSWER_TYPE.get(answer_type, {}).items():
        key = f"generation.{name}"
        if key not in draft.named:
            draft.put(key, value, f"{ANSWER_TYPE} = {answer_type}")


def take_datasets(draft: Draft, names: list[str], data: str | None, output: str) -> None:
    """Take the questions of the named datasets below the data folder: of one its own file, of
    several one file beside the spec, whose records carry the name of theirs as a tag. Raises
    Failure."""
    if not data:
        message = f"got the datasets {', '.join(names)}, expected the folder that holds them"
        fix = Fix(flags={FLAG: "DIR"})
        raise bad_input("SPEC-BENCHMARK-ROOT", DATASETS, message, fix)
    names = list(dict.fromkeys(names))
    found = {name: _root(data, name) for name in names}
    missing = [name for name, root in found.items() if root is None]
    if missing:
        folders = _folders(data, missing[0])
        others = f"; nor of {', '.join(missing[1:])}" if missing[1:] else ""
        message = (
            f"got no questions in {' or '.join(folders)}, expected "
            f"{missing[0]}_benchmark_qa_pairs.json or {BUILT}/ of build_dataset.py -o "
            f"{folders[-1]}{others}"
        )
        where = f"{DATASETS}.{missing[0]}"
        raise bad_input("SPEC-BENCHMARK-ROOT", where, message, _download(data))
    roots = list(found.values())
    for name, root in zip(names, roots, strict=True):
        draft.findings += _clips_missing(root, name, data)
    if len(names) == 1:
        command_line.take_root(draft, FLAG, roots[0])
        return
    mixed = mixture.mix([Part(root, 1.0) for root in roots], tags=names)
    path = os.path.splitext(absolute(output))[0] + ".annotations.json"
    draft.files[path] = mixed.records
    for key, value in zip(draft.params["eval_root"], (path, mixed.media_path), strict=True):
        if draft.name(key, draft.flags[FLAG]):
            draft.put(key, value, f"{FLAG} {mixed.in_words}")


def _folders(data: str, name: str) -> list[str]:
    """Return where a dataset is looked for: below `benchmark` in the data folder, as the guide
    downloads it, and in the data folder itself."""
    return [os.path.join(absolute(data), *parts, name) for parts in (("benchmark",), ())]


def _root(data: str, name: str) -> str | None:
    """Return the folder of a dataset: what build_dataset made of it, with its clips, else the
    download."""
    folders = _folders(data, name)
    for root in [*(os.path.join(folder, BUILT) for folder in folders), *folders]:
        if annotations.locate(root).is_file():
            return root
    return None


def _download(data: str) -> Fix:
    words = ["hf", "download", "nvidia/Cosmos-Reason1-Benchmark", "--repo-type", "dataset"]
    return Fix(command=shlex.join([*words, "--local-dir", data]))


def _clips_missing(root: str, name: str, data: str) -> list[Finding]:
    """Return a warning when neither the first clip of a dataset nor an archive is there: the clips
    of some are published apart, and cut from raw data. What cannot be read is told by others."""
    table = annotations.locate(root)
    try:
        samples = annotations.stream(JsonRecords(table), Tally())
        clip = next((sample.media[0] for sample in samples if sample.media), None)
    except Failure:
        return []
    if not clip or os.path.exists(resolve(root, clip.path)):
        return []
    if archives.in_root(root, clip.kind, clip.path):
        return []
    fix = _download(data)
    if raw_clips.is_cut(clip.path):
        output = next(folder for folder in _folders(data, name) if folder != root)
        raw = os.path.join(absolute(data), RAW)
        given = raw if os.path.isdir(raw) else "DIR"
        words = ["scripts/build_dataset.py", str(table), "--raw", given, "-o", output]
        fix = Fix(command=shlex.join(words))
    message = f"got no {clip.path} in {root}, expected the clips of {name} or an archive of them"
    return [warning("SPEC-BENCHMARK-CLIPS", f"{DATASETS}.{name}", message, fix)]
