#!/usr/bin/env python3
"""Renew the generated tables of the pages (`make docs`): what stands between
`<!-- make docs: NAME -->` and `<!-- end -->` in SKILL.md, README.md and references/*.md comes from
skill_info.yaml.

examples:
  tools/make_docs.py          write them
  tools/make_docs.py --check  exit 1 when a page is not what skill_info.yaml gives
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from cosmos_reason.base import bundle, files
from cosmos_reason.spec import document

PAGES = ["SKILL.md", "README.md", "references/*.md"]
BLOCK = re.compile(r"(<!-- make docs: ([a-z ]+) -->\n).*?(<!-- end -->)", re.S)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def models() -> str:
    rows = []
    for name, facts in bundle.skill_info()["models"].items():
        notes = ["published as Omni: convert it first"] if facts["omni"] else []
        notes += ["agreement and `HF_TOKEN`"] if facts["gated"] else []
        rows.append(
            [
                f"`{name}`",
                f"{facts['min_gpu_gib']} GiB",
                "; ".join(notes),
            ]
        )
    return table(["model", "one GPU to evaluate", "needs"], rows)


def engines() -> str:
    """What is launched, by engine and action, and whether it has been executed."""
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
    """The platforms that an engine's action is launched on."""
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


def not_yet() -> str:
    return "".join(f"- {line}\n" for line in bundle.skill_info()["not_yet"])


def words() -> str:
    """What people say -> the key, once per key, for the actions that have it; without
    the popular keys, which have a table of their own (make_templates.py), and without
    words that end their key anyway."""
    said: dict[str, dict] = {}
    for action, names in bundle.skill_info()["shorthand"].items():
        for word, key in names.items():
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
    facts = bundle.skill_info()["former_keys"]
    return table(
        ["older guides say", "now"],
        [[f"`{name}`", f"`{row['key']}`"] for name, row in facts.items()],
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
        f"- GPUs: {', '.join(gpus['supported'])} ({blocked}); {sizes} per node.\n"
        f"- Full fine-tuning of the 8B models: {full}.\n"
        f"- Full fine-tuning of models up to 3B: GPUs of {memory['small_model_gpu_gib']} GiB.\n"
    )


def searched() -> str:
    schema = bundle.schema("train")
    varied, left = (
        ", ".join(f"`{key}`" for key in schema[name])
        for name in ("automl_default_parameters", "automl_disabled_parameters")
    )
    return f"- Unless something is named: {varied}.\n- Left as they are unless named: {left}.\n"


TABLES = {
    "models": models,
    "engines": engines,
    "not yet": not_yet,
    "words": words,
    "former keys": former_keys,
    "hosts": hosts,
    "searched": searched,
}


def renewed(text: str) -> str:
    """The page with its generated tables made anew.
    Raises KeyError for a table that there is none of."""
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
