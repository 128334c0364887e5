#!/usr/bin/env python3
"""Run a command as on a machine that has none of what `make test-integration` installs or finds
installed: its PATH is one folder of links to all other programs.

examples:
  tools/without_servers.py make test
"""

import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HIDDEN = [
    *("ffmpeg", "ffprobe", "ffplay"),
    *("docker*", "containerd*", "ctr", "runc", "rootlesskit", "podman"),
    *("redis-*", "valkey-*"),
    *("ssh", "ssh-*", "sshd", "scp", "sftp"),
    *("slurm*", "sbatch", "srun", "sinfo", "squeue", "scontrol", "scancel", "sacct*", "salloc"),
    *("munge*", "kubectl", "kind", "k3s", "minikube"),
    *("chromium*", "chrome*", "google-chrome*", "chromedriver"),
    *("node", "nodejs", "npm", "npx"),
]


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as visible:
        # The first of a name on PATH is the one that counts.
        for folder in os.environ["PATH"].split(os.pathsep):
            names = os.listdir(folder) if os.path.isdir(folder) else []
            for name in names:
                found, link = shutil.which(name, path=folder), Path(visible, name)
                is_hidden = any(fnmatch.fnmatch(name, pattern) for pattern in HIDDEN)
                if found and not is_hidden and not link.is_symlink():
                    link.symlink_to(os.path.abspath(found))
        os.environ["PATH"] = visible
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
