"""A Docker engine of the tests' own: a private socket, no bridge, and an image that weighs nothing.

The image holds only empty folders and the ENV of a Python image. What it needs to run (this machine's /usr, and the
Python and the packages that run the tests) comes into each container through a runtime that adds read-only mounts, as
NVIDIA's runtime adds the driver's libraries. So no root file system is downloaded, built or copied. The runtime also
drops resource limits, which a machine that is a container itself may not raise (`.inspect` still shows them).
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time

IMAGE = "cosmos-reason-test:1"
MOUNTS = {"/usr": "/usr", sys.base_prefix: "/opt/python", sysconfig.get_paths()["purelib"]: "/opt/site-packages"}
ENVIRONMENT = {
    "PATH": "/opt/python/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/opt/python/lib",
    "PYTHONPATH": "/opt/site-packages",
    "PYTHONDONTWRITEBYTECODE": "1",
}
RUNTIME = """#!{python}
import json, os, sys
words = sys.argv[1:]
if "--bundle" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(path) as handle:
        config = json.load(handle)
    for source, target in {mounts!r}.items():
        options = ["rbind", "ro", "rprivate"]
        config["mounts"].insert(0, {{"destination": target, "type": "bind", "source": source, "options": options}})
    config["process"]["rlimits"] = []
    with open(path, "w") as handle:
        json.dump(config, handle)
os.execvp("runc", ["runc", *words])
"""
LINKS = ("bin", "lib", "lib64")  # on Debian these lead into /usr; docker mounts its init into sbin
NEEDED = ("docker", "dockerd", "containerd", "runc")


def missing():
    """Why no engine can be started here, or ''."""
    if os.getuid() != 0:
        return "not root"
    return ", ".join(f"no {name}" for name in NEEDED if not shutil.which(name))


class Engine:
    """A running engine; `host` is its DOCKER_HOST."""

    def __init__(self, root):
        self.root, self.host, self.process = root, f"unix://{root}/docker.sock", None

    def start(self):
        runtime = self.root / "runtime"
        runtime.write_text(RUNTIME.format(python=sys.executable, mounts=MOUNTS))
        runtime.chmod(0o755)
        folders = [f"--{name}={self.root / name.replace('-', '_')}" for name in ("data-root", "exec-root", "pidfile")]
        quiet = ["--storage-driver=vfs", "--bridge=none", "--iptables=false", "--ip-forward=false"]
        runtimes = [f"--add-runtime=test={runtime}", "--default-runtime=test"]
        with open(self.root / "log", "wb") as log:
            words = ["dockerd", "--host", self.host, *folders, *quiet, *runtimes]
            self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 60
        while self.docker("version", check=False).returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.root / "log").read_text()[-2000:])
            time.sleep(0.1)

    def stop(self):
        if running := self.docker("ps", "--quiet", check=False).stdout.split():
            self.docker("kill", *running, check=False)
        self.process.terminate()
        self.process.wait(30)
        subprocess.run(["umount", self.root / "exec_root" / "netns" / "default"], capture_output=True, check=False)

    def docker(self, *words, check=True):
        command = ["docker", "--host", self.host, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=check)

    def load_image(self):
        """Import IMAGE: the folders that the mounts go to, and a user root."""
        root = self.root / "image"
        for name in ("usr", "etc", "sbin", "tmp", "opt/python", "opt/site-packages", "workspace"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        for name in filter(os.path.islink, (f"/{link}" for link in LINKS)):
            (root / name[1:]).symlink_to(os.readlink(name))
        (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        with tarfile.open(self.root / "image.tar", "w") as tar:
            tar.add(root, ".")
        changes = [f"--change=ENV {name}={value}" for name, value in ENVIRONMENT.items()]
        self.docker("import", *changes, str(self.root / "image.tar"), IMAGE)

    def inspect(self, name):
        return json.loads(self.docker("inspect", name).stdout)[0]
