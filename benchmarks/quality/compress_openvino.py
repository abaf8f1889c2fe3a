"""Quantizes an export of OpenVINO as optimum does.   python compress_openvino.py FP16_FOLDER TO_FOLDER int8|int4        (nncf)

int4: symmetric, groups of 64, the embedding and the head in 8 bits, as Capstan has them.
"""

import sys
from pathlib import Path

import nncf
import openvino as ov

source, target, kind = sys.argv[1:]
model = ov.Core().read_model(f"{source}/openvino_model.xml")
if kind == "int8":
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
else:
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=64, ratio=1.0)
Path(target).mkdir(exist_ok=True)
ov.save_model(model, f"{target}/openvino_model.xml", compress_to_fp16=False)
