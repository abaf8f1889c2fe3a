"""Writes small quantized tensors of every layout with their values, for test/native/test_grouped_tensor.cpp:

    python test/oracle/group_values.py > test/native/fixtures/group-values.txt

A line holds a name, the layout, bits, rows, columns, and rows and columns of a group; then the type and the bytes in hex
of the scales, zero points, group index, and factor and divisor of the scales (`-` if there are none), the bytes of the
codes, and the bits of the values as f32 in hex. Lines of bitsandbytes also have the type and the bytes of the values
of codes, and of the values and factors of scales in bytes, then the number of scales of a factor and the offset.
"""

import json

import numpy as np
import torch

from quantized_formats import awq, bitsandbytes4, bitsandbytes8, compressed, compressed_nvfp4, fp8, gptq, mxfp4, nvfp4

ROWS, COLS = 16, 64
TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.uint8: "e8m0", torch.float8_e8m0fnu: "e8m0", torch.float8_e4m3fn: "e4m3", torch.int32: "i32", torch.int8: "i8"}
PACKED = ("weight_packed", "weight_scale", "weight_zero_point", "-", "-", "weight_global_scale")
AUTO = ("qweight", "scales", "qzeros", "g_idx", "-", "-")
BYTES = ("weight", "weight_scale", "weight_zero_point", "-", "weight_scale_2", "-")
TABLE = ("weight", "weight.absmax", "-", "-", "-", "-")
INVERSE = ("weight", "weight_scale_inv", "-", "-", "-", "-")

weight = torch.randn(ROWS, COLS, generator=torch.Generator().manual_seed(3)) * 0.1


def args(bits, strategy, symmetric=True, type="int", **more):
    return {"num_bits": bits, "type": type, "strategy": strategy, "symmetric": symmetric, **more}


# name, layout, bits, rows and columns of a group, names of the arrays, the tensors and values
CASES = [
    ("awq", "awq", 4, 1, 32, AUTO, awq(weight)),
    ("gptq-2", "gptq", 2, 1, 16, AUTO, gptq(weight, bits=2, group_size=16, symmetric=False)),
    ("gptq-3", "gptq", 3, 1, 32, AUTO, gptq(weight, bits=3, symmetric=False)),
    ("gptq-4", "gptq", 4, 1, 32, AUTO, gptq(weight)),
    ("gptq-4-ragged", "gptq", 4, 1, 48, AUTO, gptq(weight, group_size=48, symmetric=False)),
    ("gptq-8-channel", "gptq_v2", 8, 1, COLS, AUTO, gptq(weight, bits=8, group_size=-1, symmetric=False, version=2)),
    ("gptq-4-act-order", "gptq", 4, 1, 16, AUTO, gptq(weight, group_size=16, symmetric=False, desc_act=True)),
    ("packed-4", "rows", 4, 1, 32, PACKED, compressed(weight, "pack-quantized", args(4, "group", group_size=32))),
    ("packed-4-channel-zeros", "rows", 4, 1, COLS, PACKED, compressed(weight, "pack-quantized", args(4, "channel", False), torch.float16)),
    ("packed-5-zeros", "rows", 5, 1, 16, PACKED, compressed(weight, "pack-quantized", args(5, "group", False, group_size=16))),
    ("packed-6", "rows", 6, 1, COLS, PACKED, compressed(weight, "pack-quantized", args(6, "channel"))),
    ("packed-7", "rows", 7, 1, 32, PACKED, compressed(weight, "pack-quantized", args(7, "group", group_size=32), torch.float32)),
    ("packed-8-zeros", "rows", 8, 1, 16, PACKED, compressed(weight, "pack-quantized", args(8, "group", False, group_size=16))),
    ("int8-channel", "int8", 8, 1, COLS, BYTES, compressed(weight, "int-quantized", args(8, "channel"))),
    ("int8-tensor-zeros", "int8", 8, ROWS, COLS, BYTES, compressed(weight, "int-quantized", args(8, "tensor", False), torch.float32)),
    ("fp8-blocks", "fp8", 8, 12, 48, INVERSE, fp8(weight, (12, 48))),
    ("fp8-powers", "fp8", 8, 1, 32, INVERSE, fp8(weight, (1, 32), torch.float8_e8m0fnu)),
    ("fp8-channel", "fp8", 8, 1, COLS, BYTES, compressed(weight, "float-quantized", args(8, "channel", type="float"))),
    ("mxfp4", "fp4", 4, 1, 32, ("weight_blocks", "weight_scales", "-", "-", "-", "-"), mxfp4(weight)),
    ("nvfp4-factor", "fp4_e4m3", 4, 1, 16, BYTES, nvfp4(weight)),
    ("bitsandbytes-nf4", "table4", 4, 1, 32, TABLE, bitsandbytes4(weight, double=False, block=32)),
    ("bitsandbytes-fp4-double", "table4", 4, 1, 32, TABLE, bitsandbytes4(weight, "fp4", block=32)),
    ("bitsandbytes-int8", "int8_max", 8, 1, COLS, ("weight", "SCB", "-", "-", "-", "-"), bitsandbytes8(weight)),
    ("nvfp4-divisor", "fp4_e4m3", 4, 1, 16, PACKED, compressed_nvfp4(weight)),
]

for name, layout, bits, group_rows, group_cols, names, (tensors, values) in CASES:
    codes, *arrays = (tensors.get(part) for part in names)
    text = lambda tensor: tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()
    described = " ".join("- -" if array is None else f"{TYPES[array.dtype]} {text(array)}" for array in arrays)
    bits_of_values = (np.ascontiguousarray(values, np.float32) + np.float32(0)).view(np.uint32).astype(">u4").tobytes().hex()
    tables = [tensors.get(f"weight.{part}") for part in ("quant_map", "nested_quant_map", "nested_absmax")] if layout == "table4" else []
    described_tables = [f"f32 {text(array)}" if array is not None else "- -" for array in tables]
    states = [json.loads(bytes(tensor.tolist())) for part, tensor in tensors.items() if "quant_state" in part]
    nested = [f"{state.get('nested_blocksize', 1)} {state.get('nested_offset', 0)!r}" for state in states]
    print(name, layout, bits, ROWS, COLS, group_rows, group_cols, described, text(codes), bits_of_values, *described_tables, *nested)
