"""Runs NVIDIA's published AutoML runner on a skill folder, in the environment of its wheel:
tao_automl_oracle.py SKILL_DIR WORK < JSON {"spec", "tuning", "algorithms", "trials"} > JSON

Of the cluster only the SDK is a stand-in: it takes each job and says at once that it is done.
"""

import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

from tao_automl.runner import AutoMLRunner, SkillContext
from tao_sdk.script_runner import build_entrypoint

ACTIONS = ("train", "evaluate", "inference", "quantize")


def loaded(skill_dir: Path, action: str) -> dict:
    skill = SkillContext(skill_dir, action)
    entry = build_entrypoint(
        command=skill.action_cfg["command"],
        specs=skill.default_specs,
        inputs=skill.action_cfg["inputs"],
        outputs=skill.action_cfg["outputs"],
        config_format=skill.action_cfg["config_format"],
        upload_excludes=skill.action_cfg["upload_excludes"],
    )
    return {
        "network_arch": skill.network_arch,
        "container_image": skill.container_image,
        "has_schema": skill.schema is not None,
        "keys": sorted(skill.valid_spec_keys),
        "starts": bool(entry["command"]),
    }


class Sdk:
    """Takes jobs and ends them: `launched` holds the image and the spec of each."""

    def __init__(self):
        self.launched = []

    def create_job(self, image, command, **_):
        words = shlex.split(command)
        spec = json.loads(words[words.index("--specs") + 1])
        self.launched.append({"image": image, "spec": spec})
        return SimpleNamespace(id=f"job-{len(self.launched)}")

    def get_job_status(self, job_id, **_):
        return SimpleNamespace(status="Complete", job_id=job_id, message="")

    def get_job_logs(self, job_id, **_):
        return "Validation loss: 0.5\n"


def searched(skill_dir: Path, work: Path, asked: dict, algorithm: str) -> dict:
    sdk = Sdk()
    runner = AutoMLRunner(sdk, skill_dir, "train", poll_interval=0)
    automl = runner.skill_ctx.skill_info["automl"]
    proposed = []
    result = runner.run(
        automl_settings={
            "algorithm": algorithm,
            "metric": "loss",
            "automl_max_recommendations": asked["trials"],
            "automl_max_epochs": 9,
            "automl_population_size": 3,
            "automl_max_generations": 2,
            "run_baseline": False,
            "automl_delete_intermediate_ckpt": False,
        },
        workspace_path=str(work / algorithm),
        spec_overrides=asked["spec"] | automl["spec_overrides"],
        on_recommendation=lambda rec: proposed.append(dict(rec.specs)),
        **automl[asked["tuning"]],
    )
    return {
        "proposed": proposed,
        "images": sorted({job["image"] for job in sdk.launched}),
        "launched": len(sdk.launched),
        "specs": [job["spec"] for job in sdk.launched],
        "best": result["best"],
    }


def main() -> None:
    skill_dir, work = Path(sys.argv[1]), Path(sys.argv[2])
    asked = json.load(sys.stdin)
    found = {"actions": {action: loaded(skill_dir, action) for action in ACTIONS}}
    found["searches"] = {
        name: searched(skill_dir, work, asked, name) for name in asked["algorithms"]
    }
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
