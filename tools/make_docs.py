#!/usr/bin/env python3
"""Renew the generated tables of the pages (`make docs`): what stands between
`<!-- make docs: NAME -->` and `<!-- end -->` in SKILL.md, README.md and references/*.md comes from
skill_info.yaml, the schemas and the options of a launch.

examples:
  tools/make_docs.py          write them
  tools/make_docs.py --check  exit 1 when a page is not what skill_info.yaml gives
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from cosmos_reason.base import bundle, files
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.jobs import options
from cosmos_reason.spec import document, names

PAGES = ["SKILL.md", "README.md", "references/*.md", "benchmarks/RESULTS.md"]
BLOCK = re.compile(r"(<!-- make docs: ([a-z ]+) -->\n).*?(<!-- end -->)", re.S)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def models() -> str:
    rows = []
    for name, facts in bundle.skill_info()["models"].items():
        notes = ["published as Omni: convert it first"] if facts["omni"] else []
        notes += ["agreement and `HF_TOKEN`"] if facts["gated"] else []
        notes += ["never run here"] if "unproven" in facts else []
        rows.append(
            [
                f"`{name}`",
                f"{facts['min_gpu_gib']} GiB",
                "; ".join(notes),
            ]
        )
    return table(["model", "one GPU to evaluate", "needs"], rows)


def engines() -> str:
    """Return what is launched, by engine and action, and whether it has been executed."""
    rows = []
    for name, facts in bundle.skill_info()["engines"].items():
        rows.append(
            [f"`{name}`", facts["title"], *(launched(facts, action) for action in bundle.ACTIONS)]
        )
    legend = (
        "\nA platform: launched there. *rendered*: only written out, never executed; say so "
        "when you use it. *bare*: executed without an image, rendered with one.\n"
    )
    if any("*spec only*" in cell for row in rows for cell in row):
        legend += "*spec only*: nothing launches the spec.\n"
    for platform in rendered_like_docker():
        legend += f"On {platform} as on docker, all *rendered*.\n"
    return table(["engine", "what it is", *bundle.ACTIONS], rows) + legend


def rendered_like_docker() -> list[str]:
    """Platforms that launch what docker launches and have executed nothing of it: a sentence is
    shorter than a word in every cell."""
    tables = [facts["launched"] for facts in bundle.skill_info()["engines"].values()]
    found = []
    for platform in dict.fromkeys(name for table in tables for name in table):
        rendered = [dict.fromkeys(table.get("docker", {}), "rendered") for table in tables]
        if [table.get(platform, {}) for table in tables] == rendered and platform != "docker":
            found.append(platform)
    return found


def launched(facts: dict, action: str) -> str:
    """Return the platforms that an engine's action is launched on."""
    if action not in facts["actions"]:
        return "no"
    groups = {"executed": [], "bare": [], "rendered": []}
    for platform, actions in facts["launched"].items():
        if action in actions and platform not in rendered_like_docker():
            groups[actions[action]].append(platform)
    cells = groups["executed"]
    for how in ("bare", "rendered"):
        if groups[how]:
            cells.append(f"*{how}*: {', '.join(groups[how])}")
    return ", ".join(cells) or "*spec only*"


def limits() -> str:
    lines = "".join(f"- {line}\n" for line in bundle.skill_info()["not_yet"])
    images = [one["images"] for one in bundle.skill_info()["clusters"].values() if "images" in one]
    names = ", ".join([*(f"`{name}`" for name in only_rendered()), *images])
    return f"{names} were rendered here, never run: say so. Not yet:\n\n{lines}"


def only_rendered() -> list[str]:
    """Engines and platforms of which nothing was executed."""
    tables = {name: facts["launched"] for name, facts in bundle.skill_info()["engines"].items()}
    platforms = dict.fromkeys(platform for table in tables.values() for platform in table)
    said = {name: words_of(table.values()) for name, table in tables.items()}
    for platform in platforms:
        said[platform] = words_of(table.get(platform, {}) for table in tables.values())
    return [name for name, words in said.items() if words == {"rendered"}]


def words_of(tables: Iterable[dict[str, str]]) -> set[str]:
    return {how for table in tables for how in table.values()}


def run_on(platform: str) -> str:
    """Return what was executed on a cluster, what with something in its place, and what never
    was."""
    facts = bundle.skill_info()["clusters"][platform]
    said = []
    for how, environment in (("executed", ""), ("bare", " in an environment of the nodes")):
        done = listed(actions_by_engine(platform, how), several_nodes(platform, how), facts)
        if done:
            said.append(f"- Executed on {facts['where']}{environment}: {done}.")
    rehearsed = facts["rehearsed"]
    done = listed(rehearsed.get("engines", {}), rehearsed.get("several_nodes", []), rehearsed)
    said.append(f"- Rehearsed with {rehearsed['with']}, which is *rendered* all the same: {done}.")
    said.append(f"- *Rendered*, never executed: {never_on(platform)}. Say so when you use it.")
    return "\n".join(said) + "\n"


def never_on(platform: str) -> str:
    rendered = actions_by_engine(platform, "rendered")
    if platform in only_rendered():
        return "all of it"
    several = [name for name in several_nodes(platform, "rendered") if name not in rendered]
    images = bundle.skill_info()["clusters"][platform].get("images")
    return listed(rendered, several, {"besides": images and [f"anything in an image ({images})"]})


def actions_by_engine(platform: str, how: str) -> dict[str, list[str]]:
    """Engine -> its actions of which skill_info says so of the platform."""
    found: dict[str, list[str]] = {}
    for name, facts in bundle.skill_info()["engines"].items():
        for action, said in facts["launched"].get(platform, {}).items():
            if said == how:
                found.setdefault(name, []).append(action)
    return found


def several_nodes(platform: str, how: str) -> list[str]:
    """Engines of which skill_info says so of the platform's several nodes."""
    engines = bundle.skill_info()["engines"]
    return [
        name
        for name, facts in engines.items()
        if facts.get("several_nodes", {}).get(platform) == how
    ]


def listed(engines: dict[str, list[str]], several: list[str], facts: dict) -> str:
    """Return "" for nothing but what ran besides."""
    said = [f"`{name}` {', '.join(actions)}" for name, actions in engines.items()]
    said += [f"a training on several nodes with `{name}`" for name in several]
    if not said:
        return ""
    if facts.get("besides"):
        said.append(", ".join(facts["besides"]))
    return "; ".join(said)


def words() -> str:
    """Return what people say -> the key, once per key, for the actions that have it; without the
    popular keys, which have a table of their own (make_templates.py), and without words that end
    their key anyway."""
    said: dict[str, dict] = {}
    for action, short in bundle.skill_info()["shorthand"].items():
        for word, key in short.items():
            if "popular" in document.keys(action)[key] or word == key.rpartition(".")[2]:
                continue
            row = said.setdefault(key, {"words": {}, "actions": {}})
            row["words"][word.replace("_", " ")] = row["actions"][action] = None
    rows = [
        [", ".join(row["words"]), f"`{key}`", ", ".join(row["actions"])]
        for key, row in said.items()
    ]
    return table(["words", "key", "in"], rows)


def former_keys() -> str:
    facts = names.other_trainers()
    return table(
        ["older guides say", "now"],
        [[f"`{name}`", f"`{row['key']}`"] for name, row in facts.items() if "guides" in row["of"]],
    )


def hosts() -> str:
    info = bundle.skill_info()
    least, gpus, memory = info["host_minimums"], info["gpu_architectures"], info["memory_minimums"]
    blocked = "; ".join(f"not {name}: {why}" for name, why in gpus["blocked"].items())
    sizes = ", ".join(map(str, info["gpu_counts_per_node"]))
    host = (
        f"driver {least['driver']}, CUDA {least['cuda']}, "
        f"container toolkit {least['container_toolkit']} or newer"
    )
    full = f"{memory['full_sft_total_gb']} GB over all GPUs; recommended: {memory['recommended']}"
    return (
        f"- Docker host: {host}.\n"
        f"- GPUs: {', '.join(gpus['supported'])} ({blocked}; L40S: a warning); "
        f"{sizes} per node.\n"
        f"- Full fine-tuning of the 8B models: {full}.\n"
        f"- Full fine-tuning of models up to 3B: GPUs of {memory['small_model_gpu_gib']} GiB.\n"
    )


def fitting() -> str:
    """Return what of each size fits where, by the memory model, of records of 4,096 tokens."""
    gpus = {name: bundle.skill_info()["gpu_types"][name] for name in ("H100 80GB", "H200")}
    sizes: dict[gpu_memory.Geometry, list[str]] = {}
    for name in bundle.skill_info()["models"]:
        sizes.setdefault(gpu_memory.geometry(name), []).append(name.removeprefix("nvidia/"))
    rows = []
    for geometry, models_of_size in sizes.items():
        answering = gpu_memory.Plan(geometry, 4096, 3072, 1, train=False, master=2, new_tokens=512)
        halved = geometry.layers * geometry.layer_parameters / gpu_memory.GIB
        needed = gpu_memory.total(answering)
        training = gpu_memory.Plan(geometry, 4096, 3072, 4096)
        adapter = replace(training, lora_rank=16, lora_targets=("q_proj", "v_proj"))
        alone = gpu_memory.total(replace(adapter, sharded_engine=False, loss_tokens=128))
        row = [", ".join(models_of_size), f"{needed:.0f} / {needed - halved:.0f}", f"{alone:.0f}"]
        plans = (adapter, training, replace(training, master=2))
        if geometry.family.model_type in bundle.architectures("cosmos-rl", "train"):
            row += [least_gpus(plan, gpus) for plan in plans]
        else:
            row += ["no engine"] * len(plans)
        rows.append(row)
    head = ["model", "answers bf16 / FP8, GiB", "LoRA embedded, GiB"]
    return table([*head, "LoRA cosmos-rl", "full, float32", "full, bfloat16"], rows)


def least_gpus(plan: gpu_memory.Plan, gpus: dict[str, float]) -> str:
    """Return the fewest GPUs of each type that hold a training that is sharded over them."""
    found = []
    for gib in gpus.values():
        counts = (1, 2, 4, 8, 16, 32)
        fits = [
            count
            for count in counts
            if gpu_memory.verdict(gpu_memory.total(replace(plan, shards=count)), gib)
            == gpu_memory.FITS
        ]
        found.append(str(fits[0]) if fits else "no")
    return " / ".join(found)


def searched() -> str:
    schema = bundle.schema("train")
    varied, left = (
        ", ".join(f"`{key}`" for key in schema[name])
        for name in ("automl_default_parameters", "automl_disabled_parameters")
    )
    return f"- Unless something is named: {varied}.\n- Left as they are unless named: {left}.\n"


def flags_of(platform: str) -> str:
    """Return the flags of a launch that this platform takes and not every other one does."""
    taken = [name for name in options.FLAGGED if options.is_taken(name, platform)]
    own = [name for name in taken if options.FLAGGED[name]["platforms"] != options.ANYWHERE]
    named = ", ".join(f"`{options.flag_of(name)}`" for name in own)
    return f"Flags of {platform}: {named}.\n"


def versions() -> str:
    """Return what the parity tests found in environments of other versions (try_versions.py)."""
    rows = []
    for noted in files.read_json(bundle.ROOT / "benchmarks" / "versions.json"):
        names = ", ".join(
            f"{name} {version}" for name, version in noted["versions"].items() if version
        )
        if "not_run" in noted:
            found = f"not run: {noted['not_run']}"
        elif "found" in noted:
            found = noted["found"]
        else:
            counts = ("passed", "failed", "skipped")
            found = ", ".join(f"{noted[count]} {count}" for count in counts)
        rows.append([names.removeprefix("what "), found, noted["date"]])
    return table(["versions", "parity tests", "on"], rows)


TABLES = {
    "models": models,
    "fitting": fitting,
    "engines": engines,
    "limits": limits,
    "run on slurm": partial(run_on, "slurm"),
    "run on kubernetes": partial(run_on, "kubernetes"),
    "flags on docker": partial(flags_of, "docker"),
    "flags on slurm": partial(flags_of, "slurm"),
    "flags on kubernetes": partial(flags_of, "kubernetes"),
    "words": words,
    "former keys": former_keys,
    "hosts": hosts,
    "searched": searched,
    "versions": versions,
}


def renewed(text: str) -> str:
    """Return the page with its generated tables made anew. Raises KeyError for a table that there
    is none of."""
    return BLOCK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)


def outputs() -> dict[Path, str]:
    """Path -> text of every page."""
    paths = [path for pattern in PAGES for path in sorted(bundle.ROOT.glob(pattern))]
    return {path: renewed(path.read_text(encoding="utf-8")) for path in paths}


def main() -> int:
    stale = {
        path: text for path, text in outputs().items() if path.read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv[1:]:
        print("".join(f"{path} is stale: make docs\n" for path in stale), end="")
        return 1 if stale else 0
    for path, text in stale.items():
        files.write_text(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
