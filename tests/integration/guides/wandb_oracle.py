"""Reads an offline run of Weights & Biases, in the environment of its package:
wandb_oracle.py RUN.wandb > JSON {"id", "project", "name", "exit_code", "history"}

The file holds the package's own messages in blocks of 32 KiB: each piece of a message has its
checksum, length and kind (1 whole, 2 first, 3 middle, 4 last) before it.
"""

import json
import struct
import sys
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 1 << 15
HEADER = struct.Struct("<IHB")
START = 7  # what the file begins with


def records(content: bytes):
    held, place = b"", START
    while place < len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER.size:
            place += left
            continue
        _, size, kind = HEADER.unpack_from(content, place)
        place += HEADER.size
        held += content[place : place + size]
        place += size
        if kind in (1, 4):
            yield Record.FromString(held)
            held = b""


def main() -> None:
    found = {"history": []}
    for record in records(Path(sys.argv[1]).read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            found |= {"id": run.run_id, "project": run.project, "name": run.display_name}
        elif kind == "exit":
            found["exit_code"] = record.exit.exit_code
        elif kind == "history":
            values = {}
            for item in record.history.item:
                values[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
            found["history"].append(values)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
