"""Writes blocks of every quantized GGUF type with the values that the gguf package decodes.

    pip install gguf && python test/oracle/block_values.py > test/native/fixtures/block-values.txt

A line holds the type's name, the bytes of a few blocks in hex, and the bits of their values as f32 in hex.
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, dequantize

NAMES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4".split()
# Where each type keeps f16 values: random bytes there would be NaN, Inf or huge.
F16_PLACES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "NVFP4": [],
}  # fmt: skip


def random_blocks(name: str, random: np.random.Generator) -> np.ndarray:
    columns, size = GGML_QUANT_SIZES[Type[name]]
    blocks = random.integers(0, 256, (8 if columns == 32 else 3, size), dtype=np.uint8)
    for place in F16_PLACES[name]:
        scales = (random.standard_normal(len(blocks)) * 0.02).astype(np.float16)
        scales[0] = np.float16(3e-7)  # below the normal numbers of f16
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = [0, 1, 2, 118, 127, 128, 140, 160][: len(blocks)]
    if name == "NVFP4":
        blocks[:, :4] %= 127  # scales in e4m3 without a sign; 127 is NaN
        blocks[0, :4] = [0, 1, 7, 126]
    return blocks


random = np.random.default_rng(1)
for name in NAMES:
    blocks = random_blocks(name, random)
    values = dequantize(blocks, Type[name]).astype(np.float32).reshape(-1)
    print(name.lower(), blocks.tobytes().hex(), values.view(np.uint32).astype(">u4").tobytes().hex())
