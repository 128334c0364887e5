"""Whether transformers itself reads a converted folder (the argument): config, tokenizer, processor, names, shapes.

It stands alone, because it also runs inside containers that have nothing of this library. Prints one line, or fails.
"""

import importlib.util
import json
import struct
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoProcessor, AutoTokenizer, Qwen3VLForConditionalGeneration


def main(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    if config.model_type != "qwen3_vl":
        raise SystemExit(f"model_type is {config.model_type}")
    if not AutoTokenizer.from_pretrained(folder).chat_template:
        raise SystemExit("the tokenizer has no chat template")
    # The processor's video part needs torchvision.
    processor = AutoProcessor.from_pretrained(folder) if importlib.util.find_spec("torchvision") else None
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(config)
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    stored = {}
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as handle:
            stored |= json.loads(handle.read(struct.unpack("<Q", handle.read(8))[0]))
    stored = {name: entry["shape"] for name, entry in stored.items() if name != "__metadata__"}
    if stored != expected:
        raise SystemExit(f"names or shapes differ: {sorted(set(stored) ^ set(expected))[:5]}")
    kind = type(processor).__name__ if processor else "not tried"
    print(f"{type(config).__name__}, {len(stored)} tensors, processor {kind}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
