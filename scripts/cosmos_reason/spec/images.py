"""What NVIDIA's images make of a spec, version by version: `images` of skill_info.yaml.

A spec of ours has one word for a thing, whatever the image. `translated` reads a spec that has an
image's own keys, `check` says which of them an image lacks, and `rendered` writes the spec for one.
"""

from __future__ import annotations

import copy
import re

from cosmos_reason.base import bundle, files, findings
from cosmos_reason.base.fix import Fix, value_text
from cosmos_reason.spec import actions, document

ENGINE = "tao"  # the engine whose programs are in these images


# ---- which image ---------------------------------------------------------------------------------


def default(engine: str) -> str | None:
    """Return the image of an engine that has one of its own."""
    return bundle.skill_info()["engines"][engine].get("default_image")


def versions() -> list[str]:
    return [facts["version"] for facts in bundle.skill_info()["images"].values()]


def facts(name: str, version: str | None = None) -> dict:
    """Return the facts of an image: those of `version`, or of the version in its name, or else of
    the default image."""
    images = bundle.skill_info()["images"]
    wanted = version or _version_in(name)
    for known in images.values():
        if known["version"] == wanted:
            return known
    return images[default(ENGINE)]


def name_of(version: str) -> str:
    images = bundle.skill_info()["images"]
    return next(name for name, known in images.items() if known["version"] == version)


def _version_in(name: str) -> str | None:
    """Return the version of NVIDIA's that an image's tag names."""
    tag = name.partition("@")[0].rpartition("/")[2].partition(":")[2]
    found = re.match(r"v?(\d+\.\d+\.\d+)(?![\d.])", tag)
    if found and found[1] in versions():
        return found[1]
    return None


def of_framework(name: str) -> list[findings.Finding]:
    """Return an error for an image of cosmos-framework, which no engine here runs in."""
    if actions.FRAMEWORK not in name.lower().replace("_", "-"):
        return []
    message = (
        f"got {name}, an image of {actions.FRAMEWORK}, which runs a trainer of its own and none of "
        f"the commands of an engine here; build_spec.py train --export {actions.FRAMEWORK} writes "
        "what it reads"
    )
    return [findings.error("JOB-IMAGE-FRAMEWORK", "--image", message)]


def issue(name: str, engine: str, version: str | None) -> tuple[str, str] | None:
    """Return what is known against an image, and an image that nothing is known against."""
    images = bundle.skill_info()["images"]
    if engine != ENGINE and name not in images:
        return None
    # A listed image is what it is; that it is called another version is an error of its own.
    known = (images.get(name) or facts(name, version)).get("known_issue")
    if not known:
        return None
    sound = next(other for other, about in images.items() if "known_issue" not in about)
    return known, sound


# ---- a spec for one image ------------------------------------------------------------------------


def rendered(action: str, spec: dict, image: dict, job: str) -> dict:
    """Return a copy of a spec of ours as the programs of an image read it. `job` is the path of the
    job's folder there."""
    rules = image["specs"].get(action, {})
    whole = copy.deepcopy(spec)
    for key in rules.get("needs", ()):
        if document.get(whole, key, document.MISSING) is document.MISSING:
            default = document.keys(action)[key]["default"]
            document.set_value(whole, key, copy.deepcopy(default))
    for ours, theirs in rules.get("copies", {}).items():
        value = document.get(whole, ours, "")
        if value != "":
            document.set_value(whole, theirs, value)
    for ours, theirs in rules.get("renames", {}).items():
        value = document.get(whole, ours, document.MISSING)
        if value is not document.MISSING:
            document.delete(whole, ours)
            document.set_value(whole, theirs, value)
    written = dict(rules.get("writes", {}))
    adapter = actions.places(action).get("adapter")
    if adapter and document.get(spec, adapter):
        written |= rules.get("adapter_writes", {})
    for key, entry in written.items():
        document.set_value(whole, key, entry["value"].format(job=job))
    return whole


def schema(action: str, image: dict) -> dict:
    """Return the schema of what `rendered` writes: ours, with the keys that the image reads
    besides."""
    rules = image["specs"].get(action, {})
    whole = files.read_json(bundle.schema_path(action))
    copied = [*rules.get("copies", {}).values(), *rules.get("renames", {}).values()]
    written = [*rules.get("writes", {}), *rules.get("adapter_writes", {}), *rules.get("adds", ())]
    for key in [*copied, *written]:
        *tables, name = key.split(".")
        table = whole
        for part in tables:
            table = table["properties"][part]
        table["properties"].setdefault(name, {})
    return whole


# ---- a spec with an image's own keys -------------------------------------------------------------


def settings(action: str) -> dict[str, dict]:
    """Return the keys of all images that we have no word for, each with the JSON Schema that its
    values are held to."""
    found: dict[str, dict] = {}
    for rules in _rules(action):
        found |= rules.get("adds", {})
    return found


def translated(action: str, spec: dict) -> tuple[dict, list[findings.Finding]]:
    """Return a copy of a spec in our words, and what was said in an image's own. What an image is
    given when it is launched is taken out; two names with different values are left, to be
    refused."""
    whole = copy.deepcopy(spec)
    renamed = []
    for ours, theirs in _own_names(action).items():
        value = document.get(whole, theirs, document.MISSING)
        if value is document.MISSING or document.get(whole, ours, value) != value:
            continue
        document.delete(whole, theirs)
        document.set_value(whole, ours, value)
        renamed.append(f"{theirs} is {ours} = {value_text(value)}")
    found = []
    given = {}  # Images are given this whatever the spec says.
    for rules in _rules(action):
        given |= rules.get("writes", {}) | rules.get("adapter_writes", {})
    for key, entry in given.items():
        value = document.get(whole, key, document.MISSING)
        if value is document.MISSING:
            continue
        document.delete(whole, key)
        if value in (entry["value"], ""):
            renamed.append(f"{key} is written for the images that have it")
        else:
            message = f"got {value_text(value)}, left it out: {entry['reason']}"
            found.append(findings.warning("SPEC-COMPLETED-OTHERWISE", key, message))
    if renamed:
        message = f"got an image's own keys: {', '.join(renamed)}"
        found.insert(0, findings.info("SPEC-TRANSLATED", "spec", message))
    return whole, found


def check(action: str, written: dict, name: str, version: str | None) -> list[findings.Finding]:
    """Return errors for the keys and values of a spec, as somebody wrote it, that another image has
    and this one is not known to read; word of the version whose rules are taken for one that is not
    listed."""
    image = facts(name, version)
    found = _taken_for(name, version)
    lacking = {}
    for other in bundle.skill_info()["images"].values():
        for key in _own_keys(action, other) - _own_keys(action, image):
            if document.get(written, key, "") != "":
                lacking.setdefault(key, other["version"])
    if lacking:
        found.append(_refusal(action, lacking, image["version"]))
    # Values that another image takes and this one is not known to.
    for other in bundle.skill_info()["images"].values():
        for key, value in sorted(_own_values(action, other) - _own_values(action, image)):
            if document.get(written, key) == value:
                message = f"got {value}, which {image['version']} is not known to take"
                fix = Fix(flags={"--image": name_of(other["version"])})
                found.append(findings.error("JOB-IMAGE-KEY", key, message, fix))
    return found


def refused_variables(names: list[str], name: str, version: str | None) -> list[findings.Finding]:
    """Return an error for each variable that only other images are given."""
    image = facts(name, version)
    found = []
    for other in bundle.skill_info()["images"].values():
        for variable in sorted(set(names) & other.get("environment", {}).keys()):
            if variable not in image.get("environment", {}):
                message = (
                    f"got a variable that image {other['version']} is given, expected none of it: "
                    f"{image['version']} would write its status log where the job may not"
                )
                fix = Fix(flags={"--image": name_of(other["version"])})
                found.append(findings.error("JOB-IMAGE-KEY", f"--env {variable}", message, fix))
    return found


def _taken_for(name: str, version: str | None) -> list[findings.Finding]:
    """Return the version that an image is taken for, where that is not plain; an error when a
    listed image is said to be another."""
    listed = bundle.skill_info()["images"].get(name)
    if listed and version not in (None, listed["version"]):
        message = f"got --image-version {version}, but this image is {listed['version']}"
        flags = {"--image-version": listed["version"]}
        if version in versions():  # said by the user, who may have named no image
            flags = {"--image": name_of(version)}
        return [findings.error("JOB-IMAGE-VERSION", name, message, Fix(flags=flags))]
    if listed or version:
        return []
    taken = facts(name)["version"]
    if _version_in(name):
        message = f"got an image that is not listed, took it for {taken} by its name"
        return [findings.info("JOB-IMAGE-VERSION", name, message)]
    others = " or ".join(other for other in versions() if other != taken)
    message = (
        f"got an image that is not listed and whose name tells no version, took it for {taken}; "
        f"when it is {others}, say so with --image-version"
    )
    fix = Fix(flags={"--image-version": taken})
    return [findings.warning("JOB-IMAGE-VERSION", name, message, fix)]


def _refusal(action: str, lacking: dict[str, str], version: str) -> findings.Finding:
    """Return the error about keys, each with the version that has it."""
    ours = {theirs: word for word, theirs in _own_names(action).items()}
    has_no_word = set(settings(action))
    for rules in _rules(action):  # keys of ours that some images read and others may not
        has_no_word.update(rules.get("knows", ()))
    parts = []
    for key in sorted(lacking):
        instead = f" ({ours[key]} there)" if key in ours else ""
        parts.append(f"{key}{instead}")
    other = next(iter(lacking.values()))
    message = (
        f"got keys of image {other}, which {version} would ignore: {', '.join(parts)}; "
        f"build_spec.py {action} --spec FILE -o NEW makes a spec for both"
    )
    without = [key for key in sorted(lacking) if key in has_no_word]
    if without:
        message += f", with --unset of {', '.join(without)}"
    where = min(lacking) if len(lacking) == 1 else "spec"
    fix = Fix(flags={"--image": name_of(other)})
    return findings.error("JOB-IMAGE-KEY", where, message, fix)


# ---- what the images' rules say ------------------------------------------------------------------


def _rules(action: str) -> list[dict]:
    images = bundle.skill_info()["images"].values()
    return [image["specs"].get(action, {}) for image in images]


def _own_names(action: str) -> dict[str, str]:
    """Return our key -> the one that stands for it in an image's spec."""
    names = {}
    for rules in _rules(action):
        names |= rules.get("copies", {}) | rules.get("renames", {}) | rules.get("reads", {})
    return names


def _own_values(action: str, image: dict) -> set[tuple[str, str]]:
    """Return (key, value) of our words that an image takes and others are not known to."""
    values = image["specs"].get(action, {}).get("values", {})
    return {(key, value) for key, taken in values.items() for value in taken}


def _own_keys(action: str, image: dict) -> set[str]:
    """Return the keys of an image that a spec of ours does not have, or that older images do not
    read."""
    rules = image["specs"].get(action, {})
    names = {*rules.get("copies", {}).values(), *rules.get("renames", {}).values()}
    return {*names, *rules.get("writes", {}), *rules.get("adapter_writes", {}),
            *rules.get("adds", ()), *rules.get("knows", ())}  # fmt: skip
