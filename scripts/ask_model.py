#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli-w==1.2.0", "torch==2.13.0",
#   "transformers==5.17.0", "peft==0.21.2", "accelerate==1.15.0", "av==18.1.0", "pillow==13.0.0",
#   "numpy==2.4.6", "tqdm==4.70.1", "boto3==1.44.5", "huggingface_hub==1.33.0", "httpx==0.28.1",
#   "jinja2==3.1.6", "psutil==7.2.2",
# ]
# ///
"""Ask a model about clips and images, now and on this machine.

examples:
  scripts/ask_model.py jobs/TRAIN_ID clip.mp4 "Which way does it turn?"
  scripts/ask_model.py models/cosmos3-nano clips --questions questions.txt -o answers --html a.html
  scripts/ask_model.py NAME clip.mp4 "What happens?" --endpoint http://localhost:8000/v1

A trained model is asked with the frames, pixels and system prompt of its training. On several GPUs:
`build_spec.py inference`, then `launch_job.py submit inference`.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.samples import Media
from cosmos_reason.evaluation import evaluation_record, inference, run
from cosmos_reason.evaluation import questions as asking
from cosmos_reason.jobs import fetching, inputs
from cosmos_reason.jobs.options import Launch
from cosmos_reason.remote.machine import Host
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import command_line, inherited, model_folder, models
from cosmos_reason.rules.draft import Draft, pasteable
from cosmos_reason.spec import document

ACTION, ENGINE = "inference", "transformers"
MODEL, BASE = "model_path", "base_model_path"
SHOWN = 10  # answers that are printed when a file has them all
COMMON = "--questions --reasoning --set --output --html --endpoint --served-model"


def parser() -> cli.Parser:
    parser = cli.Parser(
        __doc__, COMMON, is_intermixed=True, usage="%(prog)s MODEL MEDIA... QUESTION [flags]"
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="train job, train output, model or adapter folder, or ORG/NAME",
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="MEDIA... QUESTION",
        help="clips, images, folders of them; then the question (none with --questions)",
    )
    add = parser.add_argument
    add("--questions", type=cli.local, metavar="FILE", help="a text file, a question per line")
    add("--reasoning", action="store_true", help="ask for thoughts before the answer")
    add("--system-prompt", metavar="TEXT", help="default: that of the training")
    add(
        "--set",
        action="append",
        default=[],
        metavar="K=V",
        help="temperature=0.7, seed=3, max_tokens=64, nframes=16, ...; repeatable",
    )
    add(
        "-o",
        "--output",
        type=cli.local,
        metavar="DIR",
        help="keep predictions.json there; a second run asks only what is new (default: print)",
    )
    add("--html", type=cli.local, metavar="FILE", help="a page with frames beside the answers")
    add("--endpoint", metavar="URL", help="OpenAI-compatible server that answers, up to /v1")
    add(
        "--served-model",
        type=cli.some_text,
        metavar="NAME",
        help="with --endpoint: what the server calls the model (default: MODEL)",
    )
    cli.add_output_flags(parser)
    return parser


def main(args) -> cli.Outcome:
    if args.served_model and not args.endpoint:
        fix = Fix(flags={"--endpoint": "http://HOST:8000/v1"})
        raise findings.bad_input("USAGE", "--served-model", "got it without --endpoint", fix)
    media, texts, found = what_is_asked(args)
    draft = drafted(args, media, texts)
    spec, model_findings = launchable(args, draft)
    found += model_findings
    if findings.has_errors(found):
        raise Failure(found, findings.EXIT_BAD_INPUT)
    asked = inference.as_evaluation(document.with_defaults(ACTION, spec), media, texts)
    if args.output:
        return answered(args, asked, found, args.output)
    with tempfile.TemporaryDirectory() as scratch:
        return answered(args, asked, found, Path(scratch))


# -- what is asked -----------------------------------------------------------------------------


def what_is_asked(args) -> tuple[list[Media], list[str], list[Finding]]:
    """Return the media, the questions, and what is wrong with either."""
    found = []
    names = list(args.words)
    if args.questions:
        texts = attempted(found, inference.lines_of, args.questions) or []
    else:
        texts = [names.pop()]
        found += check_question(texts[0], names)
    media = []
    for name in names:
        there = attempted(found, inference.media_at, str(Path(name).absolute()))
        if there:
            media += there[0]
            found += there[1]
    return list(dict.fromkeys(media)), list(dict.fromkeys(texts)), found


def attempted(found: list[Finding], act, *words):
    """Return what `act(*words)` returns; None, and its findings, when it cannot read its input."""
    try:
        return act(*words)
    except Failure as failure:
        found += failure.findings
        return None


def check_question(text: str, names: list[str]) -> list[Finding]:
    if not text.strip():
        message = "got an empty question, expected one"
        return [findings.error("EVAL-PROMPT-EMPTY", "QUESTION", message)]
    if names and not Path(text).exists():
        return []
    message = f"got {text!r} as the last word, expected media and then the question"
    return [findings.error("USAGE", "QUESTION", message, "scripts/ask_model.py --help")]


def drafted(args, media: list[Media], texts: list[str]) -> Draft:
    """Return the inference spec of this command line, with the frames, pixels and system prompt
    that the model was trained with where a file tells them."""
    draft = Draft(ACTION, ENGINE, flags={"--model": args.model})
    draft.overlay(document.template(ACTION), "template")
    folder = Path(args.model).expanduser()
    if folder.is_dir() and not is_model(folder):
        draft.attempt(inherited.take_parent, draft, folder, False, None)
    elif args.endpoint and not folder.is_dir():
        draft.put(MODEL, args.model, "MODEL")  # only a name, which the server knows
    else:
        draft.attempt(command_line.take_model, draft, args.model)
    command_line.take_settings(draft, args.set, [], [])
    flags = {"system_prompt": args.system_prompt, "reasoning": args.reasoning or None}
    for key, value in flags.items():
        if value is not None and draft.name(key, f"--{key.replace('_', '-')}"):
            draft.put(key, value, "the command line")
    if media:
        draft.put("media", media[0].path, "MEDIA")
        draft.put("type", media[0].kind, "MEDIA")
    draft.put("prompt", texts[0] if texts else "", "QUESTION")
    model_folder.take_adapter(draft)
    model_folder.take_training(draft)
    inherited.compare_with_training(draft)
    return draft


def is_model(folder: Path) -> bool:
    names = ("config.json", "adapter_config.json")
    return any((folder / name).is_file() for name in names) and not (folder / "job.json").is_file()


# -- the model ---------------------------------------------------------------------------------


def launchable(args, draft: Draft) -> tuple[dict, list[Finding]]:
    """Return the spec with the model as a folder here, fetched where it was not, and what stands
    against it: what launch_job says of a job."""
    asked = Launch(
        action=ACTION,
        engine=ENGINE,
        platform="local",
        spec_path=Path(),
        jobs_dir=Path(),
        working_dir=Path.cwd(),
        folder=Path(),
        spec=draft.spec,
        endpoint=args.endpoint,
    )
    if is_known(draft):
        asked = inputs.resolved(asked)
        folders = [entry for entry in asked.inputs if entry["role"] in (MODEL, BASE)]
        asked = replace(asked, inputs=folders)
        draft.spec = asked.spec
    found = draft.findings + rule_findings(args, draft)
    for finding in [*inputs.absences(asked, Host(), acting=True), *inputs.contents(asked)]:
        if finding.severity == findings.ERROR and finding not in found:
            found.append(finding)
    found = [for_this_command(finding, draft) for finding in found]
    if not findings.has_errors(found):
        asked = fetching.staged(asked)
    return asked.spec, found


def is_known(draft: Draft) -> bool:
    """Return whether the model that was asked for is in the draft, and not the template's."""
    return draft.origins[MODEL] != "template"


def rule_findings(args, draft: Draft) -> list[Finding]:
    """Return what the rules say of the spec, but for what is told already or does not matter."""
    passed_over = {"media", "type", "prompt"}
    if not is_known(draft):
        passed_over |= {MODEL, BASE}
    ignored = models.OF_LOADED_MODEL if args.endpoint else set()
    found = rules.check(ACTION, ENGINE, draft.spec, launch=True)
    found = [finding for finding in found if finding.where not in passed_over]
    return [finding for finding in found if finding.id not in ignored]


def for_this_command(finding: Finding, draft: Draft) -> Finding:
    """Return the model is a word of this command, which has no flag for it or for an engine."""
    where = "MODEL" if finding.where == "--model" else finding.where
    fix = pasteable(draft, finding.fix)
    if "--model" in finding.fix.flags:
        given, meant = draft.flags["--model"], finding.fix.flags["--model"]
        fix = Fix(command=f"{finding.fix.command} replace {given} with {meant}".strip())
    elif "--engine" in finding.fix.flags:
        fix = Fix()
    return replace(finding, where=where, fix=fix)


# -- the answers -------------------------------------------------------------------------------


def answered(args, asked: dict, found: list[Finding], folder: Path) -> cli.Outcome:
    asked["results_dir"] = str(folder)
    if args.endpoint:
        from cosmos_reason.evaluation.endpoint import Endpoint

        who = Endpoint(asked, args.endpoint, args.served_model)
        found += who.settle()
    else:
        from cosmos_reason.engine.answer.responder import Responder

        who = Responder(asked)
    refuse_other_answers(asked, who, folder)
    if found:
        findings.say(findings.as_text(found))  # now, not after hours
    summary = run.run(asked, None, who)
    rows = files.read_json(Path(summary["results"]))
    result = {
        "predictions": summary["results"] if args.output else None,
        "rows": summary["rows"],
        "failed": summary["failed"],
        "cut_short": summary["cut_short"],
        "seconds": summary["seconds"],
        "answers": rows,
    }
    if args.html:
        from cosmos_reason.pages import predictions

        record = evaluation_record.read(Path(summary["results"]), run.names_of(asked).record)
        files.write_text(args.html, predictions.page(rows, record))
        result["html"] = str(args.html)
    failed = []
    if summary["failed"] == summary["rows"]:
        message = f"got no answer to any question: {rows[0]['error']}"
        failed.append(findings.error("EVAL-ALL-FAILED", args.model, message))
    # Without --json the other findings stand on stderr already.
    return cli.Outcome(result, found + failed if args.json else failed, as_text(args, result))


def refuse_other_answers(asked: dict, who, folder: Path) -> None:
    """Raises Failure when the folder holds answers that would be lost: of another model, with other
    settings, or to what is not asked now."""
    names = run.names_of(asked)
    path = folder / names.rows
    if not path.is_file():
        return
    record = evaluation_record.read(path, names.record)
    now = {question.id for question in asking.read(asked["dataset"], limit=-1)}
    earlier = {row.get(names.id) for row in files.read_json(path)}
    if record.get("identity") == run.identity(asked, who) and earlier <= now:
        return
    message = (
        "got answers to other questions, about other media or with other settings, expected a new "
        "folder"
    )
    fix = Fix(flags={"--output": f"{folder}-2"})
    raise findings.bad_input("EVAL-OUTPUT-TAKEN", path, message, fix)


def as_text(args, result: dict) -> str:
    """Return the answers, or where they are when a file has them all."""
    rows = result["answers"]
    shown = rows[:SHOWN] if args.output else rows
    several = len({row["question"] for row in rows}) > 1
    lines = []
    for row in shown:
        question = f" {row['question']}" if several else ""
        lines.append(f"{row['id']}:{question}")
        if row["reasoning"]:
            lines.append(f"  thinks: {row['reasoning']}")
        lines.append(f"  {answer_of(row)}")
    if len(shown) < len(rows):
        lines.append(f"... and {len(rows) - len(shown)} more")
    answers = "1 answer" if result["rows"] == 1 else f"{result['rows']} answers"
    parts = [f"{answers} in {result['seconds']} s"]
    if result["failed"]:
        parts.append(f"{result['failed']} failed")
    if result["cut_short"]:
        parts.append(f"{result['cut_short']} cut by max_tokens")
    lines.append(", ".join(parts))
    places = [result["predictions"], result.get("html")]
    lines += [f"wrote {place}" for place in places if place]
    return "\n".join(lines)


def answer_of(row: dict) -> str:
    if row["error"] is not None:
        return f"failed: {row['error']}"
    return row["answer"] or "(no answer)"


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
