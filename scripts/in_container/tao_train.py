#!/usr/bin/env python3
"""Starts cosmos-rl inside NVIDIA's TAO container: tao_train.py SPEC ENTRY_SCRIPT.

ENTRY_SCRIPT is the path of our dataset script; for the image's own a path, or PACKAGE:PATH for a
file of an installed package, whose place differs between images. Rendered and mounted by
launch_job; never run in the real image.
"""

import importlib.util
import os
import sys


def located(written: str) -> str:
    package, colon, path = written.partition(":")
    if not colon:
        return written
    found = importlib.util.find_spec(package)  # imports nothing: the package itself loads torch
    if found is None:
        sys.exit(
            f"got no package {package} for {sys.executable}, expected the one that holds {path}"
        )
    return os.path.join(found.submodule_search_locations[0], path)


if __name__ == "__main__":
    config, entry_script = sys.argv[1:]
    program = located(entry_script)
    if not os.path.isfile(program):
        sys.exit(f"got no {program} in this image, expected its dataset script")
    os.execvp("cosmos-rl", ["cosmos-rl", "--config", config, program])
