"""Shared by the tests of the preflight: to run the command."""

import json

from support import run_script

SCRIPT = "check_tao_launch_preflight.py"
CANARY = "canary-4f1c9a2b7e"


def preflight_json(*args, env=None, cwd=None, timeout=120):
    done = run_script(SCRIPT, *args, "--json", env=env, cwd=cwd, timeout=timeout)
    assert "Traceback" not in done.stderr + done.stdout and done.returncode in (0, 1, 2), done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] == (done.returncode == 0)
    return document, {finding["id"]: finding for finding in document["findings"]}
