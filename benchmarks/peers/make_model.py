"""Writes a Hugging Face directory with random bf16 weights of a shape of Qwen and a tokenizer of the right size.

  python make_model.py DIR [0.5b|1.5b|30b-a3b]        (requires numpy; default 0.5b)

0.5b and 1.5b are Qwen2.5. 30b-a3b is Qwen3 with 128 experts, cut to 4 of 48 layers.

The values are distributed as in a trained model, to avoid zeros, denormals and overflow. The generated text is meaningless.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16", "hidden_act": "silu", "hidden_size": 896,
    "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True, "use_sliding_window": False,
    "bos_token_id": 151643, "eos_token_id": 151645, "initializer_range": 0.02, "use_cache": True,
}


SHAPES = {
    "0.5b": {},
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
    "30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False, "attention_bias": False,
    },
}


def mlp_shapes(config, prefix):
    hidden = config["hidden_size"]
    experts = [f"{prefix}mlp.experts.{i}." for i in range(config.get("num_experts", 0))]
    if experts:
        yield f"{prefix}mlp.gate.weight", (len(experts), hidden)
    inner = config["moe_intermediate_size" if experts else "intermediate_size"]
    for mlp in experts or [f"{prefix}mlp."]:
        for name, shape in (("gate_proj.weight", (inner, hidden)), ("up_proj.weight", (inner, hidden)), ("down_proj.weight", (hidden, inner))):
            yield mlp + name, shape


def attention_shapes(config, prefix):
    hidden, is_qwen3 = config["hidden_size"], "head_dim" in config
    head_dim = config["head_dim"] if is_qwen3 else hidden // config["num_attention_heads"]
    heads, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    for name, rows in (("q", heads), ("k", kv), ("v", kv)):
        yield f"{prefix}self_attn.{name}_proj.weight", (rows, hidden)
        if not is_qwen3:
            yield f"{prefix}self_attn.{name}_proj.bias", (rows,)
        elif name != "v":
            yield f"{prefix}self_attn.{name}_norm.weight", (head_dim,)
    yield f"{prefix}self_attn.o_proj.weight", (hidden, heads)


def shapes(config):
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        yield from attention_shapes(config, prefix)
        yield from mlp_shapes(config, prefix)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def random_bf16(rng, name, shape):
    values = rng.standard_normal(shape, dtype=np.float32)
    if "norm" in name:
        values = 1 + 0.1 * values
    else:
        values *= 0.02 if "embed" in name else 0.1 if "bias" in name else 1 / np.sqrt(shape[-1])
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def write_weights(path, config):
    header, offset = {}, 0
    for name, shape in shapes(config):
        size = int(np.prod(shape)) * 2
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(1)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes(config):
            file.write(random_bf16(rng, name, shape).tobytes())


def byte_characters():
    """Returns the characters that byte-level BPE uses for bytes."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) for byte in visible] + [chr(256 + i) for i in range(len(hidden))]


def write_tokenizer(directory):
    words = byte_characters()
    words += ["wo"] + [f"word{i}" for i in range(len(words) + 1, 151643)]
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words += specials
    words += [f"word{i}" for i in range(len(words), 151936)]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": 151643 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for i, text in enumerate(specials)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "vocab": {word: i for i, word in enumerate(words)}, "merges": ["w o"]},  # llama.cpp wants a merge
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}))


def main():
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    config = CONFIG | SHAPES[sys.argv[2] if len(sys.argv) > 2 else "0.5b"]
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    (directory / "generation_config.json").write_text(json.dumps({"bos_token_id": 151643, "eos_token_id": [151645, 151643]}))
    write_tokenizer(directory)
    write_weights(directory / "model.safetensors", config)


if __name__ == "__main__":
    main()
