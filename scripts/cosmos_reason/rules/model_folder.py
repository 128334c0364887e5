"""What the folder of a model tells a draft that asks or quantizes it: whether it is a LoRA adapter,
of which base, and how it was trained."""

from __future__ import annotations

import os
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.findings import ERROR, Failure
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import adapters, dcp, safetensors_files
from cosmos_reason.remote import model_names
from cosmos_reason.rules.draft import TEMPLATE, Draft
from cosmos_reason.spec import actions, document
from cosmos_reason.spec.values import shown

CONFIG = "config.json"


def refuse_no_model(draft: Draft) -> None:
    """Refuse what is here under the name of the model and cannot be one."""
    key = draft.params["model"]
    model = document.get(draft.spec, key)
    if not isinstance(model, str) or not model.startswith("/") or not os.path.exists(model):
        return
    checkpoint = dcp.find(Path(model)) if os.path.isdir(model) else None
    if checkpoint and not os.path.isfile(os.path.join(model, CONFIG)):
        draft.findings += dcp.refusal(Path(model), checkpoint, "--model").findings
        return
    fault = _why_no_model(Path(model))
    if not fault:
        return
    message = f"got {shown(model)}, {fault}; expected the folder of a model"
    # The folder around a file, or the only one in a folder, may be meant.
    folder = Path(model)
    around = [folder.parent] if folder.is_file() else folder.glob("*/")
    models = [str(folder) for folder in around if (folder / CONFIG).is_file()]
    fix = Fix(flags={"--model": models[0] if len(models) == 1 else "DIR"})
    draft.refuse("SPEC-MODEL-NAME", key, message, fix)


def _why_no_model(path: Path) -> str:
    """Return what is wrong; "" for the folder of a model or an adapter, whose weights a launch
    looks at."""
    of_llama_cpp = "of llama.cpp and its kin: no engine here loads it"
    if not path.is_dir():
        return f"a GGUF file ({of_llama_cpp})" if path.suffix == ".gguf" else "which is no folder"
    if (path / adapters.CONFIG).is_file():
        return ""
    if (path / CONFIG).is_file():
        try:
            config = safetensors_files.read_object(path / CONFIG)
        except Failure as failure:
            return f"whose {CONFIG} is none ({failure.findings[0].message})"
        if isinstance(config.get("model_type"), str) or "architectures" in config:
            return ""
        return f"whose {CONFIG} names no model_type"
    if any(path.glob("*.gguf")):
        return f"a folder with a GGUF file ({of_llama_cpp})"
    return f"a folder without a {CONFIG}"


def take_adapter(draft: Draft) -> None:
    """Verify an adapter as select_checkpoint does. Its base is taken from it when the command line
    names the adapter or nothing names a base."""
    folder = _local_model(draft)
    if folder is None:
        return
    from cosmos_reason.checkpoints import run_outputs

    if run_outputs.kind(folder) != run_outputs.ADAPTER:
        return
    for finding in run_outputs.verify(folder):
        # Which base it is may be said by the spec.
        if finding.severity == ERROR and finding.id != "CKPT-ADAPTER-BASE":
            draft.findings.append(finding)
    if draft.params["adapter"] not in draft.named:
        draft.put(draft.params["adapter"], True, adapters.CONFIG)
    key = draft.params["base"]
    # A base that the spec had before is that of its own model, not of one that the flags name.
    is_of_this_model = draft.params["model"] not in draft.named and document.get(draft.spec, key)
    if key not in draft.named and not is_of_this_model:
        written = model_names.read_table(folder / adapters.CONFIG).get("base_model_name_or_path")
        if isinstance(written, str) and written:
            base = draft.attempt(model_names.canonical, written, key)
            if base:
                draft.put(key, base, adapters.CONFIG)


def take_training(draft: Draft) -> None:
    """Take frames, pixels and system message of the training that left the model, in place of
    values that nobody chose; warn of what no file tells."""
    folder = draft.follows or _local_model(draft)
    if folder is None or draft.trained or draft.action in actions.TRAINING:
        return
    from cosmos_reason.checkpoints import run_outputs
    from cosmos_reason.evaluation import as_trained  # imports what reads answers

    is_trained = as_trained.is_of_training(folder.resolve())
    is_adapter = run_outputs.kind(folder) == run_outputs.ADAPTER
    if not (draft.follows or is_trained or is_adapter):
        return  # an untouched model, as far as its folder tells
    if is_trained:
        trained = draft.attempt(as_trained.training_spec, folder.resolve())
        draft.trained = actions.trained_view(trained, draft.action) if trained else {}
    vision, prompt = draft.params["vision"], draft.params.get("system_prompt")
    sampling = {key: one for key, one in draft.trained.items() if key.startswith(f"{vision}.")}
    unknown = []
    if not _is_chosen(draft, vision):
        if sampling:
            document.delete(draft.spec, vision)
            for key, value in sampling.items():
                draft.put(key, value, f"training of {folder.name}")
        elif draft.engine in document.keys(draft.action)[f"{vision}.nframes"]["x-engines"]:
            unknown.append("frames and pixels")
    if prompt and not _is_chosen(draft, prompt):
        if prompt in draft.trained:
            draft.put(prompt, draft.trained[prompt], f"training of {folder.name}")
        else:
            unknown.append("system prompt")
    if unknown:
        message = (
            f"nothing beside this model tells {' and '.join(unknown)} of its training "
            "(a cosmos_config, config.toml or spec.toml would), so the spec has defaults; "
            "set what training used"
        )
        draft.findings.append(findings.warning("SPEC-TRAINING-UNKNOWN", folder, message))


def _local_model(draft: Draft) -> Path | None:
    """Return the folder of the model that is asked or quantized, when it is here."""
    model = document.get(draft.spec, draft.params["model"])
    if "adapter" not in draft.params or not isinstance(model, str) or not model.startswith("/"):
        return None
    folder = Path(model)
    return folder if folder.is_dir() else None


def _is_chosen(draft: Draft, table: str) -> bool:
    """Return whether somebody set the key, or a key of the table: the command line, an earlier spec
    or a profile."""
    if any(document.overlap(table, named) for named in draft.named):
        return True
    for key, _ in document.items(draft.action, draft.spec):
        is_meant = key == table or key.startswith(f"{table}.")
        if is_meant and draft.origins.get(key, TEMPLATE) != TEMPLATE:
            return True
    return False
