import copy
import json
import shutil

import numpy as np
import pytest
from clip_files import record, write_clip
from PIL import Image
from torch.utils.data import DataLoader

from cosmos_reason.base.findings import EXIT_OUTSIDE, Failure, outside
from cosmos_reason.data.frames import Sampler
from cosmos_reason.engine import conversations
from cosmos_reason.jobs import evidence
from cosmos_reason.media import sampling
from cosmos_reason.media.sampling import VisionOptions


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Four clips of 16 frames at 8 per second and a picture, without annotations."""
    folder = tmp_path_factory.mktemp("media")
    for number in range(4):
        write_clip(folder / f"{number}.mp4", tint=number)
    Image.fromarray(np.full((40, 64, 3), 200, np.uint8)).save(folder / "still.png")
    return folder


def spec(path, root, vision=None, **table):
    return {
        "policy": {"model_name_or_path": "nvidia/Cosmos-Reason2-8B"},
        "train": {"train_policy": {"system_prompt": "Watch."}},
        "custom": {
            "vision": vision or {"nframes": 4, "resized_height": 96, "resized_width": 128},
            "train_dataset": {"annotation_path": str(path), "media_path": str(root), **table},
        },
    }


def opened(root, folder, records, kind=conversations.Conversations, **options):
    path = folder / "annotations.json"
    path.write_text(json.dumps(records))
    return conversations.of_spec(spec(path, root, **options), "train_dataset", kind)


def talk(*texts, **fields):
    speakers = ("human", "gpt") * len(texts)
    turns = [{"from": who, "value": text} for who, text in zip(speakers, texts, strict=False)]
    return {"id": "a", "conversations": turns, **fields}


def test_an_item_has_all_turns_and_its_media_before_the_first_question(root, tmp_path):
    texts = ("<video>\n<image>\nWhat is it?", "A car.", "Sure?", "Yes")
    made = opened(root, tmp_path, [talk(*texts, video="0.mp4", image="still.png")])
    system, first, answer, second, last = made[0]
    assert system == {"role": "system", "content": [{"type": "text", "text": "Watch."}]}
    assert [part["type"] for part in first["content"]] == ["video", "image", "text"]
    assert first["content"][2]["text"] == "What is it?"
    assert answer == {"role": "assistant", "content": "A car."}
    assert second == {"role": "user", "content": [{"type": "text", "text": "Sure?"}]}
    assert last["content"] == "Yes"


def test_frames_are_those_of_our_sampler_with_their_times(root, tmp_path):
    made = opened(root, tmp_path, [talk("<video>\nWhat?", "B", video="1.mp4")])
    clip = made[0][1]["content"][0]
    options = VisionOptions(nframes=4, resized_height=96, resized_width=128)
    indices = sampling.frame_indices(16, 8.0, options)
    assert clip["seconds"] == [index / 8 for index in indices]
    assert clip["sample_fps"] == pytest.approx(4 / (16 / 8)), "as qwen-vl-utils tells it"
    levels = [round(float(np.asarray(picture).mean())) for picture in clip["video"]]
    assert levels == pytest.approx([6 * index + 1 for index in indices], abs=2)
    assert {picture.size for picture in clip["video"]} == {(128, 96)}
    assert (clip["resized_height"], clip["resized_width"]) == (96, 128)


def test_a_rate_samples_each_clip_by_its_own(root, tmp_path):
    write_clip(tmp_path / "slow.mp4", rate=4)
    records = [
        talk("<video>\nWhat?", "B", video=str(path))
        for path in (root / "0.mp4", tmp_path / "slow.mp4")
    ]
    made = opened(root, tmp_path, records, vision={"fps": 2})
    counts = [len(made[index][1]["content"][0]["video"]) for index in range(2)]
    assert counts == [4, 8]  # two and four seconds


def test_a_media_root_of_the_spec_is_where_media_lie(root, tmp_path):
    path = tmp_path / "annotations.json"
    path.write_text(json.dumps([talk("<video>\nWhat?", "B", video="0.mp4")]))
    table = spec(path, tmp_path / "elsewhere", media_root=str(root))
    assert not conversations.missing_media(conversations.of_spec(table, "train_dataset"))


def test_nothing_is_changed_by_being_read(root, tmp_path):
    records = [talk("<image>\n<image>\nWhat?", "B", images=["still.png", "still.png"])]
    made = opened(root, tmp_path, records)
    before = copy.deepcopy(made.samples)
    first, again = made[0], made[0]
    first[1]["content"].clear()
    assert len(again[1]["content"]) == 3 and len(made[0][1]["content"]) == 3
    assert made.samples == before


@pytest.mark.parametrize(
    "mode, answers",
    [
        ("answer", ["B"]),
        ("think", ["<think>\nSeen.\n</think>\n\nB"]),
        ("hybrid", ["B", "<think>\nSeen.\n</think>\n\nB"]),
    ],
)
def test_reasoning_becomes_what_response_mode_says(root, tmp_path, mode, answers):
    item = {"video_id": "0.mp4", "question": "Which?", "answer": "B", "reasoning": "Seen."}
    daft = {"format": "tao-vl-reason-v1.0", "metadata": {"type": "annotation", "license": "x"}}
    path = tmp_path / "daft.json"
    path.write_text(json.dumps(daft | {"items": [item]}))
    made = conversations.of_spec(spec(path, root, response_mode=mode), "train_dataset")
    assert [made[index][-1]["content"] for index in range(len(made))] == answers


def broken_in_the_middle(root, tmp_path, count):
    """As many records, one clip each; that of record 1 is cut off after it was checked."""
    folder = tmp_path / "copies"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.mp4").write_bytes((root / f"{number % 4}.mp4").read_bytes())
    (folder / "1.mp4").write_bytes((root / "1.mp4").read_bytes()[:400])
    records = [record(number, answer=str(number), video=f"{number}.mp4") for number in range(count)]
    return opened(folder, tmp_path, records)


def last_words(item):
    return item[-1]["content"]


def test_a_clip_that_breaks_is_named_and_the_next_record_stands_in(root, tmp_path, capsys):
    made = broken_in_the_middle(root, tmp_path, 4)
    assert [last_words(made[index]) for index in range(4)] == ["0", "2", "2", "3"]
    told = capsys.readouterr().err
    assert told.count("skipped record") == 1
    assert len(evidence.SKIPPED.findall(told)) == 1, "as the reason of COMPLETE counts them"
    assert "1 of at most 1" in told and "DATA-MEDIA-UNDECODABLE" in told and "1.mp4" in told


def test_too_many_broken_clips_end_the_training(root, tmp_path):
    made = broken_in_the_middle(root, tmp_path, 4)
    (tmp_path / "copies" / "2.mp4").write_bytes(b"nothing")
    assert last_words(made[0]) == "0"
    with pytest.raises(Failure, match="got 2 of 4 records whose media cannot be read"):
        made[1]


def test_the_workers_of_a_loader_count_together(root, tmp_path):
    made = broken_in_the_middle(root, tmp_path, 4)
    loader = DataLoader(made, batch_size=1, num_workers=2, collate_fn=list)
    for _ in range(2):
        assert [last_words(item) for (item,) in loader] == ["0", "2", "2", "3"]
    assert list(made.skipped) == [0, 1, 0, 0]


def test_a_server_that_fails_is_no_broken_clip(root, tmp_path):
    made = opened(root, tmp_path, [talk("<video>\nWhat?", "B", video="0.mp4")])

    class Unreachable(Sampler):
        def load(self, item):
            raise outside("S3-UNREACHABLE", "s3://bucket", "got no answer")

    made.sampler = Unreachable("", VisionOptions(nframes=4), 16)
    with pytest.raises(Failure) as raised:
        made[0]
    assert raised.value.exit_code == EXIT_OUTSIDE
    assert not any(made.skipped)


def test_files_that_are_not_there_are_one_finding(root, tmp_path):
    videos = ["0.mp4", "gone.mp4", "far.mp4"]
    made = opened(root, tmp_path, [talk("<video>\nWhat?", "B", video=name) for name in videos])
    (finding,) = conversations.missing_media(made)
    assert finding.id == "DATA-MEDIA-MISSING" and finding.where == str(root)
    assert finding.message.startswith("got 2 of 3 files that are not there: ")
    assert "far.mp4" in finding.message and "0.mp4" not in finding.message


def test_a_table_without_annotations_says_so(root):
    with pytest.raises(Failure, match=r"custom.train_dataset.annotation_path: got nothing"):
        conversations.of_spec(spec("", root), "train_dataset")


def test_records_that_are_no_samples_are_refused(root, tmp_path):
    with pytest.raises(Failure, match="DATA-TURN-ROLE"):
        opened(root, tmp_path, [{"id": "a", "conversations": [{"from": "robot", "value": "x"}]}])


def test_a_prompt_ends_before_the_answer_and_each_answer_has_one(root, tmp_path):
    records = [talk("<video>\nWhich?", "B", "Sure?", "Yes", video="0.mp4")]
    made = opened(root, tmp_path, records, conversations.Prompts)
    assert len(made) == 2
    assert [turn["role"] for turn in made[0]] == ["system", "user"]
    assert [turn["role"] for turn in made[1]] == ["system", "user", "assistant", "user"]
    assert made.questions[1].gt == "Yes"


def test_a_prompt_that_breaks_is_lost_alone_and_the_next_is_paid_by_its_own_answer(
    root, tmp_path, capsys
):
    """The policy may be asked for it before the rollout, and the answer before either."""
    records = [
        talk("<video>\nWhich?", f"answer {number}", video=f"{number}.mp4", id=f"r{number}")
        for number in range(3)
    ]
    root = shutil.copytree(root, tmp_path / "media")
    (root / "1.mp4").write_bytes(b"broken since it was checked")
    for first in ("answer", "prompt"):
        made = opened(root, tmp_path, records, conversations.Prompts)
        if first == "answer":
            assert made.asked(1).gt == "answer 2"
        assert made[1] == made[2] != made[0]
        assert made.asked(1).gt == "answer 2" and made.asked(0).gt == "answer 0"
        said = capsys.readouterr().err
        assert said.count("skipped record r1 of train_dataset (1 of at most 1, of 3 in all)") == 1
    (root / "2.mp4").write_bytes(b"broken, too")
    made = opened(root, tmp_path, records, conversations.Prompts)
    with pytest.raises(Failure, match="DATA-MEDIA-BREAKING"):
        made[1]


def test_a_prompt_that_is_skipped_elsewhere_is_not_shown_again(root, tmp_path):
    """All processes count together: the answer is that of the prompt that stands in for it."""
    records = [
        talk("<video>\nWhich?", f"answer {number}", video=f"{number}.mp4", id=f"r{number}")
        for number in range(2)
    ]
    made = opened(root, tmp_path, records, conversations.Prompts)
    shown = made[0]
    made.skipped[0] = 1
    assert made[0] == made[1] != shown and made.asked(0).gt == "answer 1"
