"""Trainings that end before their last step: signals, numbers that are none, a full GPU."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from forked import Forked, one_thread
from training import metrics, run, same, weights

from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.engine import packing
from cosmos_reason.engine.train import full_gpu, stopping
from cosmos_reason.engine.train import run as train
from cosmos_reason.engine.train.full_gpu import Memory
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.spec import document


@pytest.fixture
def in_one_thread():
    with one_thread():
        yield


def train_and_signal(spec, after, name):
    """Train in a process of its own, which gets a signal while it takes the step after `after`.
    Returns its exit code."""
    step_of = train.Trainer.accumulate

    def signaled(self, *batch):
        if self.step == after:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            for process in (*children, os.getpid()):  # who cancels a job signals all its processes
                os.kill(int(process), signal.Signals[name])
        return step_of(self, *batch)

    train.Trainer.accumulate = signaled
    try:
        train.run(spec, None)
    except Failure as failure:
        print(failure, failure.findings[0].fix)
        return failure.exit_code
    return 0


@pytest.mark.parametrize("name, workers", [("SIGTERM", 2), ("SIGUSR1", 0), ("SIGINT", 2)])
def test_a_signal_lets_the_step_end_and_a_resume_reaches_the_same_weights(
    train_spec, tmp_path, in_one_thread, name, workers
):
    often = {"train__ckpt__save_freq": 4, "validation__freq": 4}
    run(train_spec, train__timestamp="whole", train__output_dir=str(tmp_path / "whole"), **often)
    for key, value in often.items():
        document.set_value(train_spec, key.replace("__", "."), value)
    document.set_value(train_spec, "train.output_dir", str(tmp_path / "out"))
    document.set_value(train_spec, "train.timestamp", "run")
    document.set_value(train_spec, "train.train_policy.dataloader_num_workers", workers)
    spec = document.with_defaults("train", train_spec)
    said = tmp_path / "said"
    assert Forked(partial(train_and_signal, spec, 2, name), said).wait() == 3, said.read_text()
    told = said.read_text()
    assert "ENGINE-STOPPED" in told and f"{name} and ended after step 3" in told
    assert "--set train.resume=true" in told
    out = tmp_path / "out"
    assert [(c.kind, c.step, c.complete) for c in run_outputs.find(out)] == [
        ("resume", "step_3", True)
    ]
    run(train_spec, train__resume=True)
    assert [line["step"] for line in metrics(out / "run", "train/loss")] == [1, 2, 3, 4]
    assert same(weights(out / "run"), weights(tmp_path / "whole" / "whole"))
    left = [path.name for path in (out / "run" / "checkpoints").iterdir()]
    assert left == ["step_4"], "no checkpoint was asked for where the signal came"


@pytest.fixture
def signaled(monkeypatch):
    """Runs a training to which a signal comes while it takes the step after a number of steps."""

    def run_until(number, after, spec, **changes):
        real = train.Trainer.accumulate

        def accumulate(self, *batch):
            if self.step == after:
                os.kill(os.getpid(), number)
            return real(self, *batch)

        with monkeypatch.context() as patch:
            patch.setattr(train.Trainer, "accumulate", accumulate)
            with pytest.raises(Failure, match=rf"ENGINE-STOPPED.*step {after + 1} of"):
                run(spec, **changes)

    return run_until


def test_a_signal_where_a_save_is_due_costs_no_model(train_spec, tmp_path, signaled):
    signaled(signal.SIGUSR1, 1, train_spec)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, "as it was before"
    run(train_spec, train__resume=True)
    models = {c.step for c in run_outputs.find(tmp_path / "out") if c.kind == "model"}
    assert models == {"step_2", "step_4"}


def test_what_a_signal_let_save_goes_with_the_next_save_of_an_epoch(train_spec, tmp_path, signaled):
    ckpt = {"train__ckpt__save_freq_in_epoch": 1, "train__ckpt__max_keep": 1}
    signaled(signal.SIGTERM, 6, train_spec, train__max_num_steps=None, train__epoch=2, **ckpt)
    run(train_spec, train__resume=True)
    kept = {path.name for path in (tmp_path / "out" / "run" / "safetensors").iterdir()}
    assert "epoch_2" in kept
    assert not (tmp_path / "out" / "run" / "checkpoints" / "step_7").exists()


def test_a_second_interrupt_ends_at_once_and_a_repeated_one_does_not(monkeypatch, capfd):
    now = iter([10.0, 10.2, 12.0])
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(now))
    with stopping.Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked_by == "SIGINT" and capfd.readouterr().err.count("Ctrl-C again") == 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


# -- numbers that are none -----------------------------------------------------------------------


def test_a_loss_that_is_no_number_names_the_last_good_checkpoint(train_spec, tmp_path, monkeypatch):
    real = train.Trainer.loss_sum

    def lost(self, samples):
        loss = real(self, samples)
        return loss * float("nan") if self.step == 2 and self.network.training else loss

    monkeypatch.setattr(train.Trainer, "loss_sum", lost)
    with pytest.raises(Failure, match=r"ENGINE-LOSS-NOT-FINITE.*step 3") as caught:
        run(train_spec)
    good = tmp_path / "out" / "run" / "checkpoints" / "step_2" / "policy"
    (finding,) = caught.value.findings
    assert str(good) in finding.message
    assert finding.fix.changes == {"train.optm_lr": 1e-4, "train.resume": str(good)}


def test_a_loss_that_is_no_number_before_any_change_is_not_the_learning_rate_s(
    train_spec, monkeypatch
):
    real = train.Trainer.loss_sum
    monkeypatch.setattr(train.Trainer, "loss_sum", lambda *of: real(*of) * float("nan"))
    with pytest.raises(Failure, match=r"ENGINE-LOSS-NOT-FINITE.*no step had changed") as caught:
        run(train_spec)
    (finding,) = caught.value.findings
    assert not finding.fix.changes and "ask_model.py" in finding.fix.command


def test_weights_that_are_no_numbers_are_not_saved(train_spec, tmp_path, monkeypatch):
    real = train.Trainer.accumulate

    def spoiling(self, *batch):
        loss = real(self, *batch)
        if self.step == 3:
            with torch.no_grad():
                self.optimizer.param_groups[0]["params"][0].fill_(float("inf"))
        return loss

    monkeypatch.setattr(train.Trainer, "accumulate", spoiling)
    with pytest.raises(Failure, match=r"ENGINE-LOSS-NOT-FINITE.*weights"):
        run(train_spec, validation__enable=False)
    assert {c.step for c in run_outputs.find(tmp_path / "out")} == {"step_2"}


# -- a full GPU ------------------------------------------------------------------------------------

PLAN = gpu_memory.Plan(
    gpu_memory.geometry("nvidia/Cosmos-Reason2-8B"),
    tokens=8192,
    vision_tokens=7800,
    loss_tokens=300,
    lora_rank=8,
    lora_targets=("q_proj",),
    sharded_engine=False,
    kept_layers=36,
)


def with_fix(plan, changes):
    tokens = changes.get(full_gpu.TOKENS_PER_PASS, plan.tokens)
    changed = full_gpu._shorter(plan, min(tokens, plan.tokens))
    kept = plan.kept_layers if full_gpu.LAYERS not in changes else 0
    return gpu_memory.total(full_gpu.dataclasses.replace(changed, kept_layers=kept))


@pytest.mark.parametrize("whole", [70.0, 40.0, 24.0])
def test_a_full_gpu_is_told_with_what_was_foreseen_and_what_would_have_fitted(whole):
    foreseen = gpu_memory.total(PLAN)
    failure = full_gpu.explained(PLAN, 850, Memory(1.2 * foreseen, whole), "step 7")
    (finding,) = failure.findings
    assert failure.exit_code == 3 and finding.id == "ENGINE-GPU-MEMORY"
    assert f"foreseen were {foreseen:.1f} GiB" in finding.message
    assert f"got {1.2 * foreseen:.1f} GiB" in finding.message
    assert finding.fix.changes[full_gpu.LAYERS] == 36
    assert 1.2 * with_fix(PLAN, finding.fix.changes) <= 0.9 * whole


def test_one_long_record_needs_fewer_pixels_and_a_model_too_large_gets_no_false_promise():
    alone = full_gpu.dataclasses.replace(PLAN, tokens=40_000, vision_tokens=39_000, kept_layers=0)
    (finding,) = full_gpu.explained(alone, 40_000, Memory(40.0, 30.0), "step 1").findings
    assert full_gpu.PIXELS in finding.fix.changes
    (finding,) = full_gpu.explained(PLAN, 850, Memory(40.0, 8.0), "step 1").findings
    assert not finding.fix and "with the fix" not in finding.message
    (finding,) = full_gpu.explained(None, 850, Memory(40.0, 8.0), "step 1").findings
    assert finding.fix.changes == {full_gpu.TOKENS_PER_PASS: full_gpu.FEWEST}


def test_a_training_that_runs_out_of_memory_ends_with_the_finding(train_spec, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has")

    monkeypatch.setattr(packing, "pack", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 80 << 30))
    for name, held in {"memory_allocated": 70, "memory_reserved": 72}.items():
        monkeypatch.setattr(torch.cuda, name, lambda held=held: held << 30)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 71 << 30)
    with pytest.raises(Failure, match=r"ENGINE-GPU-MEMORY.*got 73\.5 GiB.*has 73\.0 GiB") as caught:
        run(train_spec)
    assert caught.value.exit_code == 3
