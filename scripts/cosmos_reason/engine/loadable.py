"""Whether transformers itself reads a converted folder as the model_type that it should be (the
arguments, with how its tensors are named): config, tokenizer, processor, names, shapes.

It stands alone, because it also runs inside containers that have nothing of this library. Prints
one line, or fails.
"""

import importlib.util
import json
import struct
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer


def main(folder: Path, model_type: str, names: str) -> None:
    """Check that a model loads: `names` is "of-class" where tensors are stored under the names of
    the class. Where they are not, the class itself is to find them, which takes the memory of the
    weights."""
    config = AutoConfig.from_pretrained(folder)
    if config.model_type != model_type:
        raise SystemExit(f"model_type is {config.model_type}")
    if not AutoTokenizer.from_pretrained(folder).chat_template:
        raise SystemExit("the tokenizer has no chat template")
    processor = "not tried"
    if importlib.util.find_spec("torchvision"):  # which the processor's video part needs
        processor = type(AutoProcessor.from_pretrained(folder)).__name__
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    stored = {}
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            header = json.loads(handle.read(length))
        header.pop("__metadata__", None)
        stored |= {name: entry["shape"] for name, entry in header.items()}

    if names == "of-class" and stored != expected:
        raise SystemExit(f"names or shapes differ: {sorted(set(stored) ^ set(expected))[:5]}")
    if names != "of-class":
        options = {"dtype": "auto", "output_loading_info": True}
        _, told = AutoModelForImageTextToText.from_pretrained(folder, **options)
        wrong = [name for found in told.values() for name in found]
        if wrong:
            raise SystemExit(f"names or shapes differ: {sorted(map(str, wrong))[:5]}")
    print(f"{type(config).__name__}, {len(stored)} tensors, processor {processor}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
