#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""The dataset script of cosmos-rl, which starts it in each of its processes:
our records, frames and rewards.

examples:
  cosmos-rl --config spec.toml --log-dir logs scripts/train_with_cosmos_rl.py
  cosmos-rl --config grpo.toml --log-dir logs scripts/train_with_cosmos_rl.py

Records of all formats, videos, images or several of both, all turns. Frames are those that
check_dataset.py predicts and that evaluation shows. It needs the environment of cosmos-rl
(make setup-cosmos-rl) and tells what it changes there.
"""

import argparse
import os
import sys

from cosmos_reason import cli
from cosmos_reason.base import findings
from cosmos_reason.engine.cosmos_rl import killed


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    given = parser.add_argument_group("given by cosmos-rl")
    given.add_argument("--config", metavar="FILE", help="the spec that the controller serves")
    given.add_argument("--port", type=int, help="where the controller serves it")
    given.add_argument("--redis-port", type=int, help="the first port that redis may take")
    given.add_argument("--redis-logfile-path", metavar="FILE", help="log of redis")
    return parser


def main(args: argparse.Namespace) -> cli.Outcome:
    if "COSMOS_ROLE" not in os.environ:
        message = "got no COSMOS_ROLE: a process of cosmos-rl starts this script"
        fix = f"cosmos-rl --config {args.config or 'spec.toml'} --log-dir logs {sys.argv[0]}"
        raise findings.bad_input("USAGE", "COSMOS_ROLE", message, fix)
    if os.environ["COSMOS_ROLE"] != "Controller":  # with which its launcher ends all
        killed.watch()
    from cosmos_reason.engine.cosmos_rl import entry as cosmos_rl_entry

    cosmos_rl_entry.run()
    return cli.Outcome()


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
