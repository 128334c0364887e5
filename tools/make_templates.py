#!/usr/bin/env python3
"""Generate references/spec_template_<action>.yaml and schemas/manifest.json from the schemas (`make templates`).

examples:
  tools/make_templates.py          write them
  tools/make_templates.py --check  exit 1 when a file is not what the schemas give
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from cosmos_reason import bundle, spec, storage
from cosmos_reason import findings as f


def template_yaml(action: str) -> str:
    """The schema's top-level default as YAML, each key with its description as a comment."""
    head = f"# Starting spec for `{action}`: generated from schemas/{action}.schema.json by `make templates`.\n"
    return head + "".join(_lines(bundle.schema(action), spec.template(action), ""))


def _lines(schema: dict, table: dict, indent: str):
    for name, value in table.items():
        sub = schema["properties"][name]
        if isinstance(value, dict) and "properties" in sub:
            yield f"{indent}{name}:\n"
            yield from _lines(sub, value, indent + "  ")
        else:
            yield f"{indent}{name}: {_scalar(value)}  # {sub['description']}\n"


def _scalar(value) -> str:
    """JSON is YAML, but for exponents, which need a point to be read as numbers."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def manifest() -> dict:
    engines = bundle.skill_info()["engines"]
    return {
        "schema_version": 1,
        "actions": {
            action: {
                "schema": f"schemas/{action}.schema.json",
                "template": f"references/spec_template_{action}.yaml",
                "engines": [name for name, facts in engines.items() if action in facts["actions"]],
                "keys": len(spec.keys(action)),
                "automl_parameters": [key for key, leaf in spec.keys(action).items() if leaf.get("automl_enabled")],
            }
            for action in bundle.ACTIONS
        },
    }


def outputs() -> dict[Path, str]:
    """Path -> text of every generated file."""
    files = {bundle.template_path(action): template_yaml(action) for action in bundle.ACTIONS}
    return files | {bundle.SCHEMAS / "manifest.json": json.dumps(manifest(), indent=1, ensure_ascii=False) + "\n"}


def main() -> int:
    files = outputs()
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        print(
            f.as_text([f.error("TEMPLATE-DRIFT", path, "differs from the schema", "make templates") for path in stale])
        )
        return 1 if stale else 0
    for path, text in files.items():
        storage.write_text(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
