"""OpenVINO.   python openvino_engine.py FOLDER [PROPERTY=VALUE …]        (openvino; the folder is an export of optimum)

Without properties, OpenVINO chooses how it computes: bf16 on this processor, activations in 8 bits, and a KV cache in 8 bits.
"""

import os
import re
import sys

import numpy as np
import openvino as ov
from protocol import serve


def bits_per_weight(folder, model):
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    count = sum(int(np.prod(node.shape)) for node in constants if re.search(r"weight|embed", node.friendly_name) and is_codes(node))
    return 8 * os.path.getsize(f"{folder}/openvino_model.bin") / count if count else 0.0


def is_codes(node):
    """Whether the constant is a matrix of weights: neither scales nor zero points."""
    return int(np.prod(node.shape)) >= 1 << 16 and not re.search(r"scale|zero_point", node.friendly_name)


def main():
    folder, pairs = sys.argv[1], [pair.split("=", 1) for pair in sys.argv[2:]]
    core = ov.Core()
    model = core.read_model(f"{folder}/openvino_model.xml")
    bits = bits_per_weight(folder, model)
    properties = {"INFERENCE_NUM_THREADS": int(os.environ.get("QUALITY_THREADS", "2")), **dict(pairs)}
    request = core.compile_model(model, "CPU", properties).create_infer_request()

    def logits_of(ids):
        request.reset_state()
        count = len(ids)
        inputs = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, count), np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        return request.infer(inputs)["logits"][0].astype(np.float32)

    serve(f"OpenVINO {ov.__version__.split('-')[0]}, {os.path.basename(folder)} {' '.join(sys.argv[2:])}".strip(), bits, logits_of)


main()
