"""What is looked for in a dataset, and everything found as findings; its size."""

from __future__ import annotations

import shlex
from pathlib import Path

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.base.files import write_text
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import overlap
from cosmos_reason.data.record_checks import ANSWER_CHECKS
from cosmos_reason.data.record_checks import CHECKS as RECORD_CHECKS
from cosmos_reason.data.survey import Survey
from cosmos_reason.spec.keys import DROP_LAST, RESPONSE_MODE

# id -> (severity, what is checked, how to mend it)
# fmt: off
CHECKS = RECORD_CHECKS | {
    **ANSWER_CHECKS,
    "DATA-EMPTY": (f.ERROR, "the file has records", "check the path"),
    "DATA-ID-UNSAFE": (f.WARNING, "ids can be file names (evaluation needs it)",
        "use letters, digits, . _ - in ids"),
    "DATA-ID-DUPLICATE": (f.WARNING, "ids are unique (evaluation needs it)",
        "give every record its own id"),
    "DATA-QUESTION-DUPLICATE": (f.WARNING, "a clip is asked a question once",
        "remove the repeated records"),
    "DATA-ANSWER-CONFLICT": (f.ERROR,
        "the same question on the same clip has one yes or no, letter, number or direction",
        "decide which is right (build_dataset.py --column annotator=NAME settles several answers)"),
    "DATA-ANSWER-SEVERAL": (f.WARNING, "the same question on the same clip has one text as answer",
        "decide which is right, unless all are, as captions may be"),
    "DATA-ANSWER-FORM": (f.WARNING, "an answer is written in one form",
        "write it as most records do (build_dataset.py does so with the rows of a table)"),
    "DATA-ANSWER-ONE": (f.ERROR, "a dataset has two answers or more",
        "add records with another answer (build_dataset.py --also-ask-absent makes them of "
        "events)"),
    "DATA-SHORTCUT": (f.WARNING,
        "neither the question alone nor length, frames, rate or size of a clip give answers away",
        "cut or choose clips so that each answer has all lengths and sizes, each question all "
        "answers"),
    "DATA-SHORTCUT-NAME": (f.INFO,
        "names of clips do not give the answer away (a model does not see them, but the camera or "
        "the recording that they are called by)", "record every answer with every camera"),
    "DATA-MEDIA-OUTSIDE": (f.WARNING, "media are below the media path",
        "mount that folder too, or copy the media"),
    "DATA-MEDIA-MISSING": (f.ERROR, "media files exist", "copy the files or correct --media-path"),
    "DATA-MEDIA-UNOPENED": (f.INFO, "media are opened, not only listed",
        Fix(flags={"--decode": "sampled"})),
    "DATA-MEDIA-EMPTY": (f.ERROR, "media files are not empty", "copy the files again"),
    "DATA-MEDIA-UNDECODABLE": (f.ERROR, "media decode",
        "encode the files again or remove the records"),
    "DATA-MEDIA-TIMEOUT": (f.ERROR, "media decode in time",
        "--timeout 120, or encode the files again"),
    "DATA-MEDIA-CRASH": (f.ERROR, "media do not crash the decoder",
        "encode the files again or remove the records"),
    "DATA-MEDIA-KIND": (f.ERROR, "videos are videos, images are images",
        'name images by "image", clips by "video"'),
    "DATA-MEDIA-FRAMES": (f.WARNING,
        "containers tell how many frames decode (some readers ask for that many), and folders of "
        "pictures have one for each number", "encode the files again"),
    "DATA-FRAMES-RATE": (f.WARNING, "videos of pictures state how many a second they are",
        'write "sample_fps" beside "video"'),
    "DATA-FRAMES-SIZE": (f.ERROR, "the pictures of a video have one size",
        "write them again in one size"),
    "DATA-FRAMES-ALL": (f.WARNING,
        "lists of pictures are no longer than what the spec samples (all of them are shown)",
        "name the folder of the pictures instead of a list: folders are sampled"),
    "DATA-MEDIA-DEPTH": (f.ERROR, "images have 8 bits per value (readers cut off at 255)",
        "convert the images"),
    "DATA-MEDIA-ANIMATED": (f.ERROR, "images do not move (readers show the first picture)",
        "convert them to clips, or to still images"),
    "DATA-MEDIA-TURNED": (f.WARNING, "pixels stand upright in the file (readers differ)",
        "turn the pixels"),
    "DATA-ARCHIVE": (f.ERROR,
        "archives can be read to their end and hold ordinary files of different names",
        "pack the files again: tar --dereference --hard-dereference -czf videos.tar.gz -C FOLDER "
        "."),
    "DATA-ARCHIVE-DISK": (f.ERROR, "archives have room to be unpacked",
        "set COSMOS_CACHE and TMPDIR to a larger disk"),
    "DATA-CACHE": (f.INFO, "examined files are remembered for the next run",
        "set COSMOS_CACHE to a writable folder"),
    overlap.CLIP: (f.ERROR, "evaluation clips, or times of them, are not in the training data", ""),
    overlap.QUESTION: (f.ERROR, "evaluation questions are not in the training data", ""),
    overlap.NEARBY: (f.WARNING,
        f"parts of one recording in training and evaluation are {overlap.NEAR:g} s apart", ""),
    overlap.ALIKE: (f.WARNING, "no evaluation clip is one of training, encoded, scaled or cut anew",
        "build both sides of one source, where --column group=NAME keeps copies together"),
    "DATA-SIZE": (f.INFO,
        "training data have 1,000 questions at least, better 10,000, for production 50,000",
        "label more"),
    "DATA-EVAL-SMALL": (f.WARNING, "held-out data have 30 questions, and 5 of each answer", ""),
    "DATA-EVAL-WORDING": (f.INFO, "evaluation asks in the words of training",
        "word the questions alike"),
    "DATA-TOKENS": (f.ERROR, "samples fit policy.model_max_length",
        "raise it, or take fewer frames or pixels"),
    "DATA-CLIP-TOO-SHORT": (f.ERROR, "clips have the frames the spec samples",
        "remove the records: 2 is the least"),
    "DATA-FPS-MISSING": (f.WARNING,
        "records give video_fps when the spec samples by fps (an error in training with engine "
        "tao)", 'add "video_fps" to the records, as build_dataset does'),
    "DATA-VIDEO-FPS-OTHER": (f.ERROR, "video_fps is the rate of the clip (tao samples by it)",
        'correct "video_fps"'),
    "DATA-CLIP-EMPTY": (f.ERROR, "clips have frames and a rate", "encode the files again"),
    "DATA-MEDIA-RATIO": (f.ERROR, "sides of media are within 200:1", "crop the files"),
    "DATA-REASONING": (f.WARNING, "reasoning beside the answers is trained",
        Fix(changes={RESPONSE_MODE: "think"})),
    "DATA-STEPS-NONE": (f.ERROR, "at least one optimizer step runs",
        Fix(changes={DROP_LAST: False})),
}
# fmt: on
# Questions that training data have -> what so many are.
SMALL = "small-dataset"  # the profile for fewer than the least
SIZES = {1_000: "are the least", 10_000: "recommended", 50_000: "for production"}
EVALUATION_ERRORS = ("DATA-ID-MISSING", "DATA-ID-UNSAFE", "DATA-ID-DUPLICATE")


def check_size(dataset: Survey) -> None:
    """Report training data with fewer questions than any of the recommendations."""
    questions = sum(dataset.asked)
    if questions >= max(SIZES):
        return
    sizes = ", ".join(f"{count:,} {meaning}" for count, meaning in SIZES.items())
    if questions < min(SIZES):
        epochs = bundle.skill_info()["profiles"][SMALL]["set"]["train.epoch"]
        sizes += f" (--profile {SMALL}: {epochs} epochs, a save each)"
    dataset.tally.add("DATA-SIZE", 0, "-", f"got {questions:,} questions: {sizes}")


def findings(
    dataset: Survey, evaluation: bool = False, folder: Path | None = None
) -> list[f.Finding]:
    """Return everything found, one finding per check; problems of evaluation become errors in
    evaluation data. That no record at all names a medium is a warning: its key may be one that
    nobody reads.

    A finding about more records than it can carry lists their ids in a file in `folder`.
    """
    checks = dict(CHECKS)
    if evaluation:
        for check in EVALUATION_ERRORS:
            checks[check] = (f.ERROR, *CHECKS[check][1:])
    without = dataset.tally.ids.get("DATA-MEDIA-NONE", [])
    if dataset.ids and len(without) == len(dataset.ids):
        _, checked, _ = checks["DATA-MEDIA-NONE"]
        command = shlex.join(["scripts/build_dataset.py", str(dataset.source), "-o", "data"])
        checks["DATA-MEDIA-NONE"] = (f.WARNING, checked, Fix(command=command))
    reported = dataset.tally.findings(checks, dataset.source, max(dataset.read, len(dataset.ids)))
    for finding in reported:
        if folder and finding.data["count"] > f.MAX_RECORD_IDS:
            path = folder / f"{finding.id}.txt"
            unique_ids = dict.fromkeys(dataset.tally.ids[finding.id])
            write_text(path, "\n".join(unique_ids) + "\n")
            finding.data["file"] = str(path)
    return reported
