"""Writes tiny quantized checkpoints with golden.json, the results of transformers for their values in float32:

    pip install compressed-tensors==0.20.0 bitsandbytes==0.50.2 && python test/oracle/make_quantized.py --out test/oracle/fixtures/quantized

The embedding and the head stay in 16 bits.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from cases import row
from golden import load_judge, make_golden, write_golden, write_model
from quantized_formats import awq, bitsandbytes4, bitsandbytes8, compressed, compressed_nvfp4, fp8, gptq, mxfp4, nvfp4
from rounding import float32_cost
from small_tokenizer import tokenizer_json

SEED = 20


def compressed_config(format, groups, **more):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {f"group_{i}": {"targets": targets, "weights": weights} for i, (targets, weights) in enumerate(groups)},
            **more}


GROUP4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
CHANNEL4 = {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": False}
CHANNEL8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
TENSOR_FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "scale_dtype": "torch.float8_e4m3fn"}
MODELOPT_LAYERS = {f"model.layers.0.{name}_proj": {"quant_algo": "FP8"} if "self_attn" in name else {"quant_algo": "W4A16_NVFP4", "group_size": 16}
                   for name in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")}
# As transformers writes them.
BITS4 = {"quant_method": "bitsandbytes", "_load_in_4bit": True, "_load_in_8bit": False, "load_in_4bit": True, "load_in_8bit": False,
         "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
         "llm_int8_skip_modules": None, "llm_int8_threshold": 6.0}
BITS8 = {**BITS4, "_load_in_4bit": False, "_load_in_8bit": True, "load_in_4bit": False, "load_in_8bit": True, "bnb_4bit_quant_type": "fp4"}
ATTENTION, MLP = ["re:.*self_attn.*"], ["re:.*mlp.*"]


def pack_mixed(name, weight):
    """Groups in the attention, a scale for each row and zero points in the MLP."""
    return compressed(weight, "pack-quantized", GROUP4 if "self_attn" in name else CHANNEL4)


def int8(name, weight):
    return compressed(weight, "int-quantized", CHANNEL8)


def experts_mxfp4(name, weight):
    """gpt-oss: only the experts, which models in memory hold as (experts, inputs, features)."""
    if weight.dim() != 3:
        return None
    parts, decoded = zip(*(mxfp4(expert.T.contiguous()) for expert in weight))
    arrays = {f"_{kind}": torch.stack([part[f"weight_{kind}"] for part in parts]) for kind in ("blocks", "scales")}
    return arrays, np.stack([values.T for values in decoded])


# Case -> (quantization_config, quantizer of a layer's weight, changes of the model)
CASES = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True, "modules_to_not_convert": None},
            lambda name, weight: awq(weight), {"dtype": "f16"}),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "checkpoint_format": "gptq"},
             lambda name, weight: gptq(weight), {"dtype": "f16", "shards": 2}),
    "gptq-act-order": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False},
                       lambda name, weight: gptq(weight, symmetric=False, desc_act=True), {}),
    "gptq-v2-8bit": ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False, "sym": False, "checkpoint_format": "gptq_v2"},
                     lambda name, weight: gptq(weight, bits=8, group_size=-1, symmetric=False, version=2), {}),
    "gptq-3bit": ({"quant_method": "gptq", "bits": 3, "group_size": 64, "desc_act": False, "sym": False},
                  lambda name, weight: gptq(weight, bits=3, group_size=64, symmetric=False), {"tied": False}),
    "compressed-int4": (compressed_config("pack-quantized", [(ATTENTION, GROUP4), (MLP, CHANNEL4)]), pack_mixed, {}),
    "compressed-int8": (compressed_config("int-quantized", [(["Linear"], CHANNEL8)]), int8, {"model_type": "qwen2"}),
    "compressed-fp8": (compressed_config("float-quantized", [(["Linear"], TENSOR_FP8)]),
                       lambda name, weight: compressed(weight, "float-quantized", TENSOR_FP8), {}),
    "compressed-mxfp4": (compressed_config("mxfp4-pack-quantized", [(["Linear"], MXFP4)]),
                         lambda name, weight: compressed(weight, "mxfp4-pack-quantized", {**MXFP4, "scale_dtype": torch.uint8}), {}),
    "bitsandbytes-nf4": (BITS4, lambda name, weight: bitsandbytes4(weight), {"inner": 320, "shards": 2}),
    "bitsandbytes-fp4": ({**BITS4, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False},
                         lambda name, weight: bitsandbytes4(weight, "fp4", double=False), {"inner": 128, "tied": False, "dtype": "f16"}),
    "bitsandbytes-int8": (BITS8, lambda name, weight: bitsandbytes8(weight), {"model_type": "qwen2"}),
    "compressed-nvfp4": (compressed_config("nvfp4-pack-quantized", [(["Linear"], NVFP4)]), lambda name, weight: compressed_nvfp4(weight), {}),
    "modelopt-mixed": ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": MODELOPT_LAYERS, "ignore": ["lm_head"]},
                       lambda name, weight: fp8(weight) if "self_attn" in name else nvfp4(weight), {"model_type": "qwen3", "head_dim": 16}),
    "modelopt-nvfp4-qwen3-moe": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head", "*.gate"]},
                                 lambda name, weight: nvfp4(weight),
                                 {"model_type": "qwen3_moe", "head_dim": 16, "inner": 96, "features": ["experts"],
                                  "config": {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "norm_topk_prob": True}}),
    "fp8-blocks": ({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 48]},
                   lambda name, weight: fp8(weight, block=(32, 48)), {"model_type": "qwen3", "head_dim": 16}),
    "mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, lambda name, weight: mxfp4(weight), {}),
    "gpt-oss-mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}, experts_mxfp4,
                      {"model_type": "gpt_oss", "inner": 64, "head_dim": 16, "tied": False,
                       "rope": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "truncate": False},
                       "config": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 40}}),
    "awq-qwen3-moe": ({"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["gate"]},
                      lambda name, weight: awq(weight),
                      {"model_type": "qwen3_moe", "head_dim": 16, "inner": 96, "features": ["experts"],
                       "config": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}}),
}


def make_case(name, out):
    config, quantizer, changes = CASES[name]
    size = {"hidden": 64, "heads": 4, "kv": 2, "inner": 160, "layers": 1, "vocab": 272, "tied": True, "dtype": "bf16"}
    is_layer = lambda tensor: tensor.endswith(("_proj.weight", "_proj"))
    write_case({**row(name, name, []), **size, **changes}, config, lambda tensor, weight: quantizer(tensor, weight) if is_layer(tensor) else None, SEED, out)


def write_case(case, config, quantizer, seed, out):
    """Writes a checkpoint. `quantizer` returns None for a tensor that stays as it is. Returns the number of the others."""
    num_quantized = 0
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder)
        generator = write_model({**case, "shards": 1}, seed, plain, tokenizer_json(case["tokenizer_size"] or case["vocab"]))
        weights = load_file(plain / "model.safetensors")
        stored, values = {}, {}
        for tensor, weight in weights.items():
            quantized = quantizer(tensor, weight.float())
            if quantized is None:
                stored[tensor] = weight
                values[tensor] = weight.float() if weight.is_floating_point() else weight
                continue
            parts, decoded = quantized
            num_quantized += 1
            values[tensor] = torch.from_numpy(np.ascontiguousarray(decoded))
            stored |= {f"{tensor.removesuffix('weight')}{part}": array for part, array in parts.items()}
        save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
        judge = load_judge(case, plain)
        golden = make_golden(case, seed, judge, generator)
        if case["name"].startswith("random-"):
            worst, mean = float32_cost(golden, judge)
            golden["float32Cost"] = {"worst": round(worst, 6), "mean": round(mean, 6)}
        out.mkdir(parents=True, exist_ok=True)
        for file in ("generation_config.json", "tokenizer.json"):
            shutil.copy(plain / file, out / file)
        model_config = json.loads((plain / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**model_config, "quantization_config": config}, indent=2) + "\n")
    write_golden({**golden, "dtype": "quantized"}, out / "golden.json")
    save_weights(stored, case["shards"], out)
    return num_quantized


def save_weights(weights, shards, out):
    """The scales of a layer may lie in another file than its codes."""
    for old in out.glob("model*.safetensors*"):
        old.unlink()
    if shards == 1:
        return save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    files = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(sorted(weights))}
    for file in set(files.values()):
        save_file({name: weights[name] for name in files if files[name] == file}, out / file, metadata={"format": "pt"})
    (out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", help="comma-separated names (all by default)")
    args = parser.parse_args()
    out = args.out
    for name in args.cases.split(",") if args.cases else CASES:
        make_case(name, out / name)
        print(name, sum(file.stat().st_size for file in (out / name).iterdir()) // 1024, "KB", flush=True)


if __name__ == "__main__":
    main()
