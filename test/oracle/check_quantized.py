"""Reads a folder of `capstan quantize` with transformers and compressed-tensors:

    pip install compressed-tensors==0.20.0 && python test/oracle/check_quantized.py ORIGINAL FOLDER [--golden NAME]

Prints the SHA-256 of each decoded matrix as JSON, after comparing the logits of the compressed model with those of
ORIGINAL with the decoded weights. `--golden NAME` writes them to fixtures/quantize.json.
"""

import argparse
import hashlib
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import match_name
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

GOLDEN = Path(__file__).parent / "fixtures" / "quantize.json"


def load_all(folder):
    return {name: tensor for file in sorted(Path(folder).glob("*.safetensors")) for name, tensor in load_file(file).items()}


def decode(folder):
    """The values of each module, in float32, by the package compressed-tensors."""
    tensors = load_all(folder)
    config = QuantizationConfig.model_validate(json.loads((Path(folder) / "config.json").read_text())["quantization_config"])
    compressor = BaseCompressor.get_value_from_registry(config.format)
    values, rest = {}, {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight_packed":
            schemes = [scheme for scheme in config.config_groups.values() if any(match_name(module, target) for target in scheme.targets)]
            assert len(schemes) == 1 and module not in config.ignore, module
            state = {key: tensors[f"{module}.{key}"] for key in ("weight_packed", "weight_scale", "weight_shape")}
            state["weight_scale"] = state["weight_scale"].float()
            values[module] = compressor.decompress(state, schemes[0])["weight"].float()
        elif part not in ("weight_scale", "weight_shape"):
            rest[name] = tensor
    return values, rest


def logits(folder, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    ids = torch.arange(3, 60)[None] % (model.config.get_text_config().vocab_size - 1)
    with torch.no_grad():
        return model(ids).logits.float()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("original")
    parser.add_argument("folder")
    parser.add_argument("--golden")
    args = parser.parse_args()
    values, rest = decode(args.folder)
    with tempfile.TemporaryDirectory() as plain:
        config = json.loads((Path(args.folder) / "config.json").read_text())
        config.pop("quantization_config")
        (Path(plain) / "config.json").write_text(json.dumps(config))
        state = {name: tensor.float().contiguous() for name, tensor in rest.items()} | {f"{module}.weight": value.contiguous() for module, value in values.items()}
        save_file(state, Path(plain) / "model.safetensors", metadata={"format": "pt"})
        wanted = logits(plain, torch.float32)
    got = logits(args.folder, torch.float32)
    original = logits(args.original, torch.float32)
    assert torch.equal(got, wanted), (got - wanted).abs().max()
    rounded = (logits(args.folder, torch.bfloat16) - wanted).abs().max().item()
    print(f"{len(values)} matrices; logits of transformers equal those of the decoded weights; to the original at most "
          f"{(got - original).abs().max().item():.3f}, in bfloat16 {rounded:.3f}, of {wanted.abs().max().item():.1f}")
    hashes = {module: hashlib.sha256(values[module].numpy().tobytes()).hexdigest() for module in sorted(values)}
    if args.golden:
        golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        golden[args.golden] = hashes
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


main()
