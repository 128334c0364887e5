"""A model on this machine that answers questions."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cosmos_reason.annotations import Question
from cosmos_reason.findings import EXIT_OUTSIDE, Failure
from cosmos_reason.transformers_engine import model as models
from cosmos_reason.transformers_engine.evaluate import Answer, conversation
from cosmos_reason.transformers_engine.inputs import Encoder, collate
from cosmos_reason.vision_tokens import VisionOptions

CACHE_BYTES = 256 << 20  # frames of clips with several questions


class Responder:
    """Answers batches of questions greedily or by sampling, as `generation` says. Loads the model at the first one."""

    def __init__(self, spec: dict):
        self.spec = spec
        device = spec["custom"]["transformers_engine"]["device"]
        if device == "auto" and spec["num_gpus"] > 1:
            device = "cuda"  # one process per GPU: none of them may end up on the CPU in silence
        self.hardware = models.choose_hardware(device, spec["model"]["dtype"])
        self.where = self.hardware.reason
        torch.manual_seed(spec["evaluation"]["seed"])

    def identity(self) -> list:
        """Changes with the weights that answer."""
        folder = models.model_folder(self.spec["model"]["model_name"])
        return [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.glob("*.safetensors"))]

    def load(self) -> None:
        table, dataset = self.spec["model"], self.spec["dataset"]
        self.network, folder = models.load_for_evaluation(table, self.hardware.compute, self.hardware.device)
        self.tokenizer = models.load_tokenizer(folder)
        options = VisionOptions.from_table(self.spec["vision"])
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
        for (question, encoded), response in zip(ready, responses, strict=True):
            answers.append(Answer(question, response, None, int((encoded["mm_token_type_ids"] > 0).sum())))
        return answers

    def encode(self, question: Question) -> dict[str, torch.Tensor]:
        return self.encoder.encode_prompt(conversation(question, self.spec), question.sample.media)

    @torch.inference_mode()
    def generate(self, encoded: list[dict[str, torch.Tensor]]) -> list[str]:
        generation = self.spec["generation"]
        batch = collate(encoded, self.tokenizer.pad_token_id, "left")
        batch = {key: value.to(self.hardware.device) for key, value in batch.items()}
        sampling = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if generation["temperature"] > 0:
            sampling = {"do_sample": True} | {key: generation[key] for key in ("temperature", "top_p", "top_k")}
            sampling["top_k"] = max(sampling["top_k"], 0)  # transformers writes "all" as 0
        with self.hardware.autocast():
            tokens = self.network.generate(
                **batch,
                **sampling,
                max_new_tokens=generation["max_tokens"],
                repetition_penalty=generation["repetition_penalty"],
                eos_token_id=self.tokenizer.eos_token_id,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        return self.tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
