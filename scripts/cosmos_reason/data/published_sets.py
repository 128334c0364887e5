"""Columns of published sets whose names alone do not say what they hold: one row per set."""

from __future__ import annotations

# set -> {column: role}. A set is known by these columns, all of which its tables have but for those
# with a question mark. Its other columns have the roles of their names.
SETS = {
    "Video-R1": {
        "path": "video",
        "problem": "question",
        "solution": "answer",
        "process?": "reasoning",
    },
    "LongVideoBench": {"candidates": "options", "correct_choice": "answer_from_0"},
    # `reasoning` is the kind of reasoning there (Descriptive, Predictive): no text to train on.
    "Perception Test": {
        "question": "question",
        "options": "options",
        "answer_id": "answer_from_0",
        "reasoning": "ignore",
    },
    "TVQA": {"vid_name": "video", "q": "question", "answer_idx": "answer_from_0"},
    "CinePile": {"choices": "options", "answer_key_position": "answer_from_0"},
    "HourVideo": {
        "question": "question",
        "correct_answer_label": "answer",
        "answer_1": "options",
        "answer_2": "options",
        "answer_3?": "options",
        "answer_4?": "options",
        "answer_5?": "options",
    },
    "VSI-Bench": {"scene_name": "video", "question": "question", "ground_truth": "answer"},
    "EgoSchema": {"video_idx": "video", "question": "question", "option": "options"},
    # `video_id` is the number of a video in the set: the files are called by `videoID`.
    "Video-MME": {"videoID": "video", "question": "question", "options": "options"},
    "SUTD-TrafficQA": {"vid_filename": "video", "q_body": "question", "answer": "answer"},
    # Label tools, in the columns that label_tools.py makes of their exports.
    "Label Studio": {
        "annotator": "annotator",
        "annotation_id": "ignore",
        "lead_time": "ignore",
        "created_at?": "ignore",
        "updated_at?": "ignore",
        "start_frame?": "start_frame",
        "end_frame?": "end_frame",
        "start?": "start",
        "end?": "end",
    },
    "CVAT": {"track": "ignore", "start_frame": "start_frame", "end_frame": "end_frame"},
    "VIA": {"via_id": "id", "start?": "start", "end?": "end"},
    "FiftyOne": {
        "fiftyone_id": "id",
        "start_frame?": "start_frame",
        "end_frame?": "end_frame",
    },
    "CLEVRER": {"video_filename": "video", "question": "question", "answer": "answer"},
}
# Sets whose JSON holds their rows in one another -> (the way from the document to its rows, columns
# that every row has). A step is a key, * any key, [] each of a list, {video} each value of an
# object whose keys are names of clips.
WAYS = {
    "MSR-VTT": ("sentences []", {"video_id", "caption"}),
    "ActivityNet, HACS, THUMOS, YouCook2": ("database {video} annotations []", {"segment"}),
    "Perception Test": ("{video} mc_question []", {"question"}),
    "HourVideo": ("{video} benchmark_dataset []", {"question"}),
    "TempCompass": ("{video} * []", {"question"}),
    "questions by clip": ("{video} []", {"question"}),
}
IN_SECONDS = {"segment"}  # columns of a begin and an end together
# Columns that count options from 0 wherever they are met.
COUNTED_FROM_0 = {
    name for roles in SETS.values() for name, role in roles.items() if role == "answer_from_0"
}
