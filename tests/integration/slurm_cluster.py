"""A SLURM cluster of one node on this machine: munged, slurmctld and slurmd with keys and ports of their own."""

import os
import shutil
import socket
import subprocess
import time

NEEDED = ("munged", "slurmctld", "slurmd", "sinfo", "srun")
CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmdSpoolDir={root}/spool
StateSaveLocation={root}/state
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=500 Gres=gpu:2 State=UNKNOWN
PartitionName=gpu Nodes={host} Default=YES MaxTime=60 State=UP
PartitionName=closed Nodes={host} MaxTime=10 State=DOWN
"""


def missing():
    """Why no cluster can be started here, or ''."""
    if os.getuid() != 0:
        return "not root"
    return ", ".join(f"no {name}" for name in NEEDED if not _program(name))


def _program(name):
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """A running cluster; with SLURM_CONF set to `.conf` every SLURM command speaks to it."""

    def __init__(self, root):
        self.root, self.conf, self.processes = root, root / "slurm.conf", []

    def start(self):
        self.root.chmod(0o755)
        for name in ("spool", "state"):
            (self.root / name).mkdir()
        host, ports = socket.gethostname().partition(".")[0], (free_port(), free_port())
        self.conf.write_text(CONF.format(host=host, root=self.root, ports=ports, cpus=os.cpu_count()))
        for name in ("gpu0", "gpu1"):  # device files as far as SLURM looks
            (self.root / name).touch()
        (self.root / "gres.conf").write_text(f"NodeName={host} Name=gpu File={self.root}/gpu[0-1]\n")
        (self.root / "cgroup.conf").touch()
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        own = [
            f"--{name}={self.root}/munge.{name.split('-')[0]}"
            for name in ("socket", "pid-file", "log-file", "seed-file")
        ]
        self._run("munged", "--foreground", "--force", f"--key-file={key}", *own)
        self._wait(lambda: (self.root / "munge.socket").exists())
        self._run("slurmctld", "-D", "-f", str(self.conf))
        self._run("slurmd", "-D", "-f", str(self.conf), "-N", host)
        self._wait(lambda: "idle" in self.call("sinfo", "--noheader", "--format=%t").stdout)

    def _run(self, name, *words):
        with open(self.root / f"{name}.out", "wb") as out:
            self.processes.append(
                subprocess.Popen([_program(name), *words], stdout=out, stderr=out, start_new_session=True)
            )

    def _wait(self, ready, seconds=60):
        deadline = time.monotonic() + seconds
        while not ready():
            ended = [process.args[0] for process in self.processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = {path.name: path.read_text(errors="replace")[-800:] for path in self.root.glob("*.[lo][ou][gt]")}
                raise RuntimeError(f"{ended or 'not ready in time'}: {logs}")
            time.sleep(0.2)

    def call(self, *words):
        environment = os.environ | {"SLURM_CONF": str(self.conf)}
        return subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, check=False)

    def stop(self):
        self.call("scancel", "--me")
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
