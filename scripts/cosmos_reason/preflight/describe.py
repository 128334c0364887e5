"""The launch that options and a spec describe, before anything is looked at."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base.findings import EXIT_BAD_INPUT, EXIT_CHECKS_FAILED, Failure
from cosmos_reason.jobs import nodes, record
from cosmos_reason.preflight.options import Launch, PreflightOptions
from cosmos_reason.remote import model_names, s3
from cosmos_reason.rules import completion, placeholders
from cosmos_reason.rules.case import Case, sound
from cosmos_reason.spec import actions, document, flat_configs, images, origins, validation


def launch_of(options: PreflightOptions, platform: str, engine: str | None = None) -> Launch:
    """Raises Failure (exit 2) for a spec that cannot be read."""
    engine = engine or origins.engine_of(options.spec, platform)
    launch = Launch(
        platform=platform,
        options=options,
        deadline=time.monotonic() + options.timeout,
        engine=engine,
        image=options.image or images.default(engine) or "",
        paths=dict(options.path),
        nodes=options.nodes or 1,
    )
    if launch.has_own_data:
        launch.paths["--entry-script"] = options.entry_script
    if options.spec:
        table, action = read_spec(options.spec, engine)
        take_spec(launch, table, action)
    launch.gpus_per_node = max(launch.gpus_per_node, options.gpu_min_count or 1)
    return launch


def read_spec(path: str, engine: str) -> tuple[dict, str]:
    """(a spec, the action that knows most of its keys). Raises Failure (exit 2)."""
    try:
        table = document.load(Path(path))
    except Failure as failure:
        how = "; scripts/build_spec.py writes specs"
        found = [replace(finding, message=finding.message + how) for finding in failure.findings]
        raise Failure(found, EXIT_BAD_INPUT) from None
    if flat_configs.is_one(table):
        raise Failure(flat_configs.refusal(path, table, engine), EXIT_CHECKS_FAILED)
    return table, actions.of_file(Path(path))


def take_spec(launch: Launch, table: dict, action: str) -> None:
    """What the spec says of paths, outputs, GPUs and sizes. What is invalid in it counts as the
    template's."""
    written = table
    table, launch.completed = completion.completed(action, written)
    if launch.engine == images.ENGINE:
        version = launch.options.image_version
        launch.completed += images.check(action, written, launch.image, version)
    launch.written = table
    unfilled = placeholders.keys(action, table, launch.engine)
    invalid = [finding.where for finding in validation.validate(action, table)] + unfilled
    launch.case = Case(action, launch.engine, sound(action, table, invalid))
    _take_paths(launch)
    _take_models(launch, unfilled)
    needed = launch.case.needed_gpus
    asked = nodes.asked(launch.options.nodes, action, Path(launch.options.spec), needed)
    launch.nodes = nodes.count(asked, needed)
    launch.gpus_per_node = math.ceil(needed / launch.nodes)


def _take_paths(launch: Launch) -> None:
    for key, schema in document.keys(launch.case.action).items():
        path = launch.case(key)
        if not isinstance(path, str):
            continue
        kind = schema.get("x-path")
        if kind == "input" and path:
            launch.paths.setdefault(key, path)
        elif kind == "output":
            launch.outputs.append(path or str(record.path_of_root(launch.options.jobs_dir)))


def _take_models(launch: Launch, unfilled: list[str]) -> None:
    """The model and, of an adapter, its base model, but for what is yet to be filled in; a folder
    among them is a path to look at too."""
    params = launch.case.params
    for key in (params["model"], params.get("base")):
        written = launch.case(key) if key else ""
        if not written or key in unfilled:
            continue
        in_bucket = written.startswith(s3.SCHEME)
        name = written if in_bucket else model_names.canonical(written, key)
        launch.models.append(name)
        if name.startswith("/"):
            launch.paths.setdefault(key, name)
