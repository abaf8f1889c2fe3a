"""Random quantized checkpoints of every family: the method, its settings and the layers that keep 16 bits are drawn from a seed.

    python test/oracle/random_quantized.py --seed 7 --random 30 --out DIR [--families llama,qwen3_moe] [--methods awq,fp8]

Needs compressed-tensors and bitsandbytes besides requirements.txt. `compare.ts` compares them.
"""

import argparse
import math
import re
from pathlib import Path

import torch

import random_cases
from make_quantized import BITS4, BITS8, NVFP4, compressed_config, write_case
from quantized_formats import awq, bitsandbytes4, bitsandbytes8, compressed, compressed_nvfp4, fp8, gptq, nvfp4
from random_cases import FAMILIES, Draw, random_case

# Most formats need such sizes. Layers of other sizes keep 16 bits.
random_cases.INNER[:] = [96, 128, 192, 256]
random_cases.EXPERT_INNER[:] = [32, 64, 128]
random_cases.HEAD_DIMS[:] = [16, 32, 64, 128]
LINEAR = re.compile(r"(_proj|\.w[123]|in_proj_\w+|\.(q|k|v|o)|dense)\.weight$|^lm_head\.weight$")


def fits(weight, rows, cols):
    return weight.dim() == 2 and weight.shape[0] % rows == 0 and weight.shape[1] % cols == 0


def group_sizes(draw):
    return draw.pick(32, 32, 64, 128, -1)


def group_fits(weight, size):
    return size == -1 or weight.shape[1] % size == 0


def draw_awq(draw):
    size = group_sizes(draw)
    config = {"quant_method": "awq", "bits": 4, "group_size": size, "version": draw.pick("gemm", "GEMM"), "zero_point": True,
              **draw.some(modules_to_not_convert=draw.pick(None, ["gate", "lm_head"]), backend="autoawq", do_fuse=False)}
    return config, lambda name, weight: awq(weight, size) if fits(weight, 8, 32) and group_fits(weight, size) else None


def draw_gptq(draw):
    settings = {"bits": draw.pick(2, 3, 4, 4, 8), "group_size": group_sizes(draw)}
    rules = {}
    if draw.chance(0.4):
        rules = {r"+:.*\.down_proj": {"bits": draw.pick(2, 4, 8), "group_size": group_sizes(draw)}, r"-:.*\.k_proj": {}}
    desc_act, version, symmetric = draw.chance(0.4), draw.pick(1, 1, 2), draw.chance(0.5)
    config = {"quant_method": "gptq", **settings, "desc_act": desc_act, "sym": symmetric,
              **({"checkpoint_format": f"gptq{'_v2' if version == 2 else ''}"} if version == 2 or draw.chance(0.5) else {}),
              **({"dynamic": rules} if rules else {}), **draw.some(true_sequential=True, modules_in_block_to_quantize=None, static_groups=False)}

    def quantize(name, weight):
        own = {**settings, **(rules.get(r"+:.*\.down_proj", {}) if ".down_proj" in name else {})}
        if not fits(weight, 32, 32) or not group_fits(weight, own["group_size"]) or (rules and ".k_proj" in name):
            return None
        return gptq(weight, own["bits"], own["group_size"], symmetric, desc_act, version, seed=draw.randrange(1000))

    return config, quantize


def integer_args(draw, bits):
    strategy = draw.pick("group", "channel", "group") if bits < 8 else draw.pick("channel", "tensor", "group")
    size = {"group_size": draw.pick(16, 32, 64, 128)} if strategy == "group" else {}
    return {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": draw.chance(0.5), **size}


def draw_packed(draw):
    """One or two groups of layers, with their own bits."""
    groups = [integer_args(draw, draw.pick(2, 3, 4, 4, 5, 6, 7, 8)) for _ in range(draw.pick(1, 2))]
    targets = [["Linear"]] if len(groups) == 1 else [["re:.*self_attn.*"], ["re:.*mlp.*", "re:.*experts.*"]]
    config = compressed_config("pack-quantized", list(zip(targets, groups)), kv_cache_scheme=None)

    def quantize(name, weight):
        args = groups[-1 if "attn" not in name else 0]
        if weight.dim() != 2 or args.get("group_size") and weight.shape[1] % args["group_size"]:
            return None
        return compressed(weight, "pack-quantized", args, draw.pick(torch.bfloat16, torch.float16))

    return config, quantize


def draw_int8(draw):
    args = integer_args(draw, 8)
    activations = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    config = compressed_config("int-quantized", [(["Linear"], args)])
    config["config_groups"]["group_0"]["input_activations"] = activations
    fitting = lambda weight: weight.dim() == 2 and not (args.get("group_size") and weight.shape[1] % args["group_size"])
    return config, lambda name, weight: compressed(weight, "int-quantized", args, torch.float32) if fitting(weight) else None


def draw_float(draw):
    args = {"num_bits": 8, "type": "float", "strategy": draw.pick("tensor", "channel", "channel"), "symmetric": True}
    is_static = draw.chance(0.5)

    def quantize(name, weight):
        if weight.dim() != 2:
            return None
        tensors, values = compressed(weight, "float-quantized", args)
        return {**tensors, **({"input_scale": torch.tensor(0.02)} if is_static else {})}, values

    return compressed_config("float-quantized", [(["Linear"], args)]), quantize


def draw_fp8(draw):
    block = draw.pick(None, (128, 128), (128, 128), (64, 32), (7, 128))
    scheme = draw.pick("dynamic", "static")
    config = {"quant_method": "fp8", **draw.some(fmt="e4m3"), "activation_scheme": scheme, **({"weight_block_size": list(block)} if block else {}),
              **draw.some(modules_to_not_convert=["lm_head"])}
    scale_dtype = draw.pick(torch.float32, torch.bfloat16)

    def quantize(name, weight):
        if weight.dim() != 2:
            return None
        tensors, values = fp8(weight, block, scale_dtype)
        return {**tensors, **({"input_scale": torch.tensor(0.02)} if scheme == "static" else {})}, values

    return config, quantize


def draw_nvfp4(draw):
    config = compressed_config("nvfp4-pack-quantized", [(["Linear"], NVFP4)])
    return config, lambda name, weight: compressed_nvfp4(weight) if fits(weight, 1, 16) else None


def draw_modelopt(draw):
    """With some layers in FP8."""
    share = draw.pick(0, 0.3)
    layers = {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}
    config = {"quant_method": "modelopt", **({"quant_algo": "MIXED_PRECISION", "quantized_layers": layers} if share else
                                             {"quant_algo": draw.pick("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ"), **draw.some(group_size=16)})}

    def quantize(name, weight):
        if not fits(weight, 1, 16):
            return None
        return fp8(weight) if draw.chance(share) else nvfp4(weight)

    return config, quantize


def draw_bitsandbytes(draw):
    kind, double = draw.pick("nf4", "nf4", "fp4", "int8"), draw.chance(0.6)
    if kind == "int8":
        return BITS8, lambda name, weight: bitsandbytes8(weight) if weight.dim() == 2 else None
    config = {**BITS4, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": double}
    block = draw.pick(64, 64, 64, 32, 128)
    return config, lambda name, weight: bitsandbytes4(weight, kind, double, block) if fits(weight, 1, block) else None


METHODS = {"awq": draw_awq, "gptq": draw_gptq, "packed": draw_packed, "int8": draw_int8, "float": draw_float, "fp8": draw_fp8,
           "nvfp4": draw_nvfp4, "modelopt": draw_modelopt, "bitsandbytes": draw_bitsandbytes}


def all_experts(config):
    """Rounded activations would choose other experts."""
    count = next((config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(key)), None)
    chosen = next((key for key in ("num_experts_per_tok", "top_k_experts") if config.get(key)), None)
    groups = {"topk_group": config["n_group"]} if config.get("n_group") else {}
    return {} if count is None or chosen is None else {chosen: count, **groups}


def draw_case(draw, family, method, index):
    """Returns a case, its quantization_config and a function that quantizes a tensor."""
    case = random_case(draw, family, index)
    # As few quantized checkpoints: in their native names, with the sizes of the table.
    is_free = case["head_dim"] and family not in ("helium", "granitemoehybrid")
    size = {"hidden": math.lcm(32, case["heads"]) * draw.pick(1, 2)} if is_free else {}
    features = [name for name in case["features"] if name not in ("memory-names", "hub-prefix", "head-only", "other-head", "stored-head")]
    case = {**case, **size, "outer": None, "features": features, "config": {**case["config"], **all_experts(case["config"])},
            "name": f"random-{index:02d}-{family}-{method}"}
    config, quantize = METHODS[method](draw)
    kept, has_head = draw.pick(0, 0, 0.15), draw.chance(0.3) and not case["tied"]

    def quantizer(name, weight):
        if not LINEAR.search(name) or (name == "lm_head.weight" and not has_head) or draw.chance(kept):
            return None
        return quantize(name, weight)

    return case, config, quantizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--random", type=int, required=True, help="number of checkpoints")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--families", type=lambda text: text.split(","), default=list(FAMILIES))
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    args = parser.parse_args()
    draw = Draw(args.seed)
    families = [name for _ in range(-(-args.random // len(args.families))) for name in draw.sample(args.families, len(args.families))]
    for index, family in enumerate(families[: args.random]):
        case, config, quantizer = draw_case(draw, family, args.methods[index % len(args.methods)], index)
        numbers = write_case(case, config, quantizer, args.seed, args.out / case["name"])
        print(case["name"], f"{numbers} quantized tensors", flush=True)


if __name__ == "__main__":
    main()
