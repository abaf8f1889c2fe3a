"""Converts golden cases to GGUF with the converter of llama.cpp: python test/oracle/convert_gguf.py LLAMA_CPP --out DIR [--cases a,b]

LLAMA_CPP is a source tree of llama.cpp, such as vendor/llama.cpp in the source distribution of llama-cpp-python. Names,
keys and the order of rows are those of its converter. Two things are ours: the tokenizer, because the converter knows
only published ones, and keys that llama.cpp reads or ignores but its converter does not write (EXTRA_KEYS).
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
FIXTURES = Path(__file__).parent / "fixtures"
# Together: each architecture that is not in make_gguf.py.
CASES = [
    "cohere2-f32", "ernie45-bf16", "exaone4-f32", "gemma2-bf16", "gemma3-bf16", "gemma4-f32", "gemma4-moe-f32", "glm4-f32", "gpt-oss-f32", "gpt-oss-mxfp4", "granite-bf16", "granitemoe-f32",
    "hunyuan-f32", "lfm2-f32", "lfm2-moe-f32", "ministral3-f32", "mixtral-f32", "olmo2-bf16", "olmo3-f32", "olmoe-f32", "phi3-f32", "phi4-mini-f32",
    "phi4-mini-short-f16", "qwen2-moe-bf16", "qwen3-moe-f32", "seed-oss-f32", "smollm3-fourth-bf16",
]
TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "mxfp4": "MOSTLY_BF16"}


def add_extra_keys(writer, config):
    kind = config["model_type"]
    if kind == "gemma3_text":  # by default every sixth layer is full, as in all published models
        writer.add_sliding_window_pattern([layer == "sliding_attention" for layer in config["layer_types"]])
    if kind == "mixtral" and config.get("sliding_window"):  # llama.cpp has no window for Mixtral
        writer.add_sliding_window(config["sliding_window"])


def convert(case, source, out):
    from conversion import get_model_class
    from conversion.base import ModelBase, ModelType, get_model_architecture
    import gguf

    from gguf_writer import add_tokenizer, read_config

    hparams = ModelBase.load_hparams(source, False)
    model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    dtype = case.rsplit("-", 1)[1]
    model = model_class(source, getattr(gguf.LlamaFileType, TYPES[dtype]), out, eager=True)
    inner = getattr(model, "impl", model)

    if hparams["model_type"] == "hunyuan_v1_dense":
        inner.hparams["max_position_embeddings"] = 32768  # the converter knows only the published lengths

    def set_vocab():
        add_tokenizer(inner.gguf_writer, source, read_config(source))
        add_extra_keys(inner.gguf_writer, hparams)

    model.set_vocab = inner.set_vocab = set_vocab
    model.write()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fixtures", type=Path, default=FIXTURES)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=CASES)
    args = parser.parse_args()
    sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]
    import torch

    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        for case in args.cases:
            source = next(path for path in (args.fixtures / case, args.fixtures / "quantized" / case) if path.exists())
            convert(case, source, args.out / f"{case}.gguf")


if __name__ == "__main__":
    main()
