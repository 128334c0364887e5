"""What a key, a group of keys, a short name, a profile or a word means: the text behind `build_spec.py --explain`."""

from __future__ import annotations

import re

from cosmos_reason import bundle, spec
from cosmos_reason import findings as f
from cosmos_reason.spec_rules import RULES

MOST_LINES = 20


def explain(word: str, action: str | None = None) -> str:
    """A few lines of text. Raises Failure (exit 2) with near names when nothing has to do with `word`."""
    actions = [action] if action else list(bundle.ACTIONS)
    word = word.strip()
    profiles = bundle.skill_info()["profiles"]
    if word == "profiles":
        return "\n".join(f"{name:24} {profile['action']:6} {profile['source']}" for name, profile in profiles.items())
    if word in profiles:
        return _profile(word, profiles[word])
    key = _exact(word, actions)
    if key:
        return _key(key, [name for name in bundle.ACTIONS if key in spec.keys(name)])
    found = _search(word.lower(), actions)
    if not found:
        names = {name for one in actions for known in spec.keys(one) for name in (known, known.rsplit(".", 1)[-1])}
        names |= {short for one in actions for short in bundle.skill_info()["shorthand"][one]} | set(profiles)
        message = f"got {word!r}, expected a key, part of one, a short name or a profile.{f.did_you_mean(word, names)}"
        raise f.bad_input("SPEC-EXPLAIN", "--explain", message)
    return _listing(found)


def _exact(word: str, actions: list[str]) -> str | None:
    """The one key that `word` names: itself, a short name ("learning rate"), a former name, or a unique last part."""
    short = word.lower().replace(" ", "_")
    for action in actions:
        for name in (word, bundle.skill_info()["shorthand"][action].get(short), _former(word)):
            if name in spec.keys(action):
                return name
    last = {key for action in actions for key in spec.keys(action) if key.rsplit(".", 1)[-1] == word}
    return last.pop() if len(last) == 1 else None


def _former(word: str) -> str | None:
    return bundle.skill_info()["former_keys"].get(word, {}).get("key")


def _search(word: str, actions: list[str]) -> dict[str, dict]:
    """Keys below the prefix `word`, else keys with it in their name, then keys with it in their description."""
    known = {key: schema for action in reversed(actions) for key, schema in spec.keys(action).items()}
    below = {key: schema for key, schema in known.items() if key.startswith(f"{word.rstrip('.')}.")}
    named = {key: schema for key, schema in known.items() if word.replace(" ", "_") in key.lower()}
    told = {key: schema for key, schema in known.items() if word in schema["description"].lower()}
    return below or named | told


def _listing(found: dict[str, dict]) -> str:
    lines = [f"{key}: {schema['description']}" for key, schema in list(found.items())[:MOST_LINES]]
    more = len(found) - MOST_LINES
    return "\n".join(lines + ([f"... and {more} more; name a longer prefix"] if more > 0 else []))


def _profile(name: str, profile: dict) -> str:
    values = [f"  {key} = {spec.text(value)}" for key, value in profile["set"].items()]
    return "\n".join([f"--profile {name} ({profile['action']}): {profile['source']}", *values])


def _key(key: str, actions: list[str]) -> str:
    schema = spec.keys(actions[0])[key]
    default = schema.get("default", spec.MISSING)
    absent = "no default" if default is spec.MISSING else "off" if default is None else spec.text(default)
    templates = [
        f"{spec.text(value)} ({action})"
        for action in actions
        if (value := spec.get(bundle.schema(action)["default"], key, spec.MISSING)) is not spec.MISSING
    ]
    lines = [f"{key} ({', '.join(actions)})", f"  {schema['description']}", f"  takes: {spec.expected(schema)}"]
    lines.append(f"  when absent: {absent}; template: {', '.join(templates) or 'leaves it out'}")
    if "popular" in schema:
        lines.append(f"  popular: {', '.join(spec.text(value) for value in schema['popular'])}")
    names = {
        short for action in actions for short, full in bundle.skill_info()["shorthand"][action].items() if full == key
    }
    if names:
        lines.append(f"  short names: {', '.join(sorted(names))}")
    lines.append(f"  engines: {', '.join(schema['x-engines'])}" + _instead(schema))
    if schema.get("automl_enabled"):
        lines.append(f"  searched by AutoML: {_search_space(schema)}")
    return "\n".join(lines + [f"  {row}" for row in _moves_with(key, actions)])


def _instead(schema: dict) -> str:
    return f" ({schema['x-instead']})" if "x-instead" in schema else ""


def _search_space(schema: dict) -> str:
    low, high = schema.get("automl_range", (None, None))
    space = spec.text(schema["enum"]) if "enum" in schema else f"{low} to {high}"
    return space + (", on a log scale" if schema.get("automl_scale") == "log" else "")


def _moves_with(key: str, actions: list[str]) -> list[str]:
    """The rules that point at the key or name it in their reason."""
    leaf = re.compile(rf"\b{re.escape(key.rsplit('.', 1)[-1])}\b")
    rows = []
    for rule in RULES:
        for action in [action for action in actions if action in rule.actions.split()][:1]:
            where = rule.key.format(**bundle.skill_info()["spec_params"][action])
            if where == key or leaf.search(rule.reason):
                rows.append(f"{rule.id}: {where.rsplit('.', 1)[-1]}: {rule.reason}")
    return rows[:8]
