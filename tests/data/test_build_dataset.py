import json
import shlex
from collections import Counter
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from clip_files import record, write_clip
from hypothesis import given
from hypothesis import strategies as st
from support import run_script, tokens

from cosmos_reason.base.findings import Failure
from cosmos_reason.data import annotations, items
from cosmos_reason.data import sources as dataset_sources
from cosmos_reason.data import splits as dataset_splits
from cosmos_reason.data import writer as dataset_writer
from cosmos_reason.data.items import Item, Reading
from cosmos_reason.data.samples import Turn


def build(source, out, flags="", expect=0):
    """What a build made, or the id of the first finding that is told."""
    done = run_script("build_dataset.py", source, "-o", out, *shlex.split(flags), "--json")
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    document = json.loads(done.stdout)
    return document["result"] if not expect else document["findings"][0]["id"]


def read(folder):
    path = folder / ("annotations.json" if (folder / "annotations.json").is_file() else "meta.json")
    samples, findings = annotations.read(path)
    assert not [finding for finding in findings if finding.severity == "error"]
    return samples


@pytest.fixture
def clips(tmp_path):
    """Eight clips, the odd ones of another level."""
    for number in range(8):
        write_clip(tmp_path / "source" / "clips" / f"{number}.mp4", frames=8, tint=number)
    return tmp_path / "source"


def write_csv(clips, lines):
    (clips / "labels.csv").write_text("\n".join(lines) + "\n")
    return clips / "labels.csv"


def test_a_table_of_labels(clips, tmp_path):
    table = write_csv(
        clips, ["clip,label", *(f"clips/{n}.mp4,{'rain' if n % 2 else 'sun'}" for n in range(8))]
    )
    flags = "--question 'What is the weather?' --eval-fraction 0.25"
    result = build(table, tmp_path / "out", flags)
    assert result["kind"] == "csv" and result["written"] == {"train": 6, "eval": 2}
    train, held_out = read(tmp_path / "out" / "train"), read(tmp_path / "out" / "eval")
    assert train[0].turns[0].text == "What is the weather?\nAnswer with one of: rain, sun."
    assert Counter(sample.turns[1].text for sample in held_out) == {"rain": 1, "sun": 1}
    assert not {sample.id for sample in train} & {sample.id for sample in held_out}
    build(table, tmp_path / "again", flags)
    for name in ("train/annotations.json", "eval/annotations.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


@pytest.mark.parametrize(
    ("question", "answers", "added"),
    [
        ("On?", ("yes", "no"), "\nAnswer yes or no."),
        ("Did it say no?", ("Yes", "No"), "\nAnswer yes or no."),
        ("On? Answer yes or no.", ("yes", "no"), ""),
        ("Please reply with YES or NO: on?", ("yes", "no"), ""),
        ("On? Answer in a word.", ("yes", "no"), "\nAnswer yes or no."),
        ("Which? Answer with one of: a b, c.", ("a b", "c"), ""),
        ("Which? Answer with one of: a b.", ("a b", "c"), "\nAnswer with one of: a b, c."),
    ],
)
def test_the_form_of_answers_is_told_once(question, answers, added):
    assert items.ask(question, ["light_on"], [*answers] * 2, "video") == (question, added)


def test_the_help_is_short_and_its_first_example_runs(clips):
    text = run_script("build_dataset.py --help").stdout
    assert tokens(text) < 600
    commands = text.replace("\\\n", "").splitlines()
    (line,) = [line for line in commands if "light_on" in line]
    (clips / "clips" / "labels.csv").write_text("video,light_on\n0.mp4,yes\n1.mp4,no\n")
    named = "--column answer=light_on"
    words = line.partition("build_dataset.py")[2]
    refused = run_script("build_dataset.py" + words.replace(named, ""), cwd=clips)
    assert refused.returncode == 2 and f"fix: {named}" in refused.stderr
    assert run_script("build_dataset.py" + words, cwd=clips).returncode == 0


def test_what_is_printed_next_leads_to_a_spec(clips, tmp_path):
    lines = [f"clips/{n}.mp4,{'yes' if n % 2 else 'no'}" for n in range(8)]
    table = write_csv(clips, ["video,light_on", *lines])
    labels = "--column answer=light_on --question 'Does a light come on?'"
    line = f"build_dataset.py {table} -o 'my data/of lights' --eval-fraction 0.25 {labels}"
    for expected in ("check_dataset.py", "build_spec.py", None):
        done = run_script(line, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        if expected:
            words = shlex.split(done.stderr.rpartition("next: ")[2])
            words[0] = Path(words[0]).name
            assert words[0] == expected
            line = shlex.join(words)
    facts = words[words.index("--dataset-facts") + 1]
    assert (tmp_path / facts).is_file() and (tmp_path / "spec.toml").is_file()
    again = f"build_dataset.py {table} -o . --force {labels}"
    done = run_script(again, cwd=tmp_path / "my data" / "of lights")
    assert done.returncode == 0 and facts in done.stderr, "the facts are no part of the dataset"


def test_options_reasoning_and_columns_by_name(clips, tmp_path):
    rows = [
        {"f": f"clips/{n}.mp4", "ask": "Which?", "gt": "B", "why": "seen", "o": ["left", "right"]}
        for n in range(2)
    ]
    (clips / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pairs = "video=f question=ask answer=gt reasoning=why options=o".split()
    flags = " ".join(f"--column {pair}" for pair in pairs)
    build(clips / "t.jsonl", tmp_path / "out", flags)
    sample = read(tmp_path / "out" / "train")[0]
    assert sample.turns[0].text.startswith("Which?\n(A) left\n(B) right\n")
    assert sample.turns[1].text == "<think>\nseen\n</think>\n\nB"
    refused = build(clips / "t.jsonl", tmp_path / "no", "--column video=ff", expect=2)
    assert refused == "BUILD-COLUMN"
    assert not (tmp_path / "no").exists()


def test_label_files_become_json_never_a_repr(clips, tmp_path):
    (clips / "videos").mkdir()
    (clips / "metas").mkdir()
    for number in range(2):
        (clips / "clips" / f"{number}.mp4").rename(clips / "videos" / f"{number}.camera_front.mp4")
        label = {"weather": "clear", "driving_difficulty": 2, "rule_violation": None}
        (clips / "metas" / f"{number}.label.json").write_text(json.dumps(label))
    (tmp_path / "ask.txt").write_text("Describe the scene.\n")
    made = build(clips, tmp_path / "all", f"--question @{tmp_path / 'ask.txt'}")
    assert made["kind"] == "labels"
    sample = read(tmp_path / "all" / "train")[0]
    assert sample.turns[0].text == "Describe the scene."
    assert json.loads(sample.turns[1].text)["rule_violation"] is None
    build(clips, tmp_path / "one", "--fields weather --system 'You drive.' --question Sky?")
    turns = [turn.text for turn in read(tmp_path / "one" / "train")[0].turns]
    assert turns == ["You drive.", "Sky?\nAnswer with one of: clear.", "clear"]
    assert build(clips, tmp_path / "no", "--fields wether", expect=2) == "BUILD-FIELD"


def test_tables_of_the_hub(clips, tmp_path):
    content = [(clips / "clips" / f"{number}.mp4").read_bytes() for number in range(4)]
    video = [{"bytes": data, "path": None} for data in content]
    features = {"info": {"features": {"label": {"names": ["No", "Yes"], "_type": "ClassLabel"}}}}
    table = arrow.table({"video": video, "label": [0, 1, 1, 0]})
    (tmp_path / "hub").mkdir()
    described = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    parquet.write_table(described, tmp_path / "hub" / "a.parquet")
    assert build(tmp_path / "hub", tmp_path / "out", "--question Bright?")["kind"] == "hf"
    samples = read(tmp_path / "out" / "train")
    assert [sample.turns[1].text for sample in samples] == ["No", "Yes", "Yes", "No"]
    assert samples[0].turns[0].text.endswith("Answer yes or no.")
    assert (tmp_path / "out" / "train" / samples[2].media[0].path).read_bytes() == content[2]
    turns = [{"role": "user", "content": "Bright?"}, {"role": "assistant", "content": "Yes"}]
    columns = {"video": [f"{clips}/clips/0.mp4"], "conversations": [json.dumps(turns)]}
    parquet.write_table(arrow.table(columns), tmp_path / "b.parquet")
    build(tmp_path / "b.parquet", tmp_path / "talks")
    asked = (Turn("user", "Bright?"), Turn("assistant", "Yes"))
    assert read(tmp_path / "talks" / "train")[0].turns == asked


@pytest.mark.parametrize("form", dataset_writer.FORMATS)
def test_every_format_written_is_read_back(clips, tmp_path, form):
    (clips / "annotations.json").write_text(json.dumps([record(number) for number in range(4)]))
    build(clips, tmp_path / "out", f"--format {form} --media copy")
    samples = read(tmp_path / "out" / "train")
    assert [sample.id for sample in samples] == [f"r{number}" for number in range(4)]
    assert {sample.turns for sample in samples} == {
        (Turn("user", "Is it bright?"), Turn("assistant", "Yes"))
    }
    assert all((tmp_path / "out" / "train" / sample.media[0].path).is_file() for sample in samples)


def test_media_modes_and_existing_output(clips, tmp_path):
    (clips / "annotations.json").write_text(json.dumps([record(number) for number in range(3)]))
    build(clips, tmp_path / "linked")
    first = tmp_path / "linked" / "train" / "media" / "r0.mp4"
    assert first.stat().st_ino == (clips / "clips" / "0.mp4").stat().st_ino
    build(clips, tmp_path / "named", "--media reference --subset 2")
    named = [Path(one.media[0].path) for one in read(tmp_path / "named" / "train")]
    assert [path.is_absolute() for path in named] == [True, True]
    assert build(clips, tmp_path / "named", expect=2) == "BUILD-OUTPUT"
    (clips / "clips" / "1.mp4").unlink()
    assert build(clips, tmp_path / "named", "--force", expect=2) == "BUILD-MEDIA-MISSING"
    assert len(read(tmp_path / "named" / "train")) == 2, "the former output stands"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("source", ["nowhere", "a/b/c", "./data/clips"])
def test_a_source_that_is_not_here(tmp_path, source):
    assert build(source, tmp_path / "out", expect=2) == "BUILD-SOURCE"


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ABC")), min_size=30, max_size=120),
    st.floats(0.1, 0.5),
    st.integers(),
)
def test_splits_keep_clips_together_and_answers_in_proportion(pairs, fraction, seed):
    items = {}
    for number, (clip, gt) in enumerate(pairs):
        turns = (Turn("user", "?"), Turn("assistant", gt))
        items[f"r{number}"] = Item(f"r{number}", (("video", Path(f"{clip}.mp4")),), turns)
    clips = {name: item.media[0][1] for name, item in items.items()}
    if len(set(clips.values())) * fraction < 1:
        return
    how = items, dataset_splits.Plan(fraction, seed=seed), dataset_splits.filmed_from(items)
    try:
        splits = dataset_splits.split(*how)
    except Failure as refused:  # one clip has most records: they would all be held out
        assert "more than half" in refused.findings[0].message and fraction <= 0.5
        return
    assert sorted(splits["train"] + splits["eval"]) == sorted(items)
    train, held_out = ({clips[name] for name in splits[part]} for part in ("train", "eval"))
    assert not train & held_out
    assert abs(len(held_out) - fraction * len(set(clips.values()))) <= 1
    assert splits == dataset_splits.split(*how)


@given(st.lists(st.text(), max_size=20))
def test_ids_are_unique_and_fit_for_files(names):
    ids = list(dataset_splits.named([Item(name, (), ()) for name in names], dataset_splits.Plan()))
    assert len(set(ids)) == len(ids)
    assert all(
        name.isascii() and 0 < len(name) < 140 and "/" not in name and name[0] != "."
        for name in ids
    )


def test_force_replaces_no_source(clips):
    assert build(clips, clips, "--force", expect=2) == "BUILD-OUTPUT-OVERLAPS"
    assert list(clips.glob("**/*.mp4"))


@pytest.mark.parametrize("output", ["data", "."])
def test_an_output_around_its_source_is_proposed_beside_it(clips, tmp_path, output):
    (clips / "annotations.json").write_text(json.dumps([record(0)]))
    (tmp_path / "data").mkdir()
    clips.rename(tmp_path / "data" / "sft")
    words = ["data/sft", "-o", output, "--json"]
    done = run_script("build_dataset.py", *words, cwd=tmp_path)
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["id"] == "BUILD-OUTPUT-OVERLAPS"
    words = ["data/sft", *shlex.split(finding["fix"])]
    assert run_script("build_dataset.py", *words, cwd=tmp_path).returncode == 0


def test_clips_without_labels_are_asked_about(tmp_path):
    for name in ("1.mp4", "2.mp4"):
        write_clip(tmp_path / "clips" / name, frames=8)
    assert build(tmp_path / "clips", tmp_path / "out", expect=2) == "BUILD-NO-LABELS"
    told = build(tmp_path, tmp_path / "elsewhere" / "out", expect=2)
    assert told == "BUILD-NO-LABELS", "one folder, one label"


USELESS = "--column foo=x|--column video=x|--fields a|--question On?|--hf-subset a"


@pytest.mark.parametrize("flags", [*USELESS.split("|"), "--hf-split train", "--subset -3"])
def test_flags_without_a_use_are_refused(clips, tmp_path, flags):
    (clips / "annotations.json").write_text(json.dumps([record(0)]))
    assert build(clips, tmp_path / "out", flags, expect=2) == "USAGE"


def test_reasoning_survives_every_format(clips, tmp_path):
    turns = [
        {"from": "human", "value": "Bright?"},
        {"from": "gpt", "value": "<think>\nIt glows.\n</think>\n\nYes"},
    ]
    (clips / "annotations.json").write_text(json.dumps([record(0, conversations=turns)]))
    source = clips
    for number, form in enumerate(["tao-vl-reason-v1.0", "cosmos-reason-v1.0", "llava"]):
        build(source, tmp_path / f"{number}", f"--format {form}")
        source = tmp_path / f"{number}" / "train"
        (sample,) = read(source)
        if form == "llava":
            assert sample.turns[1].text == turns[1]["value"]
        else:
            assert (sample.reasoning, sample.turns[1].text) == ("It glows.", "Yes")


def test_clips_in_tables_are_not_held_in_memory(tmp_path):
    content = [bytes([number]) * 2_000_000 for number in range(24)]
    table = arrow.table({"image": content, "label": [str(number % 2) for number in range(24)]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2, compression="none")
    del table
    before = arrow.total_allocated_bytes()
    reading = Reading(question="Which?")
    made, *_ = dataset_sources.read(
        dataset_sources.open_source(str(tmp_path / "a.parquet"), "auto", reading), reading
    )
    assert arrow.total_allocated_bytes() - before < 16_000_000, "two row groups"
    assert [item.media[0][1].load() for item in made] == content


def test_tables_saved_to_disk(clips, tmp_path):
    content = [(clips / "clips" / f"{number}.mp4").read_bytes() for number in range(4)]
    video = [{"bytes": data, "path": "x.mp4"} for data in content]
    rows = arrow.table({"video": video, "label": list("abab")})
    for split in ("train", "test"):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        name = "data-00000-of-00001.arrow"
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        for file in (name, "cache-0123456789abcdef.arrow"):
            kept = rows.slice(0, 3 if split == "test" else 4)
            with arrow.ipc.new_stream(str(folder / file), rows.schema) as stream:
                stream.write_table(kept, max_chunksize=2)
    for out, split, count in (("a", "train", 4), ("b", "test", 3)):
        flags = f"--hf-split {split} --question Which?"
        assert build(tmp_path / "saved", tmp_path / out, flags)["read"] == count
    sample = read(tmp_path / "b" / "eval")[2]
    assert (tmp_path / "b" / "eval" / sample.media[0].path).read_bytes() == content[2]
    refused = build(tmp_path / "saved", tmp_path / "c", "--hf-split tset", expect=2)
    assert refused == "BUILD-HF-SPLIT"


def test_names_that_several_clips_have_are_refused(clips, tmp_path):
    for folder in ("left", "right"):
        write_clip(clips / folder / "same.mp4", frames=8)
    table = write_csv(clips, ["clip,label", "same.mp4,rain", "clips/0.mp4,sun"])
    assert build(table, tmp_path / "out", expect=2) == "BUILD-MEDIA-AMBIGUOUS"
    table = write_csv(clips, ["clip,label", "0.mp4,rain", "clips/1.mp4,sun"])
    made = build(table, tmp_path / "out", "--question Sky?")
    assert made["read"] == 2, "found by its last part"


@pytest.mark.parametrize(
    "lines, finding",
    [
        (["clip,label", "clips/0.mp4,a,b"], "BUILD-TABLE"),
        (["clip,label", "clips/0.mp4,"], "BUILD-ANSWER-EMPTY"),
        (["clip,label,options", 'clips/0.mp4,A,"[left"'], "BUILD-OPTIONS"),
        (["clip,label", "../0.mp4,A"], "DATA-MEDIA-ESCAPE"),
        (["clip,label", "clips/none.mp4,A"], "BUILD-MEDIA-MISSING"),
        (["clip,label", ",A"], "BUILD-MEDIA-MISSING"),
        (["clip", "clips/0.mp4"], "BUILD-COLUMN"),
        (["clip,label"], "BUILD-EMPTY"),
        (["clip,label,label", "clips/0.mp4,a,b"], "BUILD-TABLE"),
        (["clip,label", 'clips/0.mp4,"yes'], "BUILD-TABLE"),
        (["clip,label,options", "clips/0.mp4,1,red|green|blue"], "BUILD-OPTIONS"),
        (["clip,label,options", "clips/0.mp4,D,red|green|blue"], "BUILD-OPTIONS"),
        (["clip,label", "/etc/passwd,a"], "DATA-MEDIA-UNDECODABLE"),
        (["clip,label", "clips/empty.mp4,a"], "DATA-MEDIA-EMPTY"),
        (["clip,label", "labels.csv,a"], "DATA-MEDIA-UNDECODABLE"),
        (["clip,label", "\udcff,A"], "BUILD-TABLE"),
    ],
)
def test_bad_tables(clips, tmp_path, lines, finding):
    (clips / "labels.csv").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    (clips / "clips" / "empty.mp4").touch()
    line = f"build_dataset.py {clips / 'labels.csv'} -o {tmp_path / 'out'} --question ? --json"
    done = run_script(line)
    assert json.loads(done.stdout)["findings"][0]["id"] == finding
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
