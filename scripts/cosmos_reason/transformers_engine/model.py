"""A Qwen3-VL model: where it lies, on which device and in which precision it runs, LoRA; and what it answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
from transformers.utils import logging as transformers_logging

from cosmos_reason import hub, models
from cosmos_reason.annotations import Question
from cosmos_reason.findings import EXIT_OUTSIDE, Failure, bad_input, did_you_mean, outside
from cosmos_reason.storage import read_json
from cosmos_reason.transformers_engine.evaluate import Answer, conversation
from cosmos_reason.transformers_engine.inputs import Encoder, collate
from cosmos_reason.vision_tokens import VisionOptions

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CACHE_BYTES = 256 << 20  # frames of clips with several questions

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


def choose_hardware(device: str, dtype: str) -> Hardware:
    """`device` is auto, cpu or cuda; `dtype` is what the spec asks the arithmetic to run in."""
    if device == "cuda" and not torch.cuda.is_available():
        fix = "--set custom.transformers_engine.device=cpu"
        message = "got cuda, this machine offers no CUDA GPU"
        raise outside("ENGINE-NO-CUDA", "custom.transformers_engine.device", message, fix)
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        name = torch.cuda.get_device_name()
        return Hardware(torch.device("cuda"), DTYPES[dtype], f"cuda: {name}, {dtype} arithmetic as the spec says")
    why = "asked for by the spec" if device == "cpu" else "no CUDA GPU is visible"
    why = f"cpu: {why}; float32 arithmetic, {torch.get_num_threads()} threads"
    return Hardware(torch.device("cpu"), torch.float32, why)


def model_folder(name: str, revision: str | None = None) -> Path:
    """The local folder of a model given as a folder, `ORG/NAME` or `hf_model://ORG/NAME` (downloaded once)."""
    written = models.canonical(name)
    if not written.startswith(models.HUB):
        return Path(written)
    repo, secret = written.removeprefix(models.HUB), hub.token()
    return hub.snapshot(repo, revision or hub.commit(repo, secret), ["*"], None, secret)


def check_architecture(folder: Path) -> dict:
    """The model's config. Raises Failure for anything but a Qwen3-VL folder, naming what to do instead."""
    config = read_json(folder / "config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind == "cosmos3_omni":
        fix = f"scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path {folder} --output-path {folder}-vlm"
        raise bad_input("ENGINE-MODEL-OMNI", folder, "got a Cosmos3 Omni checkpoint, expected its Qwen3-VL form", fix)
    if kind != "qwen3_vl":
        raise bad_input("ENGINE-MODEL-TYPE", folder / "config.json", f"got model_type {kind!r}, expected 'qwen3_vl'")
    return config


def load_tokenizer(folder: Path):
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as problem:
        raise bad_input("ENGINE-TOKENIZER", folder, f"got {problem}, expected a tokenizer that loads") from None
    if not tokenizer.chat_template:
        raise bad_input("ENGINE-NO-CHAT-TEMPLATE", folder, "got a tokenizer without a chat template")
    if tokenizer.pad_token_id is None:
        raise bad_input("ENGINE-NO-PAD-TOKEN", folder, "got a tokenizer without a padding token")
    return tokenizer


def load_model(folder: Path, dtype: torch.dtype, device: torch.device):
    """Load every weight or fail: transformers itself fills missing tensors with random numbers in silence."""
    check_architecture(folder)
    model, loading = Qwen3VLForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
    )
    problems = {what: sorted(map(str, names)) for what, names in loading.items() if names}
    if problems:
        listed = "; ".join(f"{what}: {', '.join(names[:5])}" for what, names in problems.items())
        raise bad_input("ENGINE-MODEL-INCOMPLETE", folder, f"got weights that do not match the config ({listed})")
    return model.to(device)


def load_for_evaluation(model: dict, dtype: torch.dtype, device: torch.device):
    """The `model` table of an evaluate spec -> (model, folder of its tokenizer). Adapters are merged into the base."""
    folder = model_folder(model["model_name"])
    is_adapter = (folder / "adapter_config.json").is_file()
    if is_adapter != model["enable_lora"]:
        got = "a LoRA adapter" if is_adapter else "a full model"
        message = f"got {model['enable_lora']} for {got} ({folder})"
        fix = f"--set model.enable_lora={str(is_adapter).lower()}"
        raise bad_input("EVAL-LORA-FLAG", "model.enable_lora", message, fix)
    if not is_adapter:
        return load_model(folder, dtype, device).train(False), folder
    from peft import PeftModel

    base = model["base_model_path"] or read_json(folder / "adapter_config.json")["base_model_name_or_path"]
    base_folder = model_folder(base)
    network = PeftModel.from_pretrained(load_model(base_folder, dtype, device), folder)
    return network.merge_and_unload().train(False), base_folder


def add_lora(model, lora: dict, base_name: str):
    """Wrap `model` with trainable adapters. As in cosmos-rl, `target_modules` are substrings of module names, or
    the string "all-linear" (every linear layer but the output head)."""
    from peft import LoraConfig, get_peft_model

    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    wanted = lora["target_modules"]
    if wanted == "all-linear":
        targets = [name for name in linear if name != "lm_head"]
    else:
        unmatched = [word for word in wanted if not any(word in name for name in linear)]
        if unmatched or not wanted:
            leaves = sorted({name.rpartition(".")[2] for name in linear})
            message = f"got {unmatched or wanted}, expected parts of the names of linear layers: {', '.join(leaves)}."
            message += did_you_mean(str(unmatched[:1]), leaves)
            raise bad_input("ENGINE-LORA-TARGET", "policy.lora.target_modules", message)
        targets = [name for name in linear if any(word in name for word in wanted)]
    same = ("r", "lora_alpha", "lora_dropout", "modules_to_save", "use_rslora", "init_lora_weights")
    config = LoraConfig(target_modules=targets, **{name: lora[name] for name in same})
    wrapped = get_peft_model(model, config)
    wrapped.peft_config["default"].base_model_name_or_path = base_name
    return wrapped


def choose_trainable(model, policy: dict) -> None:
    """Apply `freeze_pattern` or `trainable_pattern` (regular expressions searched in parameter names)."""
    for name, parameter in model.named_parameters():
        if policy["freeze_pattern"]:
            parameter.requires_grad = not any(re.search(p, name) for p in policy["freeze_pattern"])
        elif policy["trainable_pattern"]:
            parameter.requires_grad = any(re.search(p, name) for p in policy["trainable_pattern"])
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise bad_input("ENGINE-NOTHING-TRAINABLE", "policy", "got patterns that freeze every parameter")


class Responder:
    """Answers batches of questions greedily or by sampling, as `generation` says. Loads the model at the first one."""

    def __init__(self, spec: dict):
        self.spec = spec
        device = spec["custom"]["transformers_engine"]["device"]
        if device == "auto" and spec["num_gpus"] > 1:
            device = "cuda"  # one process per GPU: none of them may end up on the CPU in silence
        self.hardware = choose_hardware(device, spec["model"]["dtype"])
        self.where = self.hardware.reason
        torch.manual_seed(spec["evaluation"]["seed"])

    def identity(self) -> list:
        """Changes with the weights that answer."""
        folder = model_folder(self.spec["model"]["model_name"])
        return [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.glob("*.safetensors"))]

    def load(self) -> None:
        table, dataset = self.spec["model"], self.spec["dataset"]
        self.network, folder = load_for_evaluation(table, self.hardware.compute, self.hardware.device)
        self.tokenizer = load_tokenizer(folder)
        options = VisionOptions.from_spec(self.spec)
        self.encoder = Encoder(self.tokenizer, folder, dataset["media_dir"], options, table["max_length"], CACHE_BYTES)

    def answers(self, questions: list[Question]) -> Iterator[list[Answer]]:
        """`evaluation.batch_size` answers at a time."""
        if questions:
            self.load()
        size = self.spec["evaluation"]["batch_size"]
        for first in range(0, len(questions), size):
            yield self.answer(questions[first : first + size])

    def answer(self, questions: list[Question]) -> list[Answer]:
        """What cannot be read has an error; it shifts nothing."""
        ready, answers = [], []
        for question in questions:
            try:
                ready.append((question, self.encode(question)))
            except (Failure, OSError) as problem:
                if getattr(problem, "exit_code", None) == EXIT_OUTSIDE:
                    raise
                answers.append(Answer(question, None, str(problem)))
        responses = self.generate([encoded for _, encoded in ready]) if ready else []
        for (question, encoded), (response, is_cut) in zip(ready, responses, strict=True):
            answers.append(Answer(question, response, None, int((encoded["mm_token_type_ids"] > 0).sum()), is_cut))
        return answers

    def encode(self, question: Question) -> dict[str, torch.Tensor]:
        return self.encoder.encode_prompt(conversation(question, self.spec), question.sample.media)

    @torch.inference_mode()
    def generate(self, encoded: list[dict[str, torch.Tensor]]) -> list[tuple[str, bool]]:
        """Each answer, and whether it was cut: `max_tokens` came before the model ended it."""
        generation = self.spec["generation"]
        batch = collate(encoded, self.tokenizer.pad_token_id, "left")
        batch = {key: value.to(self.hardware.device) for key, value in batch.items()}
        sampling = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if generation["temperature"] > 0:
            sampling = {"do_sample": True} | {key: generation[key] for key in ("temperature", "top_p", "top_k")}
            sampling["top_k"] = max(sampling["top_k"], 0)  # transformers writes "all" as 0
        with self.hardware.autocast():
            ends = {"eos_token_id": self.tokenizer.eos_token_id, "pad_token_id": self.tokenizer.pad_token_id}
            limits = {"max_new_tokens": generation["max_tokens"]}
            limits |= {"repetition_penalty": generation["repetition_penalty"]}
            tokens = self.network.generate(**batch, **sampling, **limits, **ends)
        said = tokens[:, batch["input_ids"].shape[1] :]
        is_cut = (said != self.tokenizer.eos_token_id).all(dim=1).tolist()  # generate stops early only where all ended
        return list(zip(self.tokenizer.batch_decode(said, skip_special_tokens=True), is_cut, strict=True))
