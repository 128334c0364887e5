#!/usr/bin/env python3
"""Asks one model inside NVIDIA's TAO container:
tao_inference.py --media=FILE_OR_FOLDER --results_dir=DIR ...

The image's program takes one clip or image; a folder is asked file by file, each with results of
its own. Rendered and mounted by launch_job; it has never been run in the real image.
"""

import argparse
import os
import subprocess
import sys

PROGRAM = "cosmos-rl-inference"


def files_in(folder: str) -> list[str]:
    files = [entry for entry in os.scandir(folder) if entry.is_file()]
    return sorted(entry.path for entry in files if not entry.name.startswith("."))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--media", required=True)
    parser.add_argument("--results_dir", required=True)
    asked, rest = parser.parse_known_args(words)
    if not os.path.isdir(asked.media):
        os.execvp(PROGRAM, [PROGRAM, *words])
    failed = 0
    for path in files_in(asked.media):
        own = [
            f"--media={path}",
            f"--results_dir={os.path.join(asked.results_dir, os.path.basename(path))}",
        ]
        failed += subprocess.run([PROGRAM, *rest, *own], check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
