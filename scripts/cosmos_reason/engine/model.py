"""A vision-language model: where it lies, on which device and in which precision it runs, and
LoRA."""

from __future__ import annotations

import importlib.util
import os
import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from cosmos_reason.base import bundle, families
from cosmos_reason.base.families import FAMILIES, Family
from cosmos_reason.base.files import read_json
from cosmos_reason.base.findings import (
    EXIT_CHECKS_FAILED,
    Failure,
    bad_input,
    did_you_mean,
    error,
    outside,
    say,
)
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import adapters, architectures, beside_weights, safetensors_files
from cosmos_reason.remote import hub, model_names

# A value of CUDA_VISIBLE_DEVICES that gives a GPU; others, such as -1 and none, hide all.
NAMES_GPU = re.compile(r"\d|GPU-|MIG-")
PEFT_PREFIX = "base_model.model."  # before the name of each parameter with adapters
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


@dataclass(frozen=True)
class Hardware:
    """Where and in which precision the arithmetic runs, and why."""

    device: torch.device
    compute: torch.dtype
    reason: str

    def autocast(self):
        enabled = self.compute != torch.float32
        return torch.autocast(self.device.type, dtype=self.compute, enabled=enabled)

    def autocast_for(self, network):
        """Return `autocast` where weights are not all in the precision of the arithmetic. Where
        they are it would compute norms in float32 and each layer would cast them back."""
        for part in network.parameters():
            if part.dtype != self.compute:
                return self.autocast()
        return nullcontext()


def choose_hardware(device: str, dtype: str) -> Hardware:
    """Return the hardware for `device`, which is auto, cpu or cuda; `dtype` is what the spec asks
    the arithmetic to run in."""
    has_gpu = torch.cuda.is_available()
    # Set by a launch with --gpu-ids and by SLURM: the CPU would take days in their place.
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    is_given = device == "auto" and NAMES_GPU.match(given)
    if not has_gpu and (device == "cuda" or is_given):
        fix = Fix(changes={"custom.transformers_engine.device": "cpu"})
        message = "got cuda, this machine offers no CUDA GPU"
        if is_given:
            message = f"got CUDA_VISIBLE_DEVICES={given}, but torch {torch.__version__} sees no "
            message += "GPU: its build is another than the driver's or one for CPUs, or this "
            message += "machine has none"
        raise outside("ENGINE-NO-CUDA", "custom.transformers_engine.device", message, fix)
    if device == "cuda" or (device == "auto" and has_gpu):
        reason = f"cuda: {torch.cuda.get_device_name()}, {dtype} arithmetic as the spec says"
        return Hardware(torch.device("cuda"), DTYPES[dtype], reason)
    why = "asked for by the spec" if device == "cpu" else "no CUDA GPU is visible"
    reason = f"cpu: {why}; float32 arithmetic, {torch.get_num_threads()} threads"
    return Hardware(torch.device("cpu"), torch.float32, reason)


def model_folder(name: str, revision: str | None = None) -> Path:
    """Return the local folder of a model given as a folder, `ORG/NAME` or `hf_model://ORG/NAME`
    (downloaded once, and only when its architecture is loaded here)."""
    written = model_names.canonical(name)
    if not written.startswith(model_names.HUB):
        return Path(written)
    repo = written.removeprefix(model_names.HUB)
    secret = hub.token()
    revision = revision or hub.commit(repo, secret)
    config = hub.snapshot(repo, revision, ["config.json"], None, secret)
    if (config / "config.json").is_file():  # an adapter may have none
        check_architecture(config)
    return hub.snapshot(repo, revision, ["*"], None, secret)


def check_architecture(folder: Path) -> dict:
    """Return the model's config. Raises Failure for an architecture that is not loaded here, naming
    what to do instead, and for a config that does not describe one."""
    config = architectures.read_config(folder)
    model_type = config["model_type"]
    layout = families.layout_of(config)
    if layout:
        message = f"got a {layout.title} checkpoint, expected its {layout.family.title} form"
        fix = (
            f"scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path {folder} "
            f"--output-path {folder}-vlm"
        )
        raise bad_input("ENGINE-MODEL-OMNI", folder, message, fix)
    known = bundle.architectures("transformers", "")
    if model_type not in known:
        message = f"got model_type {model_type!r}, expected {', '.join(known)}"
        raise bad_input("ENGINE-MODEL-TYPE", folder / "config.json", message)
    return config


def load_tokenizer(folder: Path):
    """Return the tokenizer of a model folder. Raises Failure for one that cannot render a chat or
    pad."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as problem:
        message = f"got {problem}, expected a tokenizer that loads"
        raise bad_input("ENGINE-TOKENIZER", folder, message) from None
    if not tokenizer.chat_template:
        message = "got a tokenizer without a chat template"
        raise bad_input("ENGINE-NO-CHAT-TEMPLATE", folder, message)
    if tokenizer.pad_token_id is None:
        raise bad_input("ENGINE-NO-PAD-TOKEN", folder, "got a tokenizer without a padding token")
    return tokenizer


def load_model(folder: Path, dtype: torch.dtype | str, device: torch.device):
    """Load every weight or fail: transformers itself fills missing tensors with random numbers in
    silence. A quantized model computes in the bfloat16 that its scales were found in."""
    config = check_architecture(folder)
    read_as = precision_to_read(folder, dtype)
    if config.get("quantization_config"):
        if not importlib.util.find_spec("compressed_tensors"):
            message = "got a quantized model and no compressed-tensors, which reads it"
            fix = f"make -C {bundle.ROOT} setup-quantize"
            raise outside("QUANT-NOT-INSTALLED", folder, message, fix)
        dtype = read_as = torch.bfloat16
    family = FAMILIES[config["model_type"]]
    model, loading = getattr(transformers, family.model_class).from_pretrained(
        folder, dtype=read_as, attn_implementation="sdpa", output_loading_info=True
    )
    problems = []
    for problem, names in loading.items():
        if names:
            problems.append(f"{problem}: {', '.join(sorted(map(str, names))[:5])}")
    if problems:
        message = f"got weights that do not match the config ({'; '.join(problems)})"
        raise bad_input("ENGINE-MODEL-INCOMPLETE", folder, message)
    model = model.to(device) if read_as == dtype else model.to(device, dtype)
    refuse_not_finite(model, folder)
    return model


def refuse_not_finite(network, folder: Path) -> None:
    """Raise Failure (CKPT-NOT-FINITE) for weights of a folder that hold a number that is none. On a
    CPU it costs a pass over the memory (measured: 5 GB/s and core), on a GPU next to nothing."""
    named = {}
    for name, part in network.named_parameters():
        if part.is_floating_point() and part.numel():
            numbers = part.detach() if part.element_size() > 1 else part.detach().float()
            named[name] = torch.stack(numbers.aminmax()).isfinite().all()
    are_finite = torch.stack([*named.values()]).tolist()
    broken = [name for name, is_finite in zip(named, are_finite, strict=True) if not is_finite]
    if not broken:
        return
    message = (
        f"got {len(broken)} of {len(named)} tensors that hold numbers that are not finite "
        f"({', '.join(broken[:3])}): the training diverged, or the files are damaged"
    )
    found = error("CKPT-NOT-FINITE", folder, message, names=broken[:1000])
    raise Failure(found, EXIT_CHECKS_FAILED)


def precision_to_read(folder: Path, dtype: torch.dtype | str) -> torch.dtype | str:
    """Return the precision in which weights are read that will be float32 on a device: bfloat16
    where all are stored so. They are mapped from their files then, where another precision is a
    copy of the whole model in host memory, of each process."""
    if dtype != torch.float32:
        return dtype
    stored, _ = safetensors_files.read_folder(folder)
    return torch.bfloat16 if {tensor.dtype for tensor in stored.values()} == {"BF16"} else dtype


def folders(name: str, table: dict) -> tuple[Path, Path | None]:
    """Return the folder of the weights that an evaluate or a quantize spec names and, of an
    adapter, that of its base, as the `model` table says. The tokenizer is the base's, where there
    is one."""
    folder = model_folder(name)
    is_adapter = (folder / adapters.CONFIG).is_file()
    if is_adapter != table["enable_lora"]:
        kind = "a LoRA adapter" if is_adapter else "a full model"
        message = f"got {table['enable_lora']} for {kind} ({folder})"
        fix = Fix(changes={"model.enable_lora": is_adapter})
        raise bad_input("EVAL-LORA-FLAG", "model.enable_lora", message, fix)
    if not is_adapter:
        return folder, None
    own = str(model_names.adapter_base(str(folder)))
    named = table["base_model_path"] or own
    revision = None
    if named.removeprefix(model_names.HUB) == own.removeprefix(model_names.HUB):
        # `main` may have moved since the adapter was trained.
        revision = model_names.read_table(folder / adapters.CONFIG).get("revision")
    base = model_folder(named, revision)
    if not base.is_dir():
        message = f"got {base}, which is not here, expected the base of the adapter"
        raise bad_input("CKPT-ADAPTER-BASE", "model.base_model_path", message, adapters.BASE_KEY)
    return folder, base


def stamps(*folders: Path | None) -> list:
    """Return what changes when the weights in these folders do, or the words that stand for what is
    asked."""
    found = []
    for folder in filter(None, folders):
        words = (beside_weights.TOKENIZER, *beside_weights.TEMPLATES)
        texts = [folder / name for name in words if (folder / name).is_file()]
        for path in sorted([*folder.glob("*.safetensors"), *texts]):
            facts = path.stat()
            found.append((path.name, facts.st_size, facts.st_mtime_ns))
    return found


def load_for_evaluation(folder: Path, base: Path | None, dtype: torch.dtype, device: torch.device):
    """Return the model of `folders`. Adapters are merged into the base."""
    if base is None:
        return load_model(folder, dtype, device).train(False)
    from peft import PeftConfig, PeftModel

    adapter = adapters.read(folder, for_peft=True)
    tensors, _ = safetensors_files.read_folder(base)
    # PEFT passes over what finds no place.
    adapters.refuse_other_base(adapter, base, tensors, adapters.BASE_KEY)
    # Not its own adapter_config.json: cosmos-rl has words of its own.
    config = PeftConfig.from_peft_type(**adapters.peft_config(adapter))
    model = load_model(base, dtype, device)
    network = PeftModel.from_pretrained(model, folder, config=config).merge_and_unload()
    refuse_not_finite(network, folder)
    return network.train(False)


def add_lora(model, lora: dict, base_name: str, revision: str | None = None):
    """Wrap `model` with trainable adapters on the layers that `target_modules` names. The adapter
    tells its base, and of one of the Hub the commit."""
    from peft import LoraConfig, get_peft_model

    whole = lora["modules_to_save"] or []
    names = [name for name, _ in model.named_modules()]
    idle = [one for one in whole if not any(name.endswith(one) for name in names)]
    if idle:  # which PEFT passes over
        message = f"got {idle}, at the end of no module's name"
        raise bad_input("ENGINE-LORA-TARGET", "policy.lora.modules_to_save", message)
    config = LoraConfig(
        target_modules=_lora_targets(model, lora["target_modules"]),
        r=lora["r"],
        lora_alpha=lora["lora_alpha"],
        lora_dropout=lora["lora_dropout"],
        modules_to_save=lora["modules_to_save"],
        use_rslora=lora["use_rslora"],
        init_lora_weights=lora["init_lora_weights"],
    )
    wrapped = get_peft_model(model, config)
    wrapped.peft_config["default"].base_model_name_or_path = base_name
    wrapped.peft_config["default"].revision = revision
    return wrapped


def _lora_targets(model, wanted: list[str] | str) -> list[str]:
    """Return names of linear layers. As in cosmos-rl, `wanted` are substrings of module names, or
    the string "all-linear" (every linear layer but the output head)."""
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    if wanted == "all-linear":
        return [name for name in linear if name != "lm_head"]
    family = FAMILIES[model.config.model_type]
    unmatched = [word for word in wanted if not _meant(family, [word], linear)]
    if unmatched or not wanted:
        leaves = sorted({name.rpartition(".")[2] for name in linear})
        message = (
            f"got {unmatched or wanted}, expected parts of the names of linear layers: "
            f"{', '.join(leaves)}.{did_you_mean(str(unmatched[:1]), leaves)}"
        )
        raise bad_input("ENGINE-LORA-TARGET", "policy.lora.target_modules", message)
    return _meant(family, wanted, linear)


def _meant(family: Family, words: list[str], names: list[str]) -> list[str]:
    """Return the names of layers that one of the words means."""
    return [name for name in names if any(family.has_target(word, name) for word in words)]


def unwrapped(network) -> torch.nn.Module:
    """Return the model itself of one that PEFT has wrapped, or of one that it has not."""
    return network.get_base_model() if hasattr(network, "peft_config") else network


def decoder_layers(network, folder: Path) -> list[torch.nn.Module]:
    """Return the text layers of a model of that folder, in their order."""
    wanted = FAMILIES[read_json(folder / "config.json")["model_type"]].decoder_layer
    found = []
    for part in network.modules():
        # What is sharded has a class of its own, below that of transformers.
        if wanted in [kind.__name__ for kind in type(part).__mro__]:
            found.append(part)
    return found


def answer_logits(network, batch: dict, are_answers: torch.Tensor) -> torch.Tensor:
    """Return logits [answers, vocabulary] of the positions that foretell an answer's tokens:
    are_answers [1, n - 1] tells them of a packed batch of n tokens."""
    hidden = network.model(**batch, use_cache=False).last_hidden_state[:, :-1]
    return network.lm_head(hidden[are_answers])


def choose_trainable(network, policy: dict) -> None:
    """Apply `freeze_pattern` or `trainable_pattern` (regular expressions searched in parameter
    names): of adapters, which are all that is trained there, they freeze some. Raises Failure where
    all of them are in no name, with which more or less would be trained than was meant; one beside
    others that mean something is told."""
    family = FAMILIES[unwrapped(network).config.model_type]
    named = {}
    for name, parameter in network.named_parameters():
        # Without the words of PEFT for what it wraps, and for a layer that has an adapter.
        named[name.removeprefix(PEFT_PREFIX).replace(".base_layer.", ".")] = parameter
    for key in ("freeze_pattern", "trainable_pattern"):
        patterns = policy[key]
        if not patterns:
            continue
        matches = {pattern: family.meant(pattern, named) for pattern in patterns}
        matched = set().union(*matches.values())
        idle = [pattern for pattern, names in matches.items() if not names]
        parts = sorted({".".join(name.split(".")[:2]) for name in named})
        told = f"{idle}, in no parameter's name: those begin with {', '.join(parts)}"
        if not matched:
            raise bad_input("ENGINE-PATTERN-NOTHING", f"policy.{key}", f"got {told}")
        if idle:
            say(f"policy.{key}: no effect of {told}")
        for name, parameter in named.items():
            if (name in matched) == (key == "freeze_pattern"):
                parameter.requires_grad = False
    if not any(parameter.requires_grad for parameter in named.values()):
        message = "got patterns that freeze every parameter that is trained"
        raise bad_input("ENGINE-NOTHING-TRAINABLE", "policy", message)
