"""Makes the reference of a comparison from a quantized GGUF file: its decoded values plus seeded noise.

  python make_reference.py FROM.gguf TO_FOLDER      (numpy, gguf, torch, transformers)

Without the noise, a quantizer with the same grid would find every value again. The noise of a value is uniform within half a
step of its block, so that no grid fits better than another. TO_FOLDER gets reference.gguf in f32 and the same model as a
folder for transformers.
"""

import sys
from pathlib import Path

import gguf
import numpy as np

SEED = 17
# Bytes and values of a block whose first two bytes are its step in f16.
BLOCKS = {"Q4_1": (20, 32), "Q4_0": (18, 32), "Q8_0": (34, 32)}


def with_noise(tensor, random):
    values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    kind = tensor.tensor_type.name
    if kind == "F32":
        return values
    size, count = BLOCKS[kind]
    steps = np.abs(np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1, size)[:, :2].copy().view(np.float16).astype(np.float32))
    noise = random.uniform(-0.5, 0.5, (steps.shape[0], count)).astype(np.float32) * steps
    return values + noise.reshape(values.shape)


def copy_fields(reader, writer):
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)


def write_gguf(source, target):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(str(target), reader.get_field("general.architecture").contents())
    copy_fields(reader, writer)
    random = np.random.default_rng(SEED)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, with_noise(tensor, random))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    source, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    write_gguf(source, folder / "reference.gguf")
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="reference.gguf", dtype=torch.float32)
    model.save_pretrained(folder / "hf")
    # Capstan needs a tokenizer to load the folder. The ids come from llama_ids.py: this one reads spaces as another token.
    transformers.AutoTokenizer.from_pretrained(folder, gguf_file="reference.gguf").save_pretrained(folder / "hf")


if __name__ == "__main__":
    main()
