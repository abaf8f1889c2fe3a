"""Quantizes weights as the checkpoints of each method store them. The values come from each format's definition, value =
(code - zero point) * scale in float32, or from the package compressed-tensors.

A function takes a weight (rows, cols) and returns the tensors that replace it, by the end of their names, and the values.
"""

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize as dequantize_compressed

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
FP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def groups_of(cols, group_size):
    """Returns the group of each column."""
    return np.arange(cols) // (cols if group_size == -1 else group_size)


def quantize(weight, bits, group_index, symmetric):
    """Returns codes (rows, cols), scales (rows, groups) in f16, and zero points (rows, groups)."""
    rows, num_groups, top = weight.shape[0], group_index.max() + 1, 2**bits - 1
    scales, zeros = np.zeros((rows, num_groups), np.float16), np.zeros((rows, num_groups), np.int64)
    codes = np.zeros(weight.shape, np.int64)
    for group in range(num_groups):
        part = weight[:, group_index == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scales[:, group] = (high - low) / top
        zeros[:, group] = 2 ** (bits - 1) if symmetric else np.clip(np.round(-low / scales[:, group].astype(np.float32)), 0, top)
        codes[:, group_index == group] = np.clip(
            np.round(part / scales[:, group, None].astype(np.float32)) + zeros[:, group, None], 0, top)
    return codes, scales, zeros


def dequantize(codes, scales, zeros, group_index):
    return (codes - zeros[:, group_index]).astype(np.float32) * scales[:, group_index].astype(np.float32)


def pack_bits(codes, bits):
    """Packs the codes of each row into words of 32 bits, first code in the lowest bits, across the ends of words."""
    rows, count = codes.shape
    stream = (codes[:, :, None] >> np.arange(bits) & 1).reshape(rows, count * bits)
    padded = np.zeros((rows, -(-count * bits // 32) * 32), np.uint64)
    padded[:, : count * bits] = stream
    return (padded.reshape(rows, -1, 32) << np.arange(32, dtype=np.uint64)).sum(2).astype(np.uint32).view(np.int32)


def gptq(weight, bits=4, group_size=32, symmetric=True, desc_act=False, version=1, seed=1):
    weight = weight.numpy().astype(np.float32)
    index = groups_of(weight.shape[1], group_size)
    if desc_act:
        index = np.random.default_rng(seed).permutation(index)
    codes, scales, zeros = quantize(weight, bits, index, symmetric)
    if version == 1:
        zeros = np.maximum(zeros, 1)  # the format stores them less one
    tensors = {
        "qweight": pack_bits(codes, bits).T,
        "qzeros": pack_bits(zeros.T - (version == 1), bits),
        "scales": scales.T,
        "g_idx": index.astype(np.int32),
    }
    return as_torch(tensors), dequantize(codes, scales, zeros, index)


def awq(weight, group_size=32):
    weight = weight.numpy().astype(np.float32)
    index = groups_of(weight.shape[1], group_size)
    codes, scales, zeros = quantize(weight, 4, index, symmetric=False)
    reorder = lambda array: array.reshape(array.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(array.shape)
    tensors = {"qweight": pack_bits(reorder(codes.T), 4), "qzeros": pack_bits(reorder(zeros.T), 4), "scales": scales.T}
    return as_torch(tensors), dequantize(codes, scales, zeros, index)


def mxfp4(weight):
    weight = weight.numpy().astype(np.float32)
    rows, cols = weight.shape
    blocks = weight.reshape(rows, cols // 32, 32)
    exponents = np.floor(np.log2(np.abs(blocks).max(2))).astype(int) - 2
    scaled = blocks / 2.0 ** exponents[:, :, None]
    codes = np.abs(scaled[..., None] - FP4_VALUES).argmin(3).astype(np.uint8)
    tensors = {"weight_blocks": codes[..., 0::2] | codes[..., 1::2] << 4, "weight_scales": (exponents + 127).astype(np.uint8)}
    values = FP4_VALUES[codes] * (2.0 ** exponents[:, :, None]).astype(np.float32)
    return as_torch(tensors), values.reshape(rows, cols)


def nvfp4_scales(weight):
    """Returns the scales of each 16 columns in e4m3, and the tensor's factor."""
    largest = weight.float().reshape(weight.shape[0], -1, 16).abs().amax(2)
    factor = largest.max() / (6 * 448)
    return (largest / (6 * factor)).clamp(2**-9, 448).to(torch.float8_e4m3fn), factor


def nvfp4(weight):
    """As ModelOpt stores it."""
    rows, cols = weight.shape
    scales, factor = nvfp4_scales(weight)
    group_scales = scales.float().numpy() * np.float32(factor)
    groups = weight.float().numpy().reshape(rows, cols // 16, 16)
    codes = np.abs((groups / group_scales[:, :, None])[..., None] - FP4_VALUES).argmin(3).astype(np.uint8)
    values = (FP4_VALUES[codes] * group_scales[:, :, None]).reshape(rows, cols)
    tensors = {
        "weight": torch.from_numpy(np.ascontiguousarray((codes[..., 0::2] | codes[..., 1::2] << 4).reshape(rows, cols // 2))),
        "weight_scale": scales,
        "weight_scale_2": factor,
        "input_scale": torch.tensor(0.02),
    }
    return tensors, values


def compressed_nvfp4(weight):
    """The values are those that the package decodes, with the quotient of scale and divisor in float32."""
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True, scale_dtype=torch.float8_e4m3fn)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    scales, factor = nvfp4_scales(weight)
    state = {"weight": weight.float(), "weight_scale": scales.float(), "weight_global_scale": (1 / factor).reshape(1)}
    stored = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized").compress(state, scheme)
    numbers = unpack_fp4_from_uint8(stored["weight_packed"], *weight.shape, torch.float32)
    values = dequantize_compressed(numbers, stored["weight_scale"].float(), args=args, global_scale=stored["weight_global_scale"], dtype=torch.float32)
    return {name: tensor.contiguous() for name, tensor in stored.items()}, values.numpy()


def fp8(weight, block=None, scale_dtype=torch.float32):
    """Without blocks: one scale for the tensor."""
    rows, cols = weight.shape
    block_rows, block_cols = block or (rows, cols)
    scales = torch.zeros(-(-rows // block_rows), -(-cols // block_cols))
    wide = lambda: scales.repeat_interleave(block_rows, 0)[:rows].repeat_interleave(block_cols, 1)[:, :cols]
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = weight[i * block_rows : (i + 1) * block_rows, j * block_cols : (j + 1) * block_cols]
            scales[i, j] = part.abs().max() / 448
    scales = scales.to(scale_dtype).float()
    codes = (weight.float() / wide()).clamp(-448, 448).to(torch.float8_e4m3fn)
    stored = scales.to(scale_dtype)
    tensors = {"weight": codes, **({"weight_scale_inv": stored} if block else {"weight_scale": stored.reshape(())})}
    return tensors, (codes.float() * wide()).numpy()


def compressed(weight, format, args, scale_dtype=torch.bfloat16):
    """`args` are those of a QuantizationArgs for the weights. The values are those that the package decodes, with the
    scales in float32."""
    arguments = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    rows, cols = weight.shape
    weight = weight.float()
    strategy = arguments.strategy
    size = {"tensor": cols, "channel": cols, "group": arguments.group_size, "block": None}[strategy]
    if strategy == "block":
        block_rows, block_cols = arguments.block_structure
        low = high = torch.stack([torch.stack([p.abs().max() for p in r.split(block_cols, 1)]) for r in weight.split(block_rows, 0)])
    elif strategy == "tensor":
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    else:
        low, high = weight.reshape(rows, -1, size).amin(2), weight.reshape(rows, -1, size).amax(2)
    low, high = low.clamp(max=0), high.clamp(min=0)
    state = {"weight": weight}
    if arguments.type == "float" and arguments.num_bits == 4:
        scale = 2.0 ** (torch.floor(torch.log2(torch.maximum(-low, high))) - 2)
    elif arguments.type == "float":
        scale = torch.maximum(-low, high) / 448
    elif arguments.symmetric:
        scale = torch.maximum(-low, high) / (2**arguments.num_bits - 1) * 2
    else:
        scale = (high - low) / (2**arguments.num_bits - 1)
    scale = scale.to(scale_dtype).float()
    state["weight_scale"] = scale
    if not arguments.symmetric:
        middle = 2 ** (arguments.num_bits - 1)
        state["weight_zero_point"] = (torch.round(-low / scale) - middle).clamp(-middle, middle - 1).to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(format)
    stored = compressor.compress(dict(state), scheme)
    values = compressor.decompress(dict(stored), scheme)["weight"].float().numpy()
    if stored["weight_scale"].dtype == torch.float32:
        stored["weight_scale"] = stored["weight_scale"].to(scale_dtype)
    return {name: tensor.contiguous() for name, tensor in stored.items()}, values


def bitsandbytes4(weight, type="nf4", double=True, block=64):
    """The tensors and the values of the package bitsandbytes."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    codes, state = quantize_4bit(weight.float().contiguous(), blocksize=block, compress_statistics=double, quant_type=type)
    tensors = {"weight": codes, **{f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}}
    return tensors, dequantize_4bit(codes, state).numpy()


def bitsandbytes8(weight):
    from bitsandbytes.functional import int8_vectorwise_quant

    codes, largest, _ = int8_vectorwise_quant(weight.half())
    tensors = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, (codes.float() * (largest / 127)[:, None]).numpy()


def as_torch(tensors):
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in tensors.items()}
