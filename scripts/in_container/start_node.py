#!/usr/bin/env python3
"""Starts cosmos-rl, or the ranks of the embedded engine, as one of several nodes of an Indexed Job:
start_node.py NAME NODES PROGRAM [ARGUMENT]...

NAME is the job's and that of its headless Service; JOB_COMPLETION_INDEX is this pod's number. The
controller, or what torchrun's nodes meet at, is on number 0. Rendered and mounted by launch_job;
never run on a real cluster.
"""

import os
import sys
import time
from socket import gethostbyname

PORT = 8000  # of the controller, or of the meeting
TORCHRUN = "torch.distributed.run"
PATIENCE = 1800  # seconds until all pods have an address: images of 40 GB are pulled meanwhile


def address(name, deadline):
    while True:
        try:
            return gethostbyname(name)
        except OSError as problem:
            if time.monotonic() > deadline:
                sys.exit(f"got no address of {name} ({problem}), expected all nodes to be started")
            time.sleep(2)


def command(words, index, addresses):
    """Return the words of the program with what each node is told."""
    if TORCHRUN not in words:
        return [words[0], *of_cosmos_rl(index, addresses), *words[1:]]
    place = words.index(TORCHRUN) + 1
    where = [
        f"--node-rank={index}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={addresses[0]}:{PORT}",
    ]
    return [*words[:place], *where, *words[place:]]


def of_cosmos_rl(index, addresses):
    """Return how many nodes there are, which this is, and where the others are."""
    words = ["--num-workers", str(len(addresses)), "--worker-idx", str(index)]
    words += ["--node-ip-list", ";".join(addresses)]
    if index:
        return [*words, "--url", f"{addresses[0]}:{PORT}"]
    return [*words, "--port", str(PORT)]


if __name__ == "__main__":
    job = sys.argv[1]
    nodes = int(sys.argv[2])
    number = int(os.environ["JOB_COMPLETION_INDEX"])
    limit = time.monotonic() + PATIENCE
    found = [address(f"{job}-{other}.{job}", limit) for other in range(nodes)]
    print(f"node {number} of {nodes}: {', '.join(found)}", flush=True)
    program = command(sys.argv[3:], number, found)
    os.execvp(program[0], program)
