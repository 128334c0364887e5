"""Runs inside an environment that has cosmos-rl and answers, line by line,
what its own class makes of a spec.

A line on stdin is JSON: {"toml": text} -> {"error": text or null, "ignored": [dotted
keys]}, or {"fields": "sft" or "grpo"} -> {dotted key: {"types": [...], "default": value,
"choices": [...] or null}}. torch is not needed: empty shells stand in for the packages
whose `__init__` would import it.
"""

import importlib.util
import json
import logging
import sys
import types
from pathlib import Path


def real_config():
    root = Path(importlib.util.find_spec("cosmos_rl").submodule_search_locations[0])
    for name, folder in (("cosmos_rl", root), ("cosmos_rl.policy", root / "policy")):
        shell = types.ModuleType(name)
        shell.__path__ = [str(folder)]
        sys.modules[name] = shell
    from cosmos_rl.policy.config import Config

    return Config


def ignored(model, written: dict, prefix: str = "") -> list[str]:
    """Keys of `written` that pydantic dropped, since the models have no such field."""
    lost = []
    for name, value in written.items():
        key = f"{prefix}{name}"
        if name not in type(model).model_fields:
            lost.append(key)
        elif isinstance(value, dict) and hasattr(type(getattr(model, name)), "model_fields"):
            lost += ignored(getattr(model, name), value, f"{key}.")
    return lost


def load(config, text: str) -> dict:
    import toml

    try:
        model = config.from_dict(toml.loads(text))
    except Exception as problem:  # whatever it raises is the answer
        return {"error": f"{type(problem).__name__}: {problem}", "ignored": []}
    return {"error": None, "ignored": ignored(model, toml.loads(text))}


def fields(config, policy: str) -> dict:
    """The leaves of the class's own JSON schema, for one of the two kinds of train.train_policy."""
    schema = config.model_json_schema()
    plain = config.from_dict(
        {"train": {"output_dir": "outputs", "train_policy": {"type": policy}}}
    ).model_dump()
    leaves = walk(
        schema, schema["$defs"], {"sft": "SFTDataConfig", "grpo": "GrpoConfig"}[policy], ""
    )
    return {key: leaf | {"default": leaf.get("default", get(plain, key))} for key, leaf in leaves}


def walk(node: dict, definitions: dict, wanted: str, prefix: str):
    for name, raw in node.get("properties", {}).items():
        options = raw.get("anyOf", raw.get("oneOf", [raw]))
        options = [definitions[o["$ref"].rsplit("/", 1)[-1]] if "$ref" in o else o for o in options]
        tables = [option for option in options if "properties" in option]
        if tables:
            chosen = next((table for table in tables if table["title"] == wanted), tables[0])
            yield from walk(chosen, definitions, wanted, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", leaf(raw, options)


def leaf(raw: dict, options: list[dict]) -> dict:
    listed = [value for option in options for value in option.get("enum", [])]
    found = {
        "types": sorted({kind for option in options for kind in kinds(option)}),
        "choices": raw.get("choices") or listed or None,
    }
    if "default" in raw:
        found["default"] = raw["default"]
    return found


def kinds(option: dict) -> set[str]:
    if "type" in option:
        return {option["type"]}
    return {type(value).__name__ for value in option.get("enum", [option.get("const")])}


def get(table: dict, key: str):
    """A default that a factory makes is in no schema, but in an instance."""
    for part in key.split("."):
        table = table[part] if isinstance(table, dict) and part in table else None
    return table


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # the package logs to stdout
    config = real_config()
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = load(config, asked["toml"]) if "toml" in asked else fields(config, asked["fields"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
