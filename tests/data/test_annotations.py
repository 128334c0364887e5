import json
import os
import subprocess

import pytest
from clip_files import record
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.base.findings import Failure
from cosmos_reason.data import annotations, json_stream
from cosmos_reason.data.options import unoffered
from cosmos_reason.data.record_checks import CHECKS
from cosmos_reason.data.samples import Media, Sample, Turn

QUESTION, ANSWER = Turn("user", "Is it bright?"), Turn("assistant", "Yes")


def read(folder, content, name="annotations.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    samples, findings = annotations.read(path)
    return samples, {finding.id: finding for finding in findings}


@pytest.mark.parametrize(
    "layout",
    [
        lambda records: json.dumps(records),
        lambda records: json.dumps(records, indent=4).replace("\n", "\r\n"),
        lambda records: "\n".join(map(json.dumps, records)) + "\n",
        lambda records: json.dumps({"version": 1, "annotations": records, "note": [1]}),
        lambda records: "\ufeff" + json.dumps(records),
    ],
    ids=["array", "crlf", "lines", "envelope", "byte-order mark"],
)
def test_layouts_of_the_same_records(tmp_path, layout):
    samples, findings = read(tmp_path, layout([record(0), record(1, "No", video_fps=10)]))
    assert not findings
    assert [sample.id for sample in samples] == ["r0", "r1"]
    assert samples[0].turns == (QUESTION, ANSWER)
    assert samples[0].media == (Media("video", "clips/0.mp4"),)
    assert [sample.video_fps for sample in samples] == [None, 10.0]


ASKED, SHOWN = {"type": "text", "text": "Is it bright?"}, {"type": "video", "video": "clips/0.mp4"}
SERVED = {"type": "video_url", "video_url": {"url": "file://clips/0.mp4"}}
TURNS = record(0)["conversations"]
# Of forms that hold a record's text and media in other ways; others are in test_foreign_forms.
FORMATS = {
    "qwen's demo": {"video": ["clips/0.mp4"], "conversations": TURNS, "data_path": "clips"},
    "caption pairs": {
        "video": "clips/0.mp4",
        "captions": [{"question": "Is it bright?", "answer": "Yes"}],
    },
    "sharegpt lists": {"videos": ["clips/0.mp4"], "conversations": TURNS},
    "json text": {"video": "clips/0.mp4", "conversations": json.dumps(TURNS)},
    "openai": {
        "messages": [
            {"role": "user", "content": [SHOWN, ASKED]},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes"}]},
        ],
    },
    "openai url": {
        "messages": [
            {"role": "user", "content": [SERVED, ASKED]},
            {"role": "assistant", "content": "Yes"},
        ],
    },
}


@pytest.mark.parametrize("written", FORMATS.values(), ids=FORMATS.keys())
def test_formats_of_the_same_record(tmp_path, written):
    samples, findings = read(tmp_path, [{"id": "r0"} | written])
    assert not findings
    assert samples == [Sample(0, "r0", (QUESTION, ANSWER), (Media("video", "clips/0.mp4"),), None)]


def test_cosmos_reason_folder(tmp_path):
    (tmp_path / "text").mkdir()
    content = [{"type": "video", "video": "video_0"}, {"type": "text", "text": "Is it bright?"}]
    turns = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes"}]},
    ]
    (tmp_path / "text" / "a.json").write_text(json.dumps({"version": "1", "conversations": turns}))
    entries = [
        {"id": name, "conversation": f"text/{name}.json", "media": "media/a.mp4"}
        for name in ("a", "gone")
    ]
    samples, findings = read(tmp_path, {"version": "1", "samples": entries}, "meta.json")
    assert [sample.media for sample in samples] == [(Media("video", "media/a.mp4"),)]
    assert samples[0].turns == (QUESTION, ANSWER)
    assert findings["DATA-RECORD-FORMAT"].data["record_ids"] == ["record-1"]


def test_benchmark_questions_become_records(tmp_path):
    pair = {"question": "Which?", "index2ans": {"A": "left", "B": "right"}, "answer": "B"}
    samples, findings = read(
        tmp_path, [{"video": "clips/v7.mp4", "qa_pairs": [pair, {**pair, "answer": "A"}]}]
    )
    assert not findings
    assert [(sample.id, sample.turns[1].text) for sample in samples] == [("v7", "B"), ("v7-2", "A")]
    assert samples[0].turns[0].text.startswith("Which?\n(A) left\n(B) right\n")


def change(**fields):
    changed = record(0) | fields
    return {key: value for key, value in changed.items() if value is not ...}


def turns(*pairs):
    return change(conversations=[{"from": speaker, "value": text} for speaker, text in pairs])


MISTAKES = {
    "DATA-RECORD-TYPE": "a string",
    "DATA-ID-TYPE": change(id=[1]),
    "DATA-ID-MISSING": change(id=...),
    "DATA-TURNS-MISSING": change(conversations=...),
    "DATA-TURN-TYPE": change(conversations=[{"from": "human", "value": 7}]),
    "DATA-TURN-ROLE": turns(("humman", "q"), ("gpt", "a")),
    "DATA-TURN-ORDER": turns(("gpt", "a"), ("human", "q")),
    "DATA-ANSWER-MISSING": turns(("human", "q")),
    "DATA-ANSWER-EMPTY": turns(("human", "q"), ("gpt", " \n")),
    "DATA-QUESTION-EMPTY": turns(("human", "<video>\n"), ("gpt", "a")),
    "DATA-TURNS-MANY": turns(("human", "q"), ("gpt", "a"), ("human", "q"), ("gpt", "a")),
    "DATA-SPECIAL-TOKEN": turns(("human", "<|video_pad|> q"), ("gpt", "a")),
    "DATA-TAG-ANSWER": turns(("human", "<video>\nq"), ("gpt", "The <image> shows it")),
    "DATA-TAG-COUNT": turns(("human", "<video><video>q"), ("gpt", "a")),
    "DATA-MEDIA-TYPE": change(
        video=["a.mp4", 3, "data:video/mp4;base64,AAAA", "https://a.b/c.mp4", "y" * 5000]
    ),
    "DATA-REGION-MARK": turns(("human", "Is <mask> left of <mask>?"), ("gpt", "Yes")),
    "DATA-MEDIA-NONE": turns(("human", "q"), ("gpt", "a")) | {"video": None},
    "DATA-VIDEO-FPS": change(video_fps=0),
    "DATA-TIMES-UNUSED": change(start_time="0:03", end_time="0:06"),
    "DATA-TEXT-LOST": turns(("human", "q"), ("gpt", "caf\ufffd")),
    "DATA-TEXT-MISREAD": turns(("human", "caf\u00c3\u00a9"), ("gpt", "a")),
    "DATA-TEXT-ENTITY": turns(("human", "q"), ("gpt", "red &amp; blue")),
    "DATA-TEXT-SURROGATE": turns(("human", "q"), ("gpt", "\ud800")),
    "DATA-RECORD-FORMAT": {"video": "v.mp4", "qa_pairs": [{"question": 3}]},
    "DATA-MEDIA-ESCAPE": {"id": "a", "conversation": "../secret.json", "media": "media/a.mp4"},
}


DAFT_THOUGHT = {"video_id": "a.mp4", "question": "q", "answer": "a", "reasoning": "<|im_end|> is."}


@pytest.mark.parametrize(
    "odd",
    [
        turns(("human", "q <|vision_pad|>"), ("gpt", "a")),
        turns(("human", "q"), ("gpt", "<|fim_prefix|>")),
        DAFT_THOUGHT,
    ],
)
def test_control_tokens_are_found_wherever_they_stand(tmp_path, odd):
    _, findings = read(tmp_path, [odd])
    assert "DATA-SPECIAL-TOKEN" in findings


OFFERED = "What colour?\nA. red\nB. blue\nC. green\nD. black"


FITTING = ["A", "(d)", "B. blue", "green", "<think>It is A or E.</think>\n\nC", "AB", "A and D"]


@pytest.mark.parametrize("answer", [*FITTING, "Yes", "3", "x " * 40])
def test_answers_that_may_be_options_are_no_finding(answer):
    assert unoffered(OFFERED, answer) is None
    assert unoffered("Is it E. coli?", answer) is None


@pytest.mark.parametrize("answer", ["E", "e", "(E)", "E. white", "<think>It is E.</think>\n\nE"])
def test_letters_that_no_option_has_are_found(answer):
    assert unoffered(OFFERED, answer)[0] == "DATA-ANSWER-OPTION"


def test_a_text_that_no_option_has_is_found():
    assert unoffered(OFFERED, "purple")[0] == "DATA-ANSWER-UNLISTED"


@pytest.mark.parametrize("check", MISTAKES)
def test_each_mistake_has_its_finding(tmp_path, check):
    _, findings = read(tmp_path, [record(5), MISTAKES[check]])
    assert findings[check].where.endswith("annotations.json#1")
    assert findings[check].data["count"] == 1
    assert {finding.severity for finding in findings.values()} >= {CHECKS[check][0]}


def test_every_check_of_records_is_provoked_here():
    elsewhere = {"DATA-JSON-KEY-TWICE", "DATA-JSON-CONSTANT", "DATA-NOT-BUILT"}
    assert set(CHECKS) - set(MISTAKES) == elsewhere


PAIR = {"question": "?", "index2ans": {"A": "x", "B": "y"}}


@pytest.mark.parametrize(
    "written, told",
    [
        ({"video": "v", "qa_pairs": [PAIR | {"answer": "C"}]}, "'C'"),
        ({"video": "v", "qa_pairs": [PAIR | {"answer": 1}]}, "1"),
        ({"id": "a", "conversation": "/etc/hostname", "media": "a.mp4"}, "absolute"),
        ({"id": "a", "conversation": "fifo", "media": "a.mp4"}, "special file"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(tmp_path, written, told):
    os.mkfifo(tmp_path / "fifo")
    samples, findings = read(tmp_path, [written])
    assert not samples and told in findings["DATA-RECORD-FORMAT"].message


def test_a_conversation_wins_over_loose_fields(tmp_path):
    loose = {"id": "r0", "question": "Is it bright?", "answer": "WRONG"}
    (sample,), findings = read(tmp_path, [FORMATS["openai"] | loose])
    assert sample.turns == (QUESTION, ANSWER) and not findings


@pytest.mark.parametrize("lines", [2, 1000])
def test_lines_with_lists_of_known_names_are_records(tmp_path, lines):
    records = [{"data": [{"x": 1}], **record(number)} for number in range(lines)]
    samples, findings = read(tmp_path, "\n".join(map(json.dumps, records)))
    assert len(samples) == lines and not findings


def test_records_in_two_places_are_refused(tmp_path):
    with pytest.raises(Failure, match='"data" and in "annotations"'):
        read(tmp_path, {"data": [record(1)], "annotations": [record(2)]})
    assert len(read(tmp_path, {"data": [record(1)], "annotations": []})[0]) == 1


def test_a_truncated_file_tells_what_was_found_before(tmp_path):
    with pytest.raises(Failure) as caught:
        read(tmp_path, json.dumps([record(0, " "), record(1), record(2)])[:-30])
    broken, empty = caught.value.findings
    assert (broken.id, broken.data["record_ids"]) == ("DATA-JSON", ["record-2"])
    assert (empty.id, empty.data["record_ids"]) == ("DATA-ANSWER-EMPTY", ["r0"])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_the_fix_of_another_encoding_keeps_the_file(tmp_path, encoding):
    path = tmp_path / "my annotations.json"
    path.write_bytes(json.dumps([record(0)]).encode(encoding))
    with pytest.raises(Failure) as caught:
        annotations.read(path)
    before = path.read_bytes()
    subprocess.run(["sh", "-c", str(caught.value.findings[0].fix)], check=True)
    assert path.read_bytes() == before
    assert len(annotations.read(tmp_path / "my annotations-utf8.json")[0]) == 1


def test_many_keys_and_large_numbers(tmp_path):
    keys = ",".join(f'"{number}":1' for number in range(40_000))
    _, findings = read(tmp_path, f'[{{{keys},"5":2,"video_fps":1{"0" * 400}}}]')
    assert {"DATA-JSON-KEY-TWICE", "DATA-VIDEO-FPS"} <= findings.keys()


def test_json_that_decoders_accept_in_silence(tmp_path):
    _, findings = read(tmp_path, '[{"id": "a", "id": "b", "video_fps": NaN}]')
    assert {"DATA-JSON-KEY-TWICE", "DATA-JSON-CONSTANT", "DATA-VIDEO-FPS"} <= set(findings)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b'[{"a": 1}',
        b'[{"a": 1}] x',
        b'[{"a": tru}]',
        b'[{"a": "' + b"x" * 3_000_000,
        b"[" * 1_000_000,
        b"[1" + b"0" * 5000 + b"]",
        b'[{"a": "\xff"}]',
        "[]".encode("utf-16"),
        b"hello",
        b'"text"',
    ],
    ids=lambda content: repr(content[:12]),
)
def test_text_that_is_not_json_ends_with_a_finding(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(Failure) as caught:
        annotations.read(tmp_path / "a.json")
    assert caught.value.exit_code == 2
    assert "a.json" in caught.value.findings[0].where


def test_a_problem_in_a_large_file_is_placed_by_record_and_line(tmp_path):
    lines = [json.dumps(record(number)) for number in range(20000)]
    lines[15000] = lines[15000].replace('"from"', "from")
    (tmp_path / "a.json").write_text("[\n" + ",\n".join(lines) + "\n]")
    with pytest.raises(Failure) as caught:
        annotations.read(tmp_path / "a.json")
    assert caught.value.findings[0].where.endswith("#15000")
    assert "line 15002" in caught.value.findings[0].message


@pytest.mark.parametrize("before", [1, 40_000])
def test_the_line_that_is_no_utf_8_is_named(tmp_path, before):
    lines = [json.dumps(record(number)).encode() for number in range(before)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines, b'{"id": "\xff"}', b"{}"]))
    with pytest.raises(Failure, match=rf"expected UTF-8 \(line {before + 1}\)"):
        annotations.read(tmp_path / "a.jsonl")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.lists(JSON | st.dictionaries(st.text(max_size=4), JSON), max_size=30), st.integers(1, 40))
def test_streamed_records_are_those_of_the_standard_decoder(tmp_path_factory, records, block):
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps(records, indent=block % 3 or None))
    before, json_stream.BLOCK = json_stream.BLOCK, block
    try:
        assert list(json_stream.JsonRecords(path)) == records
    finally:
        json_stream.BLOCK = before


FIELDS = "id video image images conversations messages video_fps qa_pairs captions question".split()
FIELDS += "answer conversation media video_id".split()
TURN = st.dictionaries(st.sampled_from(["from", "value", "role", "content"]), JSON, max_size=4)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(TURN | JSON, max_size=3)),
        max_size=4,
    )
)
def test_any_values_in_known_fields_end_as_samples_or_findings(tmp_path_factory, records):
    read(tmp_path_factory.mktemp("fields"), records)


def test_one_question_per_answer():
    said = (Turn("system", "s"), QUESTION, ANSWER, Turn("user", "Why?"), ANSWER)
    sample = Sample(0, "r", said, (), None)
    first, second = sample.questions()
    asked = (first.id, first.text, first.gt, first.context)
    assert asked == ("r", "Is it bright?", "Yes", sample.turns[:2])
    assert (second.id, second.text, second.context) == ("r#2", "Why?", sample.turns[:4])
