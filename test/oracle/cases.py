"""The table of golden cases: one row is one tiny random model.

A row lists only the values that differ from DEFAULTS below. `config` is merged into config.json unchanged, so it can
also drop a key (value DROP) or set it to null.

Sizes are deliberately odd: K of the output and down projections is not a multiple of 16 x 8, head sizes differ from
hidden / heads, the vocabulary is prime (317, 509), windows and original lengths are shorter than the prompts (up to
616 tokens).
"""

DROP = object()  # leave this key out of config.json

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

DEFAULTS = {
    "model_type": "llama",
    "dtype": "f32",
    "hidden": 48,
    "layers": 2,
    "heads": 4,
    "kv": 4,
    "head_dim": None,  # None: not written, so hidden / heads
    "inner": 172,
    "vocab": 320,
    "tokenizer_size": None,  # None: equal to vocab; smaller: the other rows are padding and never sampled
    "tied": False,
    "eps": 1e-5,
    "theta": 10000.0,
    "rope": None,  # {"rope_type": ..., ...} or None for the default
    "max_positions": 1024,
    "max_model_len": None,  # maxModelLen for the engine, if it is not max_positions
    "spelling": "rope_type",  # "type" | "rope_type": rope_scaling as before transformers 5; "v5": rope_parameters
    "shards": 1,
    "eos": 2,
    "generation_eos": None,  # None: equal to eos
    "config": {},
}


def row(name, family, features, **changes):
    unknown = set(changes) - set(DEFAULTS)
    assert not unknown, f"{name}: unknown keys {unknown}"
    return {**DEFAULTS, "name": name, "family": family, "features": features, **changes}


CASES = [
    # Llama 2: multi-head, a config.json of 2023 (no rope_theta, no num_key_value_heads, inv_freq in the tensors).
    row("llama2-f32", "llama2", ["mha", "default-theta", "stored-inv-freq"], vocab=317, heads=3, kv=3, inner=124,
        config={"rope_theta": DROP, "num_key_value_heads": DROP, "rope_scaling": None}),
    row("llama2-f16", "llama2", ["mha", "odd-head-dim"], dtype="f16", hidden=64, heads=2, kv=2, head_dim=40, inner=100,
        eos=[2, 5], spelling="v5"),
    row("llama2-bf16", "llama2", ["mha"], dtype="bf16", hidden=64, heads=4, kv=4, inner=128, eps=1e-6, shards=2),
    # Llama 3: grouped queries.
    row("llama3-f32", "llama3", ["gqa", "odd-tails", "eps"], hidden=60, heads=6, kv=2, inner=107, vocab=317, theta=500000.0,
        eps=0.05, spelling="v5"),
    row("llama3-f16", "llama3", ["gqa", "eps"], dtype="f16", hidden=72, heads=6, kv=2, inner=140, vocab=317, theta=500000.0,
        eos=[2, 9], eps=0.05, shards=3),
    row("llama3-bf16", "llama3", ["mqa", "large-head-dim"], dtype="bf16", hidden=64, heads=2, kv=1, head_dim=128, inner=80,
        theta=500000.0, generation_eos=[2, 8]),
    # Llama 3.1 and 3.2: the llama3 scaling. All three of its bands contain frequencies here.
    row("llama31-f32", "llama3.1", ["rope-llama3", "gqa"], kv=2, head_dim=24, inner=100, theta=500000.0,
        rope={"rope_type": "llama3", **LLAMA3}),
    row("llama31-f16", "llama3.1", ["rope-llama3", "mqa"], dtype="f16", hidden=96, kv=1, inner=100,
        rope={"rope_type": "llama3", **LLAMA3, "factor": 4.0, "original_max_position_embeddings": 200},
        spelling="v5", shards=3, eos=[2, 5, 6]),
    row("llama32-bf16", "llama3.2", ["rope-llama3", "tied", "mqa"], dtype="bf16", hidden=64, kv=1, vocab=509, tied=True,
        theta=500000.0, shards=2,
        rope={"rope_type": "llama3", **LLAMA3, "factor": 32.0, "original_max_position_embeddings": 128}),
    # The other RoPE types.
    row("linear-f32", "llama-linear", ["rope-linear"], kv=2, inner=100, rope={"rope_type": "linear", "factor": 4.0},
        spelling="type"),
    row("linear-bf16", "llama-linear", ["rope-linear"], dtype="bf16", hidden=64, kv=2, inner=100, spelling="v5",
        rope={"rope_type": "linear", "factor": 2.5}),
    row("dynamic-trained-f32", "llama-dynamic", ["rope-dynamic"], kv=2, inner=100, spelling="type",
        rope={"rope_type": "dynamic", "factor": 4.0}),
    row("dynamic-extended-f16", "llama-dynamic", ["rope-dynamic-extended"], dtype="f16", kv=1, heads=3, inner=100,
        max_positions=256, max_model_len=1024, rope={"rope_type": "dynamic", "factor": 2.0}),
    row("yarn-f16", "llama-yarn", ["rope-yarn", "yarn-attention-factor", "yarn-betas"], dtype="f16", kv=2, head_dim=32,
        inner=100,
        rope={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "attention_factor": 1.4,
              "beta_fast": 4.0, "beta_slow": 0.5}),
    row("yarn-mscale-bf16", "llama-yarn", ["rope-yarn", "yarn-mscale"], dtype="bf16", kv=1, heads=3, inner=100, spelling="v5",
        rope={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "mscale": 2.5,
              "mscale_all_dim": 0.5}),
    # Optional biases and activation of Llama configs.
    row("attention-bias-bf16", "llama-bias", ["qkv-bias", "o-bias", "gqa"], dtype="bf16", hidden=64, kv=2, inner=100,
        config={"attention_bias": True}),
    row("mlp-bias-f32", "llama-bias", ["mlp-bias"], heads=3, kv=3, inner=72, vocab=317, config={"mlp_bias": True}),
    row("gelu-f32", "llama-gelu", ["gelu", "mqa"], heads=3, kv=1, inner=72, vocab=317, config={"hidden_act": "gelu_pytorch_tanh"}),
    # SmolLM: tied, three queries per key, a small theta here.
    row("smollm-f32", "smollm", ["tied", "gqa", "small-theta"], hidden=72, heads=6, kv=2, inner=76, tied=True, theta=500.0),
    row("smollm-f16", "smollm", ["tied", "gqa"], dtype="f16", hidden=96, heads=6, kv=2, inner=100, tied=True, theta=100000.0,
        spelling="v5"),
    row("smollm-bf16", "smollm", ["tied", "gqa"], dtype="bf16", hidden=72, heads=6, kv=2, inner=76,
        tied=True, theta=10000.0, shards=2),
    # Qwen2 / 2.5: bias on Q, K and V; windows on the upper layers if use_sliding_window is true.
    row("qwen2-f32", "qwen2", ["qkv-bias", "mqa", "padded-vocab"], model_type="qwen2", kv=1, inner=100, theta=1000000.0, eps=1e-6,
        tokenizer_size=300, config={"sliding_window": 32, "use_sliding_window": False, "max_window_layers": 2}),
    row("qwen2-f16", "qwen2", ["qkv-bias", "rope-yarn", "yarn-default-original"], model_type="qwen2", dtype="f16", hidden=64, kv=2,
        inner=100, eps=1e-6, rope={"rope_type": "yarn", "factor": 4.0}, spelling="type",
        config={"use_sliding_window": False, "sliding_window": None}),
    row("qwen2-bf16", "qwen2", ["qkv-bias", "gqa", "tied", "unused-window"], model_type="qwen2", dtype="bf16", hidden=64, kv=2,
        inner=172, vocab=512, tied=True, theta=1000000.0, eps=1e-6, eos=[2, 4],
        config={"sliding_window": 32, "use_sliding_window": False, "max_window_layers": 1}),
    row("qwen2-window-f32", "qwen2-window", ["qkv-bias", "window", "mixed-layers"], model_type="qwen2", kv=2, inner=76, vocab=317,
        config={"sliding_window": 40, "use_sliding_window": True, "max_window_layers": 1}),
    row("qwen2-window-bf16", "qwen2-window", ["qkv-bias", "window", "mixed-layers"], model_type="qwen2", dtype="bf16", hidden=64,
        layers=3, kv=2, inner=100, spelling="v5",
        config={"sliding_window": 23, "use_sliding_window": True, "max_window_layers": 3,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    # Qwen3: norms on Q and K, a head size that is not hidden / heads.
    row("qwen3-f32", "qwen3", ["qk-norm", "mqa", "odd-head-dim"], model_type="qwen3", kv=1, head_dim=40, inner=100, eps=1e-6,
        theta=1000000.0),
    row("qwen3-f16", "qwen3", ["qk-norm", "rope-yarn", "yarn-truncate", "qkv-bias", "o-bias"], model_type="qwen3", dtype="f16",
        hidden=64, kv=2, head_dim=24, inner=100, eps=1e-6,
        rope={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "truncate": False},
        config={"attention_bias": True}),
    row("qwen3-bf16", "qwen3", ["qk-norm", "gqa", "tied", "eps"], model_type="qwen3", dtype="bf16", hidden=72, heads=6, kv=2,
        head_dim=24, inner=108, tied=True, theta=1000000.0, eps=0.05, spelling="v5", eos=[2, 3]),
    # Mistral: a window on every layer (7B v0.1), no window (v0.3), heads x head_dim that is not hidden (Nemo).
    row("mistral-window-f32", "mistral", ["window", "gqa", "odd-head-dim"], model_type="mistral", kv=2, head_dim=24, inner=100,
        config={"sliding_window": 48}),
    row("mistral-f16", "mistral", ["mqa", "null-window"], model_type="mistral", dtype="f16", hidden=80, heads=4, kv=1,
        head_dim=32, inner=108, theta=1000000.0, shards=2, config={"sliding_window": None}),
    row("mistral-window-bf16", "mistral", ["window", "gqa"], model_type="mistral", dtype="bf16", hidden=64, heads=8, kv=2,
        head_dim=16, inner=140, spelling="v5", config={"sliding_window": 33}),
]
