"""What a key, a group of keys, a short name, a profile or a word means: the text behind
`build_spec.py --explain`."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.fix import value_text
from cosmos_reason.rules.case import Rule
from cosmos_reason.rules.spec_rules import RULES, other_checks
from cosmos_reason.spec import document, values
from cosmos_reason.spec.actions import places
from cosmos_reason.spec.document import last_part
from cosmos_reason.spec.names import full_name
from cosmos_reason.spec.names import word as word_of_others

WORDS = Path(__file__).with_name("words.yaml")
MOST_LINES = 20
MOST_CONNECTIONS = 8
STOP_WORDS = {
    "a", "an", "and", "at", "by", "for", "in", "is", "of", "on", "or", "per", "the", "to", "what",
    "with",
}  # fmt: skip


def explain(word: str, action: str | None = None) -> str:
    """Return a few lines of text. Raises Failure (exit 2) with near names when nothing has to do
    with `word`."""
    word = word.strip()
    profiles = bundle.skill_info()["profiles"]
    checks = {}
    for rule in RULES:  # some say the same of several keys
        known = checks.get(rule.id, f"{rule.id} ({rule.severity}; {rule.actions})")
        checks[rule.id] = f"{known}\n  {rule.key}: {rule.reason}"
    if word.startswith("SPEC-"):
        other = other_checks()
        checks |= {id: f"{id}\n  {reason}" for id, reason in other["checks"].items()}
        for former, id in other["merged"].items():
            checks[former] = f"{former} is {id} now\n{checks[id]}"
    if word == "profiles":
        lines = []
        for name, profile in profiles.items():
            source = profile["source"]
            if not source.startswith("this project"):  # --explain NAME tells the rest
                source = re.sub(r" \([^)]*\)|;.*", "", source)
            lines.append(f"{name} ({profile['action']}): {source}")
        return "\n".join(lines)
    if word in profiles:
        profile = profiles[word]
        lines = [f"--profile {word} ({profile['action']}): {profile['source']}"]
        for told in ("address", "asks", "metric", "open"):  # of published evaluations
            if told in profile:
                lines.append(f"  {told}: {profile[told]}")
        lines += [f"  {key} = {value_text(value)}" for key, value in profile["set"].items()]
        return "\n".join(lines)
    if word in checks:
        return checks[word]
    text = _said(word, action)
    if text:
        return text
    known = [*profiles, *checks, *(" ".join(way) for way in _ways())]
    for name in bundle.ACTIONS:
        known += bundle.skill_info()["shorthand"][name]
        known += [part for key in document.keys(name) for part in (key, last_part(key))]
    message = (
        f"got {word!r}, expected a key, part of one, a short name, a profile, the id of a check "
        "(--list-rules) or a word of training."
    )
    hint = findings.did_you_mean(word, dict.fromkeys(known))
    raise findings.bad_input("SPEC-EXPLAIN", "--explain", message + hint)


def _said(word: str, action: str | None) -> str:
    """Return what the table of words says of exactly this one, else the keys that it names, else
    what the table says of a part of it."""
    row = _ways().get(tuple(_split(word)))
    short = "_".join(word.lower().split())
    shorthand = bundle.skill_info()["shorthand"]
    if row and not any(
        word in document.keys(name) or short in shorthand[name] for name in bundle.ACTIONS
    ):
        return _in_words([row])
    text = _keys_about(word, [action]) if action else ""
    text = text or _keys_about(word, list(bundle.ACTIONS))
    if text or word.startswith("SPEC-"):
        return text
    words = _split(word)
    found = {way: row for way, row in _ways().items() if _holds(words, way)}
    longest = max(map(len, found), default=0)
    return _in_words([row for way, row in found.items() if len(way) == longest])


# ---- words that people say -----------------------------------------------------------------------


def said_of(key: str) -> str:
    """Return what the table of words says of the last part of a key that no spec has, "" for
    nothing."""
    return _ways().get(tuple(_split(document.last_part(key))), {}).get("say", "")


def _in_words(rows: list[dict]) -> str:
    """Return what is said of each, and the keys it names."""
    lines = []
    for row in rows:
        lines += [row["say"]] if "say" in row else []
        lines += [_line_of(key) for key in row.get("keys", ())]
    return "\n".join(dict.fromkeys(lines))


@functools.cache
def _ways() -> dict[tuple[str, ...], dict]:
    """Return words, in the singular -> the row that says what they mean."""
    import yaml

    rows = yaml.load(WORDS.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return {tuple(_split(way)): row for row in rows for way in row["words"]}


def _holds(words: list[str], way: tuple[str, ...]) -> bool:
    """Return whether the words of `way` stand side by side."""
    size = len(way)
    return any(tuple(words[at : at + size]) == way for at in range(len(words) - size + 1))


def _split(text: str) -> list[str]:
    """Return the words of `text`, in lower case and in the singular."""
    words = re.findall(r"[a-z]+[0-9]*|[0-9]+[a-z]*", text.lower())
    return [word[:-1] if len(word) > 3 and re.search(r"[^su]s$", word) else word for word in words]


def _line_of(key: str) -> str:
    actions = _actions(key)
    return f"{key} ({', '.join(actions)}): {document.keys(actions[0])[key]['description']}"


# ---- which keys a word is about ------------------------------------------------------------------


def _keys_about(word: str, actions: list[str]) -> str:
    """Return the one key that the word names, else a list of those that have to do with it; empty
    when none has."""
    key = exact(word, actions)
    if key:
        return _key(key, _actions(key)) + _namesakes(key, word)
    lines = _search(word.lower(), actions) if word else []
    shown = lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        shown.append(f"... and {len(lines) - MOST_LINES} more; name a longer prefix")
    return "\n".join(shown)


def exact(word: str, actions: list[str]) -> str | None:
    """Return the one key that `word` names: itself, a short name ("learning rate", "number of
    epochs"), a former name, or the last part of one key only in the first action that has such a
    part."""
    short = "_".join(word.lower().replace("number of ", "num ").split())
    for action in actions:
        told = word_of_others(action, short)
        for name in (full_name(action, short), told.key if told else ""):
            if name in document.keys(action):
                return name
        if any(last_part(key) == short for key in document.keys(action)):
            return None  # several, which are listed
    return None


def _namesakes(key: str, word: str) -> str:
    """Return a line that says what the word means in the actions that do not have the key."""
    others: dict[str, list[str]] = {}
    for action in bundle.ACTIONS:
        if action in _actions(key):
            continue
        other = exact(word, [action])
        if other:
            others.setdefault(other, []).append(action)
    return "".join(f"\n  in {', '.join(names)}: {other}" for other, names in others.items())


def _search(word: str, actions: list[str]) -> list[str]:
    """Return keys below the prefix `word`, else keys that take it as a value or have its words in
    their name, else keys whose name, description and short names have all of its words."""
    schemas: dict[str, dict] = {}
    for action in reversed(actions):
        schemas |= document.keys(action)
    found = [key for key in schemas if key.startswith(f"{word.rstrip('.')}.")]
    asked = tuple(part for part in _split(word) if part not in STOP_WORDS)
    if not found and asked:
        for key, schema in schemas.items():
            if word in [str(value).lower() for value in schema.get("enum", ())]:
                found.append(key)
        found += [key for key in schemas if key not in found and _holds(_split(key), asked)]
    if not found and asked:
        for key in schemas:
            description = document.keys(_actions(key)[0])[key]["description"]
            said = _split(" ".join([key, description, *_short_names(key, actions)]))
            if set(asked) <= set(said):
                found.append(key)
    return [_line_of(key) for key in found]


def _short_names(key: str, actions: list[str]) -> list[str]:
    names = set()
    for action in actions:
        for name, full in bundle.skill_info()["shorthand"][action].items():
            if full == key:
                names.add(name)
    return sorted(names)


def _actions(key: str) -> list[str]:
    return [action for action in bundle.ACTIONS if key in document.keys(action)]


# ---- one key -------------------------------------------------------------------------------------


def _key(key: str, actions: list[str]) -> str:
    """Return what the schema says of a key, its value in the templates, and the keys and rules that
    move with it."""
    known = document.keys(actions[0])
    schema = known[key]
    default = "no default"
    if "default" in schema:
        default = "off" if schema["default"] is None else value_text(schema["default"])
    in_templates = []
    for action in actions:
        value = document.get(document.template(action), key, document.MISSING)
        if value is not document.MISSING:
            in_templates.append(f"{value_text(value)} ({action})")
    lines = [
        f"{key} ({', '.join(actions)})",
        f"  {schema['description']}",
        f"  takes: {values.expected(schema)}",
        f"  when absent: {default}; template: {', '.join(in_templates) or 'leaves it out'}",
    ]
    if "popular" in schema:
        popular = ", ".join(value_text(value) for value in schema["popular"])
        lines.append(f"  popular: {popular}")
    short_names = _short_names(key, actions)
    if short_names:
        lines.append(f"  short names: {', '.join(short_names)}")
    instead = f" ({schema['x-instead']})" if "x-instead" in schema else ""
    lines.append(f"  engines: {', '.join(schema['x-engines'])}{instead}")
    if schema.get("automl_enabled"):
        space = schema["enum"] if "enum" in schema else schema["automl_range"]
        text = value_text(space)
        if "automl_range_lora" in schema:
            text += f", with adapters {value_text(schema['automl_range_lora'])}"
        if "automl_scale" in schema:
            text += " (log scale)"
        lines.append(f"  searched by AutoML: {text}")
    connections = []
    tied = [other for other, schema in known.items() if schema.get("depends_on") == key]
    if "depends_on" in schema:
        tied.append(schema["depends_on"])
    if tied:
        connections.append(f"moves with: {', '.join(tied)}")
    lora = bundle.skill_info()["tuning"]["lora"].get(actions[0], {})
    if key in lora:
        connections.append(f"--tuning lora: {value_text(lora[key])}")
    for rule in RULES:
        with_rule = [action for action in actions if action in rule.actions.split()]
        if not with_rule:
            continue
        where = rule.key.format(**places(with_rule[0]))
        if where == key or _is_named(key, where, rule, actions[0]):
            scope = "" if with_rule == actions else f" ({rule.actions} only)"
            connections.append(f"{rule.id}: {last_part(where)}: {rule.reason}{scope}")
    return "\n".join(lines + [f"  {line}" for line in connections[:MOST_CONNECTIONS]])


def _is_named(key: str, where: str, rule: Rule, action: str) -> bool:
    """Return whether the reason of a rule, which points at `where`, names the key: its last part
    means the key when no other key has it, when the rule points into the same table, or when the
    table is named before it."""
    table, _, leaf = key.rpartition(".")
    if not re.search(rf"\b{re.escape(leaf)}\b", rule.reason):
        return False
    # A last part that several keys have means one of them only where its table is told too.
    namesakes = [name for name in document.keys(action) if last_part(name) == leaf]
    in_same_table = where.rpartition(".")[0] == table
    return len(namesakes) == 1 or in_same_table or (table != "" and f"{table} " in rule.reason)
