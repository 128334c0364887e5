"""Training: data, model and optimizer from a spec, on one process or several. Enter at `run`."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from cosmos_reason.base.findings import bad_input, be_silent, say
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import left_out, run_outputs
from cosmos_reason.engine import model as models
from cosmos_reason.engine.model import Hardware
from cosmos_reason.engine.train import checkpointing, full_gpu, setup, shards, wandb_run
from cosmos_reason.engine.train.held_out import HeldOut
from cosmos_reason.engine.train.passes import Passes
from cosmos_reason.engine.train.ranks import Ranks
from cosmos_reason.engine.train.saving import Saver
from cosmos_reason.engine.train.schedule import Schedule
from cosmos_reason.engine.train.skipping import Skipped
from cosmos_reason.engine.train.stopping import Stop
from cosmos_reason.engine.train.trainer import Trainer


def run(spec: dict, job_dir: Path | None) -> dict:
    """Train as the complete spec says. Returns {run_dir, steps, seconds}; raises Failure before
    the first step for data, model or steps that cannot work."""
    ranks = Ranks.from_environment()
    # One process of a training speaks; what all have to say, they say through it.
    if not ranks.is_first:
        be_silent()
    ranks.check(spec)
    options = spec["custom"]["transformers_engine"]
    hardware = models.choose_hardware(options["device"], spec["train"]["param_dtype"])
    ranks.take_gpu(hardware.device)
    say(f"{hardware.reason}{layout(ranks, spec)}")
    ranks = ranks.joined(hardware.device)
    try:
        result = run_on(ranks, hardware, spec, job_dir)
    except RuntimeError as problem:
        lost = ranks.lost(problem)
        if lost:
            raise lost from None
        raise
    ranks.leave()
    return result


def run_on(ranks: Ranks, hardware: Hardware, spec: dict, job_dir: Path | None) -> dict:
    """Run the training on this rank."""
    started = time.monotonic()
    train, policy = spec["train"], spec["policy"]
    if not train["output_dir"]:
        fix = Fix(changes={"train.output_dir": "outputs"})
        raise ranks.for_rank0(bad_input("ENGINE-NO-OUTPUT", "train.output_dir", "got nothing", fix))
    ranks.agreed(wandb_run.check, spec["logging"])
    output_dir = Path(train["output_dir"])
    options = spec["custom"]["transformers_engine"]
    torch.manual_seed(train["seed"] or 0)
    torch.use_deterministic_algorithms(train["deterministic"])

    # One process of each machine downloads, the others find it in the cache.
    named = policy["model_name_or_path"], policy["model_revision"]
    folder = ranks.first_of_node_first(models.model_folder, *named)
    ranks.agreed(models.check_architecture, folder)
    tokenizer = ranks.agreed(models.load_tokenizer, folder)
    training, validation = ranks.agreed(setup.datasets, spec, folder, tokenizer, ranks.on_node)
    per_epoch, total = ranks.agreed(setup.plan_steps, len(training), train, ranks.world)
    try:
        network = ranks.agreed(setup.build_network, spec, folder, hardware)
        setup.shard(network, spec, folder, hardware)
    except torch.OutOfMemoryError as problem:
        raise full_gpu.while_loading(spec, folder, problem, ranks.rank) from None
    optimizer = setup.build_optimizer(network, train)
    if policy["lora"]:  # adapters begin with random numbers
        ranks.same_start(optimizer.param_groups[0]["params"])
    passes = Passes(network, spec, folder, hardware, ranks)
    gib = options["feature_cache_gib"] / ranks.on_node
    features = ranks.agreed(setup.kept_features, network, gib, passes)

    # Before anything is resumed: what a killed run left half written is no checkpoint.
    ranks.by_first(run_outputs.clear_abandoned, output_dir)
    resumed = ranks.by_first(checkpointing.to_resume, train["resume"], output_dir)
    state = {"step": 0}
    if resumed:
        state = ranks.agreed(checkpointing.resume, resumed, network, optimizer, total, training)
    name = train["timestamp"]
    run_dir = ranks.by_first(
        lambda: output_dir / name if name else setup.new_run_folder(output_dir)
    )
    if job_dir and ranks.is_first:
        setup.mark_runs(job_dir, run_dir, resumed)
    log = (job_dir or run_dir) / "metrics.jsonl"
    held_out = None
    count = options["validate_answers"]
    if validation is not None and count:
        alike = shards.are_in(network)
        held_out = HeldOut(validation, count, hardware, passes.tokens, ranks, alike)
    # What the run that is resumed left out of each set of data, this one leaves out from the start.
    skipped = {}
    for kind, samples in ((left_out.TRAINING, training), (left_out.VALIDATION, validation)):
        if samples is not None:
            known = state.get("left_out", {}).get(kind, ())
            skipped[kind] = Skipped(kind, samples, ranks, known)
    schedule = Schedule(spec, per_epoch, total)
    with setup.metrics_log(spec, log, run_dir, total, state, ranks.is_first) as metrics:
        trainer = Trainer(
            spec=spec,
            network=network,
            hardware=hardware,
            optimizer=optimizer,
            training=training,
            validation=validation,
            run_dir=run_dir,
            metrics=metrics,
            passes=passes,
            schedule=schedule,
            skipped=skipped,
            stop=Stop(ranks),
            saver=Saver(spec, network, folder, optimizer, schedule, run_dir, ranks),
            step=state["step"],
            learned=tuple(state.get("learned", (0.0, 0))),
            ranks=ranks,
            features=features,
            held_out=held_out,
        )
        if resumed:
            trainer.take_over(resumed, state)
        trainer.run()
    seconds = round(time.monotonic() - started, 1)
    return {"run_dir": str(run_dir), "steps": total, "seconds": seconds}


def layout(ranks: Ranks, spec: dict) -> str:
    """Return how several processes hold the weights, as the end of a sentence."""
    if not ranks.are_several:
        return ""
    parts = shards.count(spec)
    if parts > 1:
        return f"; {ranks.world} processes, weights sharded over {parts}"
    asked = spec["policy"]["parallelism"]["dp_shard_size"]
    why = " (adapters are, whatever dp_shard_size says)" if asked > 1 else ""
    return f"; {ranks.world} processes, weights replicated{why}"
