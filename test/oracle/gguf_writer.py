"""Writes the weights of a golden case as GGUF for llama.cpp, and reports what llama.cpp does not support."""

import json
import math
import struct

import gguf
import numpy as np

# safetensors type -> (as stored, GGUF type)
DTYPES = {
    "F32": (np.float32, gguf.GGMLQuantizationType.F32),
    "F16": (np.float16, gguf.GGMLQuantizationType.F16),
    "BF16": (np.uint16, gguf.GGMLQuantizationType.BF16),
    # Codes and scales.
    "U8": (np.uint8, gguf.GGMLQuantizationType.I8),
    "F8_E4M3": (np.uint8, gguf.GGMLQuantizationType.I8),
}
NAMES = {
    "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def read_tensors(directory):
    """Returns name -> (array as stored, type name). bf16 is read as 16-bit integers."""
    tensors = {}
    for file in sorted(directory.glob("model*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, info in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__" or name.endswith("rotary_emb.inv_freq"):
                continue
            begin, end = (8 + length + offset for offset in info["data_offsets"])
            tensors[name] = (np.frombuffer(data[begin:end], DTYPES[info["dtype"]][0]).reshape(info["shape"]), info["dtype"])
    return tensors


def to_f32(array, dtype):
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else array.astype(np.float32)


def read_config(directory):
    """Returns config.json with the RoPE parameters of either spelling under "rope"."""
    config = json.loads((directory / "config.json").read_text())
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    config["rope"] = {"rope_theta": config.get("rope_theta", 10000.0), "rope_type": rope.get("type", "default"), **rope}
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return config


def window_of(config):
    """Returns the sliding window of a case, or None. llama.cpp has no window for these architectures, so only prompts
    shorter than the window are comparable."""
    if config["model_type"] == "mistral":
        return config.get("sliding_window")
    return config.get("sliding_window") if config.get("use_sliding_window") else None


def why_not(config):
    """Returns why llama.cpp cannot run the case, or None."""
    rope = config["rope"]
    if config["hidden_act"] != "silu":
        return f"hidden_act {config['hidden_act']}: llama.cpp supports only SiLU for the architecture"
    if rope["rope_type"] == "yarn" and rope.get("truncate") is False:
        return "YaRN with truncate false: llama.cpp always rounds the correction range"
    if rope["rope_type"] == "llama3" and config["model_type"] in ("qwen2", "qwen3"):
        return "the llama3 scaling, which llama.cpp does not support for Qwen"
    if config["model_type"] == "qwen3" and config.get("attention_bias"):
        return "Qwen3 with a bias in the output projection"
    return None


def yarn_attention_factor(rope):
    scale = lambda m: 0.1 * m * math.log(rope["factor"]) + 1.0 if rope["factor"] > 1 else 1.0
    if rope.get("attention_factor") is not None:
        return rope["attention_factor"] / scale(1)  # llama.cpp multiplies by its default
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(rope["mscale"]) / scale(rope["mscale_all_dim"]) / scale(1)
    return 1.0


def add_rope(writer, config, max_model_len):
    rope, dim = config["rope"], config["head_dim"]
    theta, kind = rope["rope_theta"], rope["rope_type"]
    writer.add_rope_dimension_count(dim)
    if kind == "dynamic" and max_model_len:
        trained = config["max_position_embeddings"]
        theta *= (rope["factor"] * max_model_len / trained - (rope["factor"] - 1)) ** (dim / (dim - 2))
    writer.add_rope_freq_base(theta)
    if kind not in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope.get("original_max_position_embeddings", config["max_position_embeddings"]))
        writer.add_rope_scaling_attn_factors(yarn_attention_factor(rope))
        writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast", 32.0))
        writer.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow", 1.0))
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, dim))


def yarn_betas(config):
    """Returns the betas for the context parameters, because llama.cpp does not read their GGUF keys for Llama."""
    rope = config["rope"]
    return (rope.get("beta_fast", 32.0), rope.get("beta_slow", 1.0)) if rope["rope_type"] == "yarn" else (-1.0, -1.0)


def llama3_factors(rope, dim):
    """Returns the divisor of each frequency, as the converter of llama.cpp writes it."""
    wavelengths = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    original, low, high, factor = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "factor"))
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def interleave(array, num_heads):
    """Moves rows (i, i + half) of each head to (2i, 2i + 1), the pairs that llama.cpp rotates for Llama."""
    halves = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def add_tokenizer(writer, directory):
    """Writes the byte-level tokenizer of a case."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    specials = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if i in specials else gguf.TokenType.NORMAL for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")


def add_unigram(writer, directory, config):
    """Writes the tokenizer of a case as the converter of llama.cpp writes that of XLM-R, which needs a table of characters."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    pieces = tokenizer["model"]["vocab"]
    kinds = {0: gguf.TokenType.CONTROL, 1: gguf.TokenType.CONTROL, 2: gguf.TokenType.CONTROL, 3: gguf.TokenType.UNKNOWN}
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece for piece, _ in pieces])
    writer.add_token_scores([score for _, score in pieces])
    writer.add_token_types([kinds.get(i, gguf.TokenType.NORMAL) for i in range(len(pieces))])
    writer.add_add_space_prefix(True)
    writer.add_token_type_count(config.get("type_vocab_size", 1))
    writer.add_remove_extra_whitespaces(False)
    gguf.SpecialVocab(directory, n_vocab=len(pieces)).add_to_gguf(writer)


def write_gguf(directory, path, max_model_len=None, as_f32=True, has_tokenizer=False, **options):
    """Writes the file. With as_f32 the values have type float32, so llama.cpp does not round activations. `options` go to
    the writer, which can split the file."""
    config = read_config(directory)
    arch = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, arch, **options)
    if has_tokenizer:
        add_tokenizer(writer, directory)
    else:
        writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(max_model_len or config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    add_rope(writer, config, max_model_len)
    for name, (array, dtype) in read_tensors(directory).items():
        stem, kind = name.rsplit(".", 1)
        layer = ""
        if stem.startswith("model.layers."):
            number, stem = stem.removeprefix("model.layers.").split(".", 1)
            layer = f"blk.{number}."
        if arch == "llama" and stem in ("self_attn.q_proj", "self_attn.k_proj"):
            array = interleave(array, config["num_attention_heads" if "q_proj" in stem else "num_key_value_heads"])
        gguf_name = f"{layer}{NAMES[stem]}.{kind}"
        if as_f32 or array.ndim == 1:  # llama.cpp wants vectors in f32
            writer.add_tensor(gguf_name, to_f32(array, dtype))
        else:
            shape = array.shape if dtype != "BF16" else (*array.shape[:-1], array.shape[-1] * 2)
            writer.add_tensor(gguf_name, array.view(np.uint8).reshape(shape) if dtype == "BF16" else array, raw_dtype=DTYPES[dtype][1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
