"""Writes a model and a draft model that agree in most tokens, from a directory of make_model.py.

  python make_draft.py DIR MODEL_OUT DRAFT_OUT [LAYERS] [SCALE]       (requires numpy)

The draft model has the first LAYERS layers (default 4). In the model, the results of the other layers are multiplied by
SCALE (default 0.05), so that they change few tokens. Trained models and their draft models agree for other reasons.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

RESULTS = ("o_proj.weight", "down_proj.weight")


def layer_of(name):
    return int(name.split(".")[2]) if name.startswith("model.layers.") else -1


def scaled(raw, scale):
    values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32) * np.float32(scale)
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16).tobytes()


def write(source, target, config, keeps, changes):
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, target / file.name)
    (target / "config.json").write_text(json.dumps(config))
    with open(source / "model.safetensors", "rb") as read, open(target / "model.safetensors", "wb") as out:
        (size,) = struct.unpack("<Q", read.read(8))
        tensors = json.loads(read.read(size))
        tensors.pop("__metadata__", None)
        names = [name for name in sorted(tensors, key=lambda name: tensors[name]["data_offsets"]) if keeps(name)]
        header, offset = {}, 0
        for name in names:
            begin, end = tensors[name]["data_offsets"]
            header[name] = {**tensors[name], "data_offsets": [offset, offset + end - begin]}
            offset += end - begin
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        out.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            begin, end = tensors[name]["data_offsets"]
            read.seek(8 + size + begin)
            out.write(changes(name, read.read(end - begin)))


def main():
    source, model, draft = (Path(name) for name in sys.argv[1:4])
    layers = int(sys.argv[4]) if len(sys.argv) > 4 else 4
    scale = float(sys.argv[5]) if len(sys.argv) > 5 else 0.05
    config = json.loads((source / "config.json").read_text())
    damp = lambda name, raw: scaled(raw, scale) if layer_of(name) >= layers and name.endswith(RESULTS) else raw
    write(source, model, config, lambda name: True, damp)
    write(source, draft, {**config, "num_hidden_layers": layers}, lambda name: layer_of(name) < layers, lambda _, raw: raw)


main()
