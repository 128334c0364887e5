"""SKILL.md, references and manifests as agents, installers and directories read them;
the shape of the evals."""

import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib

import pytest
import yaml
from support import ROOT, make_docs

from cosmos_reason.base import bundle
from cosmos_reason.jobs import diagnosis
from cosmos_reason.rules import launchable
from cosmos_reason.spec import document

TEXT = (ROOT / "SKILL.md").read_text(encoding="utf-8")
_, HEAD, BODY = TEXT.split("---\n", 2)
FRONTMATTER = yaml.safe_load(HEAD)
REFERENCES = sorted((ROOT / "references").glob("*.md"))
OTHER_TOOLS = "from-other-tools.md"
SCRIPTS = {path.name for path in (ROOT / "scripts").glob("*.py")}
NAME = FRONTMATTER["name"]


def read(name):
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


EVALS = read("evals/evals.json")["evals"]
QUERIES = read("evals/trigger-queries.json")


def test_frontmatter_is_the_standard_and_no_more():
    allowed = "name description license compatibility metadata allowed-tools"
    assert set(FRONTMATTER) <= set(allowed.split())
    assert all(isinstance(value, str) for value in FRONTMATTER["metadata"].values())
    assert len(FRONTMATTER["compatibility"]) <= 500


def test_description_says_when_and_starts_with_the_nouns():
    text = FRONTMATTER["description"]
    assert len(text) < 500 and text.startswith("Use when")
    assert "Cosmos Reason" in text[:150] and "Cosmos3-Nano" in text[:200]
    words = "Cosmos-RL|video QA|fine-tune|evaluate|Cosmos3 Nano Reasoner|Cosmos-Reason2-8B"
    assert all(word in text for word in words.split("|"))
    assert not re.search(r"[<>]|\b(?:I|you|your|my)\b", text)


SECTIONS = (
    "Purpose", "Prerequisites", "Instructions", "Available Scripts", "Examples", "Limitations",
    "Troubleshooting",
)  # fmt: skip


@pytest.mark.parametrize("section", SECTIONS)
def test_body_has_the_sections_that_validators_look_for(section):
    assert f"\n## {section}\n" in BODY


@pytest.mark.parametrize(
    "page", [ROOT / "SKILL.md", ROOT / "README.md", *REFERENCES], ids=lambda path: path.name
)
def test_what_pages_name_exists(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    assert set(re.findall(r"scripts/(\w+\.py)", text)) <= SCRIPTS


def test_every_script_has_its_place_in_the_routing():
    started_by_others = {"run_with_transformers.py", "train_with_cosmos_rl.py"}
    assert {name for name in SCRIPTS if name not in BODY} == started_by_others


COMMAND = re.compile(r"^(?:scripts/)?(\w+\.py)((?: .*)?)$", re.M)


PAGES_OF_OURS = [path for path in REFERENCES if path.name != OTHER_TOOLS]


@pytest.mark.parametrize("page", [ROOT / "SKILL.md", *PAGES_OF_OURS], ids=lambda path: path.name)
def test_flags_of_commands_in_pages_exist(page):
    code = re.findall(r"```\n(.*?)```|`([^`\n]+)`", page.read_text(encoding="utf-8"), re.S)
    text = "\n".join("".join(pair) for pair in code).replace("\\\n", " ")
    for script, words in COMMAND.findall(text):
        known = flags(script, *words.split()[:1])
        assert set(re.findall(r"(?<= )--[a-z][a-z0-9-]+", words)) <= known, (script, words)


def cells_of(page):
    """The right cells of the page's tables."""
    text = (ROOT / "references" / page).read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row[1] for row in rows if row[1] != "here" and not row[1].startswith("---")]


def test_what_stands_for_other_tools_parses_and_names_keys_that_exist(monkeypatch, capsys):
    scripts = set()
    keys = set()
    for cell in cells_of(OTHER_TOOLS):
        for code in re.findall(r"`([^`]+)`", cell):
            script, *words_after = shlex.split(code)
            if script.endswith(".py") and words_after:
                monkeypatch.setattr(sys, "argv", [script, *words_after])
                parser = runpy.run_path(str(ROOT / "scripts" / script))["parser"]()
                parser.parse_args(words_after)  # exits, with what is wrong on stderr
                scripts.add(script)
            elif re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", code) and not code.endswith(".jsonl"):
                keys.add(code)
    known = {key for action in bundle.ACTIONS for key in document.keys(action)}
    assert len(scripts) == 8 and len(keys) >= 9 and keys <= known


def flags(script, verb=""):
    """Those of the script and, when the word is a verb of it, of the verb."""
    verbs = read("tests/fixtures/public_names.json")["flags"][script]
    return {"--help-all", *verbs[""], *verbs.get(verb, ())}


def test_references_are_one_level_deep_and_none_is_orphaned():
    """The body names them by what differs in their names, which costs a third of links."""
    (pages,) = re.findall(r"^Pages, .*?\.$", BODY, re.M | re.S)
    words = re.sub(r"\([^)]*\)", "", pages.partition("WORD.md for ")[2]).rstrip(".")
    named = {f"cosmos-reason-{word.strip()}.md" for word in words.split(",")}
    named |= set(re.findall(r"references/([a-z-]+\.md)", pages))
    assert named == {path.name for path in REFERENCES}
    for path in REFERENCES:
        assert not re.search(r"\]\([^)]*\.md\)", path.read_text(encoding="utf-8")), path.name


def test_one_version_and_one_name_everywhere():
    plugin, market = read(".claude-plugin/plugin.json"), read(".claude-plugin/marketplace.json")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = bundle.skill_info()
    versions = {FRONTMATTER["metadata"]["version"], plugin["version"], project["version"]}
    assert versions == {info["skill_version"]}
    assert {NAME, plugin["name"], market["name"], market["plugins"][0]["name"]} == {info["name"]}
    assert market["plugins"][0]["description"] == plugin["description"]


# ---- generated tables ----------------------------------------------------------------------------


def test_generated_tables_are_what_skill_info_gives():
    for path, text in make_docs().outputs().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: make docs"


def test_tables_stand_between_their_marks_and_say_each_key_once():
    page = "before\n<!-- make docs: words -->\nold\n<!-- end -->\nafter\n"
    text = make_docs().renewed(f"{page}<!-- make docs: engines --><!-- end -->")
    assert text.startswith("before\n<!-- make docs: words -->\n| words | key | in |")
    assert "\nold\n" not in text
    assert "| scheme, precision | `quantize.quantization_scheme` | quantize |\n" in text
    keys = re.findall(r"\| `([^`]+)` \|", text.partition("after")[0])
    assert len(keys) == len(set(keys))


def launch_table() -> dict[tuple[str, str], str]:
    """(engine, action) -> the cell of the generated table of engines."""
    cells = {}
    for line in make_docs().engines().splitlines():
        if line.startswith("| `"):
            name, _, *row = line.strip("| ").split(" | ")
            for action, cell in zip(bundle.ACTIONS, row, strict=True):
                cells[name.strip("`"), action] = cell
    return cells


IN_THE_TABLE = ("local", "docker", "slurm")  # a sentence tells of kubernetes


def test_the_launch_page_names_the_package_that_findings_propose():
    page = (ROOT / "references" / "cosmos-reason-launch.md").read_text(encoding="utf-8")
    assert f"`pip install {bundle.WANDB}`" in page


def test_pages_tell_what_is_launched_as_skill_info_does():
    """A launched action names its platforms, what was never executed is marked,
    and nothing else reads like a yes."""
    cells = launch_table()
    assert {engine for engine, _ in cells} == set(bundle.ENGINES)
    for (engine, action), cell in cells.items():
        facts = bundle.skill_info()["engines"][engine]
        platforms = [name for name in IN_THE_TABLE if (engine, name) in launchable.ways(action)]
        assert [platform for platform in IN_THE_TABLE if platform in cell] == platforms, cell
        launched = {facts["launched"][platform][action] for platform in platforms}
        for how in ("bare", "rendered"):
            assert (f"*{how}*" in cell) == (how in launched)
        assert (cell == "*spec only*") == (action in facts["actions"] and not platforms)
    for page, block in (("README.md", "engines"), ("README.md", "limits"), ("SKILL.md", "limits")):
        assert f"<!-- make docs: {block} -->" in (ROOT / page).read_text(encoding="utf-8")


def test_a_sentence_tells_of_kubernetes_what_the_table_leaves_out():
    for facts in bundle.skill_info()["engines"].values():
        rendered = facts["launched"].get("kubernetes", {})
        assert rendered == dict.fromkeys(facts["launched"].get("docker", {}), "rendered")
    assert "On kubernetes as on docker, all *rendered*." in make_docs().engines()


# ---- evals ---------------------------------------------------------------------------------------


def test_evals_have_the_shape_of_the_standard():
    document = read("evals/evals.json")
    assert document["skill_name"] == NAME
    for case in EVALS:
        assert {"id", "prompt", "expected_output", "files", "assertions"} <= set(case)
        assert all((ROOT / name).is_file() for name in case["files"])
        assert case["expected_skill"] == (None if case["bucket"] == "negative" else NAME)
        assert case["expected_script"] in SCRIPTS | {None} or case["needs"], case["id"]
        assert case["assertions"]
    assert len({case["id"] for case in EVALS}) == len(EVALS)
    assert {case["bucket"] for case in EVALS} == {"explicit", "implicit", "contextual", "negative"}


def test_evals_cover_actions_engines_platforms_and_kinds_of_failure():
    covered = {word for case in EVALS for word in case["covers"]}
    assert set(bundle.ACTIONS) | set(bundle.ENGINES) | {"local", "docker"} <= covered
    failures = {entry.group for entry in diagnosis.catalog() if entry.severity == "error"}
    assert failures <= covered


def test_every_packaged_file_is_used():
    packed = {f"evals/files/{path.name}" for path in (ROOT / "evals" / "files").iterdir()}
    assert packed == {name for case in EVALS for name in case["files"]}


def test_the_harness_lists_all_cases():
    words = [sys.executable, ROOT / "evals/run.py", "list"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [case["id"] for case in EVALS]


# ---- trigger queries -----------------------------------------------------------------------------


def words(text):
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def test_trigger_queries_are_balanced_and_split_once_and_for_all():
    assert len(QUERIES) >= 40 and len({row["query"] for row in QUERIES}) == len(QUERIES)
    positive = [row for row in QUERIES if row["should_trigger"]]
    assert len(positive) * 2 == len(QUERIES)
    for rows in (positive, [row for row in QUERIES if not row["should_trigger"]]):
        share = sum(row["split"] == "validation" for row in rows) / len(rows)
        assert 0.3 <= share <= 0.5
    assert {row["split"] for row in QUERIES} == {"train", "validation"}


def test_negatives_are_near_misses():
    vocabulary = set().union(*(words(row["query"]) for row in QUERIES if row["should_trigger"]))
    domain = {word for word in vocabulary if len(word) > 3} | {"gpu", "tao", "vlm", "sft"}
    for row in QUERIES:
        if not row["should_trigger"]:
            assert len(words(row["query"]) & domain) >= 2, row["query"]


def test_positives_use_the_words_of_users_not_of_the_description():
    for row in QUERIES:
        assert row["query"] not in FRONTMATTER["description"]
        if row["should_trigger"]:
            assert len(words(row["query"]) - words(FRONTMATTER["description"])) >= 5, row["query"]


# Keys of clouds and hosts, tokens, private keys, long values that are called secret.
SECRET_LIKE = re.compile(
    r"""\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[ps]_\w{36}\b|\bhf_[A-Za-z0-9]{20,}|\bnvapi-\w{16,}
    |\bsk-(?:proj-)?[A-Za-z0-9]{16,}|-----BEGIN[A-Z\s]*PRIVATE[ ]KEY-----
    |\beyJ[\w-]{10,}\.eyJ[\w-]{10,}
    |(?i:secret|password|passwd|pwd|api[-_]?key|auth[-_]?token|bearer)
     \s*[=:]\s*["'][^"'{}\s]{16,}["']""",
    re.VERBOSE,
)


def test_no_tracked_text_looks_like_a_secret():
    """Scanners of others refuse an installed skill for one in a test."""
    words = ["git", "ls-files", "-z"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for path in (ROOT / name for name in filter(None, listed.stdout.split("\0"))):
        text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
        found += [(path, match[0]) for match in SECRET_LIKE.finditer(text)]
    assert not found
