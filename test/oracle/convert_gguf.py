"""Converts golden cases to GGUF with the converter of llama.cpp: python test/oracle/convert_gguf.py LLAMA_CPP --out DIR [--cases a,b]

LLAMA_CPP is a source tree of llama.cpp, such as vendor/llama.cpp in the source distribution of llama-cpp-python. Names,
keys and the order of rows are those of its converter. Two things are ours: the tokenizer, because the converter knows
only published ones, and keys that llama.cpp reads or ignores but its converter does not write (EXTRA_KEYS).
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
FIXTURES = Path(__file__).parent / "fixtures"
# Together: each architecture that is not in make_gguf.py.
CASES = [
    "apertus-f32", "cohere2-f32", "ernie45-bf16", "exaone4-f32", "gemma2-bf16", "gemma3-bf16", "gemma4-f32", "gemma4-moe-f32", "glm4-f32", "glm4-moe-f32", "glm4-moe-groups-f32", "gpt-oss-f32", "gpt-oss-mxfp4", "modelopt-nvfp4-qwen3-moe",
    "granite-bf16", "granite4-f32", "granitemoe-f32",
    "hunyuan-f32", "lfm2-f32", "lfm2-moe-f32", "ministral3-f32", "mixtral-f32", "olmo2-bf16", "olmo3-f32", "olmoe-f32", "phi3-f32", "phi4-mini-f32",
    "phi4-mini-short-f16", "qwen2-moe-bf16", "qwen3-moe-f32", "qwen3-next-experts-f32", "qwen35-f32", "qwen35-moe-f32",
    "seed-oss-f32", "smollm3-fourth-bf16", "cohere-f16", "gemma-f16", "qwen25-vl-f16", "qwen3-vl-f16", "stablelm-f16", "starcoder2-f16",
    "dots1-f16", "glm-f16", "minimax-m2-f16",
    # Models that pool, and models with an MTP head.
    *(f"embeddings/{name}" for name in (
        "bert-mean-bf16", "bert-mean-f32", "gemma3-f32", "modernbert-bias-f32", "modernbert-f32", "modernbert-rerank-f32",
        "nomic-f32", "qwen3-last-f32", "qwen3-rerank-f32", "qwen3-rerank-untied-f32", "roberta-rerank-f32", "xlmr-cls-f32", "xlmr-rerank-f32")),
    "mtp/hybrid", "mtp/experts",
]
TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "mxfp4": "MOSTLY_BF16"}


def add_extra_keys(writer, config):
    kind = config["model_type"]
    if kind == "gemma3_text":  # by default every sixth layer is full, as in all published models
        writer.add_sliding_window_pattern([layer == "sliding_attention" for layer in config["layer_types"]])
    if kind == "modernbert":  # the published config.json has this key too
        writer.add_layer_norm_eps(config["norm_eps"])
    if kind == "glm":  # published models have heads of hidden_size / num_attention_heads
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if kind in ("mixtral", "starcoder2") and config.get("sliding_window"):  # llama.cpp has no window for these
        writer.add_sliding_window(config["sliding_window"])
    if kind == "dots1" and config.get("sliding_window"):  # nor for this one
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([layer >= config["max_window_layers"] for layer in range(config["num_hidden_layers"])])


def published_nomic(config):
    """The keys of published models, which the converter reads, and the settings that it demands."""
    names = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers", "n_inner": "intermediate_size",
             "layer_norm_epsilon": "layer_norm_eps"}
    off = ["causal", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "rotary_emb_interleaved"]
    return {**config, **{own: config[name] for own, name in names.items()}, **dict.fromkeys(off, False), "n_positions": 8192,
            "max_trained_positions": 2048, "activation_function": "swiglu", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
            "rotary_emb_scale_base": None}


def fuse_attention(model):
    """As in published files, which were made from the first models: they have one tensor for q, k and v."""
    import torch

    own_tensors, parts = model.modify_tensors, {}

    def modify_tensors(data, name, layer):
        found = re.fullmatch(r"model\.layers\.\d+\.self_attn\.([qkv])_proj\.(weight|bias)", name)
        if found is None:
            yield from own_tensors(data, name, layer)
            return
        part, kind = found.groups()
        of_layer = parts.setdefault((layer, kind), {})
        of_layer[part] = data
        if len(of_layer) == 3:
            fused = torch.cat([of_layer[part] for part in "qkv"])
            yield from own_tensors(fused, f"encoder.layers.{layer}.self_attention.query_key_value.{kind}", layer)

    model.modify_tensors = modify_tensors


def convert(case, source, out):
    from conversion import get_model_class
    from conversion.base import ModelBase, ModelType, get_model_architecture
    from conversion.bert import BertModel
    import gguf

    from gguf_writer import add_tokenizer, add_unigram, read_tensors

    hparams = ModelBase.load_hparams(source, False)
    model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    model_class._is_qwen3_reranker = lambda self: "rerank" in case  # the converter looks for the published name
    model_class.no_mtp = "mtp.fc.weight" not in read_tensors(source)
    dtype = case.rsplit("-", 1)[-1]
    published = {"hparams": published_nomic(hparams)} if hparams["model_type"] == "nomic_bert" else {}
    model = model_class(source, getattr(gguf.LlamaFileType, TYPES.get(dtype, TYPES["f32"])), out, eager=True, sentence_transformers_dense_modules=True,
                        **published)
    inner = getattr(model, "impl", model)

    if hparams["model_type"] == "hunyuan_v1_dense":
        inner.hparams["max_position_embeddings"] = 32768  # the converter knows only the published lengths

    if hparams["model_type"] == "glm":  # the converter reads the names of the first models of this family
        inner.hparams["seq_length"] = hparams["max_position_embeddings"]
        inner.hparams["attention_dim"] = hparams["head_dim"]
        inner.hparams["layernorm_epsilon"] = hparams["rms_norm_eps"]

    # In 16 bits, the converter would round the norms to which it adds 1.
    own_tensors = inner.modify_tensors
    inner.modify_tensors = lambda data, name, layer: own_tensors(data.float(), name, layer)
    if hparams["model_type"] == "glm":
        fuse_attention(inner)
    own_vocab = inner.set_vocab

    def set_vocab():
        kind = json.loads((source / "tokenizer.json").read_text())["model"]["type"]
        if kind == "Unigram":
            add_unigram(inner.gguf_writer, source, hparams)
        elif source.parent.name == "embeddings":
            inner.get_vocab_base_pre = lambda tokenizer: "bert-bge" if kind == "WordPiece" else "qwen2"
            BertModel.set_vocab(inner) if kind == "WordPiece" else own_vocab()
        else:
            add_tokenizer(inner.gguf_writer, source)
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
            out = args.out / f"{case}.gguf"
            out.parent.mkdir(exist_ok=True)
            convert(case, source, out)


if __name__ == "__main__":
    main()
