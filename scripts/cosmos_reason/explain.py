"""What a key, a group of keys, a short name, a profile or a word means: the text behind `build_spec.py --explain`."""

from __future__ import annotations

import re

from cosmos_reason import bundle, spec, spec_values
from cosmos_reason import findings as f
from cosmos_reason.spec_rules import RULES, other_checks

MOST_LINES = 20
STOP_WORDS = {"a", "an", "and", "at", "by", "for", "in", "is", "of", "on", "or", "per", "the", "to", "what", "with"}


def explain(word: str, action: str | None = None) -> str:
    """A few lines of text. Raises Failure (exit 2) with near names when nothing has to do with `word`."""
    word = word.strip()
    profiles = bundle.skill_info()["profiles"]
    if word == "profiles":
        return "\n".join(f"{name:24} {profile['action']:6} {profile['source']}" for name, profile in profiles.items())
    if profile := profiles.get(word):
        values = [f"  {key} = {spec_values.text(value)}" for key, value in profile["set"].items()]
        return "\n".join([f"--profile {word} ({profile['action']}): {profile['source']}", *values])
    checks = {rule.id: f"{rule.id} ({rule.severity}; {rule.actions})\n  {rule.key}: {rule.reason}" for rule in RULES}
    if word.startswith("SPEC-"):
        checks |= {id: f"{id}\n  {reason}" for id, reason in other_checks()["checks"].items()}
    if word in checks:
        return checks[word]
    for actions in ([action] if action else [], list(bundle.ACTIONS)):  # what the action has not, another may have
        if key := exact(word, actions):
            return _key(key, _actions(key))
        if word and (lines := _search(word.lower(), actions)):
            more = len(lines) - MOST_LINES
            return "\n".join(lines[:MOST_LINES] + [f"... and {more} more; name a longer prefix"] * (more > 0))
    names = {name for known in map(spec.keys, actions) for key in known for name in (key, key.rsplit(".", 1)[-1])}
    names |= {short for one in actions for short in bundle.skill_info()["shorthand"][one]} | {*profiles, *checks}
    message = f"got {word!r}, expected a key, part of one, a short name, a profile or the id of a check (--list-rules)."
    raise f.bad_input("SPEC-EXPLAIN", "--explain", message + f.did_you_mean(word, names))


def exact(word: str, actions: list[str]) -> str | None:
    """The one key that `word` names: itself, a short name ("learning rate"), a former name, or the last part of one key
    only in the first action that has such a part."""
    short, former = word.lower().replace(" ", "_"), bundle.skill_info()["former_keys"].get(word, {}).get("key")
    for action in actions:
        for name in (spec.full_name(action, short), former):
            if name in spec.keys(action):
                return name
        if any(key.rsplit(".", 1)[-1] == short for key in spec.keys(action)):
            return None  # several, which are listed
    return None


def _search(word: str, actions: list[str]) -> list[str]:
    """Keys below the prefix `word`, else keys with it in their name, else keys whose name, description and short names
    have all of its words."""
    known = {key: schema["description"] for action in reversed(actions) for key, schema in spec.keys(action).items()}
    below = [key for key in known if key.startswith(f"{word.rstrip('.')}.")]
    named = [key for key in known if word.replace(" ", "_") in key.lower()]
    wanted = [part for part in re.findall(r"\w+", word.replace("_", " ")) if part not in STOP_WORDS]
    short = [pair for action in actions for pair in bundle.skill_info()["shorthand"][action].items()]
    texts = {key: " ".join([key, known[key], *(name for name, full in short if full == key)]) for key in known}
    texts = {key: text.lower().replace("_", " ") for key, text in texts.items() if wanted}
    worded = [key for key, text in texts.items() if all(part in text for part in wanted)]
    return [f"{key} ({', '.join(_actions(key))}): {known[key]}" for key in below or named or worded]


def _actions(key: str) -> list[str]:
    return [action for action in bundle.ACTIONS if key in spec.keys(action)]


def _key(key: str, actions: list[str]) -> str:
    schema, short = spec.keys(actions[0])[key], bundle.skill_info()["shorthand"]
    default = schema.get("default", spec.MISSING)
    absent = "no default" if default is spec.MISSING else "off" if default is None else spec_values.text(default)
    ours = {action: spec.get(spec.template(action), key, spec.MISSING) for action in actions}
    ours = [f"{spec_values.text(value)} ({action})" for action, value in ours.items() if value is not spec.MISSING]
    lines = [f"{key} ({', '.join(actions)})", f"  {schema['description']}", f"  takes: {spec_values.expected(schema)}"]
    lines.append(f"  when absent: {absent}; template: {', '.join(ours) or 'leaves it out'}")
    if "popular" in schema:
        lines.append(f"  popular: {', '.join(spec_values.text(value) for value in schema['popular'])}")
    if names := sorted({name for action in actions for name, full in short[action].items() if full == key}):
        lines.append(f"  short names: {', '.join(names)}")
    instead = f" ({schema['x-instead']})" if "x-instead" in schema else ""
    lines.append(f"  engines: {', '.join(schema['x-engines'])}{instead}")
    if schema.get("automl_enabled"):
        space = schema["enum"] if "enum" in schema else schema["automl_range"]
        adapters = (
            f", with adapters {spec_values.text(schema['automl_range_lora'])}" if "automl_range_lora" in schema else ""
        )
        scale = " (log scale)" * ("automl_scale" in schema)
        lines.append(f"  searched by AutoML: {spec_values.text(space)}{adapters}{scale}")
    return "\n".join(lines + [f"  {row}" for row in _moves_with(key, actions)])


def _moves_with(key: str, actions: list[str]) -> list[str]:
    """What is set together with the key, and the rules that point at it or name it in their reason."""
    known, table, leaf = spec.keys(actions[0]), *(key.rpartition(".")[::2])
    tied = [other for other, schema in known.items() if schema.get("depends_on") == key]
    tied += [known[key]["depends_on"]] if "depends_on" in known[key] else []
    lora = bundle.skill_info()["tuning"]["lora"].get(actions[0], {})
    rows = [f"moves with: {', '.join(tied)}"] if tied else []
    rows += [f"--tuning lora: {spec_values.text(lora[key])}"] if key in lora else []
    alone = sum(name.rpartition(".")[2] == leaf for name in known) == 1
    named = re.compile(rf"\b{re.escape(leaf)}\b")
    for rule in RULES:
        for action in [action for action in actions if action in rule.actions.split()][:1]:
            where = rule.key.format(**bundle.skill_info()["spec_params"][action])
            meant = alone or where.rpartition(".")[0] == table or (table and f"{table} " in rule.reason)
            if where == key or (meant and named.search(rule.reason)):
                some = "" if all(one in rule.actions.split() for one in actions) else f" ({rule.actions} only)"
                rows.append(f"{rule.id}: {where.rpartition('.')[2]}: {rule.reason}{some}")
    return rows[:8]
