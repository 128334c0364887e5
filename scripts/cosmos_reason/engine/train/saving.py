"""What a training leaves behind: states to resume from, models, `best`, and what is sent elsewhere.
`checkpointing` writes the files, `run_outputs` knows their layout. Enter at `Saver.save`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from cosmos_reason.base.findings import Failure, has_errors, say
from cosmos_reason.checkpoints import best_link, run_outputs, uploads
from cosmos_reason.checkpoints.best_link import Scores
from cosmos_reason.engine.model import DTYPES
from cosmos_reason.engine.train import checkpointing, shards, stopping
from cosmos_reason.engine.train.ranks import ALONE, Ranks
from cosmos_reason.engine.train.schedule import Schedule


@dataclass
class Saver:
    """Saves the steps of one run, on all ranks together: each of them has to call its methods."""

    spec: dict
    network: torch.nn.Module
    base_folder: Path
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    run_dir: Path
    ranks: Ranks = ALONE

    def __post_init__(self):
        self.ckpt = self.spec["train"]["ckpt"]
        self.best_by = self.spec["custom"]["transformers_engine"]["best_by"]
        self.best_score = best_link.worst(self.best_by)
        self.leftover: Path | None = None  # the state of a stop that this run went on from

    def save(self, state: dict, scores: Scores) -> None:
        """Save the state to resume from, then the model. The state tells what the validation gave,
        so that a run killed between the two can be finished by the next (`take_over`)."""
        step = state["step"]
        self.refuse_not_finite_weights(step)
        in_epochs = self.ckpt["save_freq_in_epoch"]
        name = f"epoch_{self.schedule.epoch(step)}" if in_epochs else f"step_{step}"
        try:
            self.save_state(name, state | scores)
        except (Failure, OSError):
            # A disk too full for the state, which has the optimizer's moments, may take the model.
            with suppress(OSError):
                (self.run_dir / "checkpoints" / name).rmdir()
            self.save_model(self.run_dir, name, step, scores)
            raise
        if self.leftover:
            self.ranks.by_first(run_outputs.remove, self.leftover)
            self.leftover = None
        self.save_model(self.run_dir, name, step, scores)

    def save_stopped(self, state: dict) -> Path:
        """Save the state of a run that ends early, under the number of its step wherever in an
        epoch that is."""
        self.refuse_not_finite_weights(state["step"])
        return self.save_state(f"step_{state['step']}", state | {"is_stop": True})

    def save_state(self, name: str, state: dict) -> Path:
        folder = self.run_dir / "checkpoints" / name / "policy"
        checkpointing.save_state(folder, self.network, self.optimizer, self.spec, state, self.ranks)
        return folder

    def refuse_not_finite_weights(self, step: int) -> None:
        """Raise Failure before weights are saved that no training could go on from."""
        trained = self.optimizer.param_groups[0]["params"]
        here = [shards.local(part.detach()) for part in trained]
        are_finite = torch.stack([part.isfinite().all() for part in here]).all()
        if not self.ranks.smallest(int(are_finite)):
            raise self.not_finite("got weights that are no numbers", step)

    def not_finite(self, message: str, step: int) -> Failure:
        """Return what to raise for numbers that are none, in or before a step."""
        rate = self.spec["train"]["optm_lr"]
        failure = stopping.not_finite(message, step, rate, self.run_dir.parent)
        return self.ranks.for_rank0(failure)

    def save_model(self, run_dir: Path, name: str, step: int, scores: Scores) -> None:
        """Export the model of a step, where the spec wants one, rank it and send it where the spec
        says so."""
        if self.exports(step):
            checkpointing.export(
                self.network,
                self.base_folder,
                run_dir / "safetensors" / name,
                DTYPES[self.spec["train"]["param_dtype"]],
                self.spec,
                self.ranks,
            )

        def rank_and_send() -> None:
            self.rank(run_dir, name, scores)
            best = best_link.step_of(run_dir)
            run_outputs.prune(run_dir, self.ckpt["max_keep"], keep=[best])
            self.upload(run_dir, name, step)

        self.ranks.by_first(rank_and_send)

    def exports(self, step: int) -> bool:
        """Return whether the spec wants the model of a step."""
        return self.ckpt["export_safetensors"] or step == self.schedule.total_steps

    def rank(self, run_dir: Path, name: str, scores: Scores) -> None:
        """Let `best` mean this step when it is better than all so far: of equal ones it means the
        first."""
        score = scores.get(self.best_by)
        if score is not None and best_link.is_better(self.best_by, score, self.best_score):
            self.best_score = score
            best_link.write(run_dir, name, score, self.best_by)

    def upload(self, run_dir: Path, name: str, step: int) -> None:
        """Send what was saved of a step where the spec says so. Raises nothing: it is on the
        disk."""
        if self.exports(step):
            is_last = step == self.schedule.total_steps
            uploads.send(self.ckpt, run_dir / "safetensors" / name, is_last)
        uploads.send_state(self.ckpt, run_dir / "checkpoints" / name / "policy")

    # -- going on from an earlier run --------------------------------------------------------------

    def take_over(self, resumed: Path, saved: dict, state: dict) -> bool:
        """Finish what the run that is resumed did not come to: `saved` is the state that it left,
        `state` the same as this run saves it. Returns whether a model was missing, and is written.
        A state that a signal let save goes with the next save: no spec asked for a checkpoint
        there, and of names such as epoch_3 and step_120 none tells the newer one."""
        self.best_score = best_link.score_so_far(self.run_dir.parent, self.best_by)
        step_folder = resumed.absolute().parent  # RUN/checkpoints/STEP
        run_dir = step_folder.parents[1]
        is_own = run_dir.parent.resolve() == self.run_dir.parent.resolve()
        step, name = saved["step"], step_folder.name
        if saved.get("is_stop") and not self.schedule.saves(step):
            self.leftover = step_folder if is_own else None
            return False
        # Nothing is written into the folder of another training, but the end of it is taken over.
        is_ours = is_own or step == self.schedule.total_steps
        if not self.ckpt["enable_checkpoint"] or not is_ours:
            return False
        # It was killed, or the disk was full, after the state was saved: the model of the step is
        # missing, or its place among the best.
        scores = best_link.scores_in(saved)
        model = run_dir / "safetensors" / name
        # Rank 0 looks, so that all ranks go the same way from here.
        is_whole = self.ranks.by_first(
            lambda: model.is_dir() and not has_errors(run_outputs.verify(model))
        )
        if is_whole or not self.exports(step):
            if is_own and self.ranks.is_first:
                self.rank(run_dir, name, scores)
                self.upload(run_dir, name, step)
            return False
        if is_own:
            self.save_model(run_dir, name, step, scores)
        else:
            self.save(state, scores)
        say(f"resume: wrote the model of step {step}, which was missing")
        return True
