"""Random GGUF files: converts random cases with the converter of llama.cpp, and writes each file again with odd metadata.

    python test/oracle/make_models.py --seed 7 --random 20 --out DIR
    python test/oracle/random_gguf.py LLAMA_CPP --seed 7 DIR

Next to each case there are three files: CASE.f32.gguf, with the results of transformers in the case's golden.json;
CASE.codes.gguf, whose tensors have random types; and CASE.values.gguf, with their values in f32. `compare-gguf.ts`
compares them, then `llama-cpp.py DIR --files` compares those in f32 with llama.cpp. Needs the package gguf of LLAMA_CPP.
"""

import argparse
import json
import sys
import traceback
from pathlib import Path

import numpy as np

from random_cases import Draw

# Types that the package quantizes, and types for which it decodes random blocks of 256 values.
TYPES_32 = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
TYPES_256 = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
# Where these keep f16 values, and the factors that give values of about 0.1.
SCALES = {"Q2_K": {80: 0.004, 82: 0.002}, "Q3_K": {108: 0.0006}, "Q4_K": {0: 0.0003, 2: 0.002}, "Q5_K": {0: 0.00015, 2: 0.002},
          "Q6_K": {208: 0.0001}, "IQ4_XS": {0: 0.00005}}
INTEGERS = ["UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64"]


def random_blocks(draw, name, rows, cols):
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type

    generator = np.random.default_rng(draw.randrange(2**32))
    _, size = GGML_QUANT_SIZES[Type[name]]
    blocks = generator.integers(0, 256, (rows * cols // 256, size), dtype=np.uint8)
    for place, factor in SCALES[name].items():
        blocks[:, place : place + 2] = (factor * generator.uniform(0.5, 1.5, len(blocks))).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, cols // 256 * size)


def recode(draw, name, values):
    """Returns the bytes of a tensor in a random type, the type, and their values."""
    from gguf import GGMLQuantizationType as Type, dequantize, quantize

    cols = values.shape[-1]
    kept = values.ndim == 1 or cols % 32 or any(part in name for part in ("norm", "ssm_", "conv", "_inp", "rope", "sinks", "position", "token_types"))
    if kept or draw.chance(0.15):
        kind = draw.pick("F32", "F16", "BF16") if values.ndim > 1 and not kept else "F32"
        codes = quantize(values, Type[kind])
        return codes, Type[kind], dequantize(codes, Type[kind])
    if cols % 256 == 0 and draw.chance(0.6):
        kind = draw.choice(TYPES_256)
        codes = random_blocks(draw, kind, values.size // cols, cols).reshape(*values.shape[:-1], -1)
    else:
        kind = draw.choice(TYPES_32)
        codes = quantize(values, Type[kind])
    return codes, Type[kind], dequantize(codes, Type[kind]).reshape(values.shape)


def other_integer(draw, value, own):
    """Returns another type that holds the number or numbers."""
    from gguf import GGUFValueType as Kind

    numbers = value if isinstance(value, list) else [value]
    low, high = min(numbers), max(numbers)
    fits = [name for name in INTEGERS if (0 if name[0] == "U" else -(2 ** (int(name.lstrip("UINT")) - 1))) <= low
            and high < 2 ** (int(name.lstrip("UINT")) - (name[0] != "U"))]
    return Kind[draw.choice(fits)] if draw.chance(0.3) else own


def rewrite(draw, reader, path, tensors, alignment, has_odd_integers):
    from gguf import GGUFValueType as Kind, GGUFWriter

    integer_type = other_integer if has_odd_integers else lambda draw, value, own: own
    architecture = reader.get_field("general.architecture").contents()
    writer = GGUFWriter(path, architecture)
    writer.data_alignment = alignment
    fields = [field for name, field in reader.fields.items() if not name.startswith("GGUF.") and name not in ("general.architecture", "general.alignment")]
    draw.shuffle(fields)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for field in fields:
        value, kinds = field.contents(), field.types
        numeric = kinds[-1].name in INTEGERS
        if kinds[0] == Kind.ARRAY:
            sub = integer_type(draw, value, kinds[-1]) if numeric and value and not field.name.endswith("token_type") else kinds[-1]
            writer.add_key_value(field.name, value, Kind.ARRAY, sub_type=sub)
        else:
            writer.add_key_value(field.name, value, integer_type(draw, value, kinds[0]) if numeric else kinds[0])
    for i in range(draw.randint(0, 3)):
        writer.add_key_value(f"odd.key.{i}", draw.pick("text", "", "ñ\n" * 40), Kind.STRING)
    names = list(tensors)
    draw.shuffle(names)
    for name in names:
        codes, kind = tensors[name]
        writer.add_tensor(name, codes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_files(draw, directory, case, name):
    from convert_gguf import convert
    from gguf import GGMLQuantizationType as Type, GGUFReader, dequantize

    base = directory / f"{name}.f32.gguf"
    convert("random-f32", case, base)
    reader = GGUFReader(base)
    coded, values = {}, {}
    for tensor in reader.tensors:
        plain = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(tuple(reversed(tensor.shape.tolist())))
        codes, kind, decoded = recode(draw, tensor.name, plain)
        coded[tensor.name] = (codes, kind)
        values[tensor.name] = (np.ascontiguousarray(decoded, np.float32), Type.F32)
    alignment = draw.pick(32, 32, 8, 64, 256)
    rewrite(draw, reader, directory / f"{name}.codes.gguf", coded, alignment, True)
    rewrite(draw, reader, directory / f"{name}.values.gguf", values, 32, False)  # llama.cpp wants the usual types


# Families whose frequencies of Llama 3 the converter writes.
LLAMA3_ROPE = ["llama", "mistral", "mixtral", "smollm3", "exaone4"]
# Families for which the converter writes no parameters of the rotation.
NO_ROPE_KEYS = ["gemma", "gemma2", "stablelm"]
# Entries of config.json that a GGUF file cannot state, and the values that llama.cpp takes.
FIXED = {
    "apertus": {"hidden_act": "xielu"},
    "gemma2": {"layer_types": None, "hidden_activation": "gelu_pytorch_tanh"},
    "gemma3_text": {"hidden_activation": "gelu_pytorch_tanh"},
    "qwen2_moe": {"norm_topk_prob": False},
    "qwen3_moe": {"norm_topk_prob": True},
    "qwen3_next": {"norm_topk_prob": True},
    "smollm3": {"no_rope_layers": None, "no_rope_layer_interval": 4},
}


def why_not(case):
    """Returns what of a case the files of llama.cpp cannot hold, or None."""
    golden, config = (json.loads((case / name).read_text()) for name in ("golden.json", "config.json"))
    config = config.get("text_config", config)
    family = config["model_type"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    fixed = {"hidden_act": "gelu_pytorch_tanh" if "gemma" in family else "silu", **FIXED.get(family, {})}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if "gemma" in family:
        fixed["query_pre_attn_scalar"] = head_dim
    defaults = {"gemma2": {"query_pre_attn_scalar": 256}, "gemma3_text": {"query_pre_attn_scalar": 256},
                "qwen3_moe": {"norm_topk_prob": False}, "apertus": {"hidden_act": "xielu"}}.get(family, {})
    for key, value in fixed.items():
        if {**fixed, **defaults, **config}[key] != value:
            return f"{key} {config.get(key)}"
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    if family in NO_ROPE_KEYS and (kind, theta) != ("default", 10000.0):
        return "another rotation than the default"
    if {"full_attention", "sliding_attention"} & set(rope) and family != "gemma4_text":
        return "a rotation for each layer type"
    if kind == "dynamic" and "alpha" not in rope or kind == "longrope" and family != "phi3" or kind == "llama3" and family not in LLAMA3_ROPE:
        return f"the rotation {kind}"
    if kind == "yarn" and (rope.get("truncate") is False) != (family == "gpt_oss"):
        return "YaRN with another rounding"
    if kind == "longrope" and {"factor", "attention_factor"} & set(rope):
        return "LongRoPE with another temperature"
    if family == "olmoe" and config.get("rms_norm_eps", 1e-5) != 1e-5:
        return "another epsilon"
    scales = rope.get("mscale"), rope.get("mscale_all_dim")
    if scales != ((1, 1) if family == "ministral3" and kind == "yarn" else (None, None)):
        return "YaRN with other scales"
    if "head-only" in golden["features"] or "unknown-tensors" in golden["features"]:
        return "other tensors"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]
    import torch

    torch.set_num_threads(1)
    draw = Draw(args.seed)
    with torch.inference_mode():
        for golden in sorted(args.directory.glob("*/golden.json")):
            case = golden.parent
            if reason := why_not(case):
                print(f"{case.name}: not in GGUF: {reason}", flush=True)
                continue
            try:
                write_files(draw, args.directory, case, case.name)
                print(case.name, flush=True)
            except Exception:  # the converter does not take every configuration
                for path in args.directory.glob(f"{case.name}.*.gguf"):
                    path.unlink()
                print(f"{case.name}: not converted: {traceback.format_exc(limit=-1).splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
