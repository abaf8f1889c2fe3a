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
    "outer": None,  # {"model_type": ..., "architecture": ...} of a model of text with images, whose text_config this is
    "records_rounding": False,  # the golden holds the error of the number type alone, where it is near the tolerance
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
    # Ministral 3: YaRN, and queries that grow with the position.
    row("ministral3-f32", "ministral3", ["query-scale", "gqa"], model_type="ministral3", kv=2, head_dim=24,
        inner=100, spelling="v5",
        rope={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "llama_4_scaling_beta": 0.4,
              "beta_fast": 4.0, "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0}),
    # Gemma 2 and 3: norms before and after, scaled embeddings, soft caps, every second or sixth layer without window.
    row("gemma2-f32", "gemma2", ["sandwich-norms", "scaled-embedding", "soft-caps", "tied"],
        model_type="gemma2", layers=3, kv=2, head_dim=24, inner=100, tied=True, vocab=317,
        config={"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 40, "query_pre_attn_scalar": 30,
                "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0, "hidden_act": DROP}),
    row("gemma2-bf16", "gemma2", ["sandwich-norms", "scaled-embedding", "soft-caps", "tied"],
        model_type="gemma2", dtype="bf16", hidden=64, layers=2, kv=1, head_dim=32, inner=100, tied=True,
        config={"sliding_window": 23, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0,
                "hidden_act": DROP}),
    row("gemma3-f32", "gemma3", ["sandwich-norms", "scaled-embedding", "hybrid-qk-norm", "rope-per-layer-type", "tied"],
        model_type="gemma3_text", layers=4, kv=1, head_dim=24, inner=100, tied=True, theta=50000.0,
        rope={"rope_type": "linear", "factor": 8.0},
        config={"sliding_window": 32, "sliding_window_pattern": 2, "rope_local_base_freq": 500.0,
                "query_pre_attn_scalar": 20, "hidden_act": DROP}),
    row("gemma3-bf16", "gemma3", ["sandwich-norms", "scaled-embedding", "hybrid-qk-norm", "rope-per-layer-type", "tied"],
        model_type="gemma3_text", dtype="bf16", hidden=64, layers=3, kv=2, head_dim=32, inner=128, tied=True,
        config={"sliding_window": 48, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "rope_theta": DROP, "rope_scaling": DROP, "query_pre_attn_scalar": 32, "hidden_act": DROP,
                "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 100000.0},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}}),
    # Gemma 4: larger heads in full layers, inputs per layer, and upper layers that read the keys and values of others.
    row("gemma4-f32", "gemma4", ["sandwich-norms", "scaled-embedding", "hybrid-qk-norm", "per-layer-inputs", "shared-kv", "layer-scales",
                                 "rope-proportional", "tied"],
        model_type="gemma4_text", layers=6, kv=2, head_dim=16, inner=100, tied=True, theta=500.0,
        config={"sliding_window": 40, "global_head_dim": 32, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                "hidden_size_per_layer_input": 20, "vocab_size_per_layer_input": 320, "final_logit_softcapping": 8.0,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
                "rope_theta": DROP, "rope_scaling": DROP, "hidden_act": DROP,
                "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}),
    row("gemma4-equal-kv-f32", "gemma4", ["sandwich-norms", "scaled-embedding", "hybrid-qk-norm", "equal-kv", "layer-scales", "tied"],
        model_type="gemma4_text", hidden=64, layers=3, kv=4, head_dim=16, inner=128, tied=True,
        config={"sliding_window": 32, "global_head_dim": 48, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
                "hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                "rope_theta": DROP, "rope_scaling": DROP, "hidden_act": DROP,
                "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000.0},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    row("gemma4-bf16", "gemma4", ["sandwich-norms", "scaled-embedding", "hybrid-qk-norm", "per-layer-inputs", "shared-kv", "layer-scales"],
        model_type="gemma4_text", dtype="bf16", hidden=64, layers=4, kv=2, head_dim=32, inner=128, tied=True, records_rounding=True,
        outer={"model_type": "gemma4", "architecture": "Gemma4ForConditionalGeneration", "vision_config": None},
        config={"sliding_window": 48, "global_head_dim": 64, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 32,
                "vocab_size_per_layer_input": 320,
                "layer_types": ["sliding_attention", "full_attention"] * 2, "rope_theta": DROP, "rope_scaling": DROP, "hidden_act": DROP,
                "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000.0},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    # Phi-3 and Phi-4-mini: fused projections, a part of each head rotated, LongRoPE.
    row("phi3-f32", "phi3", ["fused-projections"], model_type="phi3", kv=2, inner=100, vocab=317,
        config={"sliding_window": None, "pad_token_id": 0}),
    row("phi4-mini-f32", "phi3", ["fused-projections", "rope-longrope", "tied"], model_type="phi3",
        hidden=64, kv=2, inner=100, tied=True, max_positions=1024, max_model_len=1024, spelling="type",
        rope={"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 5.0, 7.0, 9.0]},
        config={"partial_rotary_factor": 0.75, "original_max_position_embeddings": 256, "pad_token_id": 0}),
    row("phi4-mini-short-f16", "phi3", ["fused-projections", "rope-longrope"], model_type="phi3", dtype="f16",
        hidden=64, kv=2, inner=100, max_positions=2048, max_model_len=1024, spelling="v5",
        rope={"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 5.0, 7.0, 9.0],
              "original_max_position_embeddings": 1024, "partial_rotary_factor": 0.75},
        config={"original_max_position_embeddings": 1024, "pad_token_id": 0}),
    # SmolLM3: every fourth layer (here every second) without rotation.
    row("smollm3-f32", "smollm3", ["no-rope-layers", "tied", "gqa"], model_type="smollm3", layers=4, kv=2, inner=76, tied=True,
        theta=5000.0, config={"no_rope_layer_interval": 2, "pad_token_id": 0}),
    row("smollm3-bf16", "smollm3", ["no-rope-layers", "tied"], model_type="smollm3", dtype="bf16", hidden=64, layers=3, kv=1,
        inner=100, tied=True, config={"no_rope_layers": [1, 0, 1], "pad_token_id": 0}),
    # As published, and so in GGUF files: every fourth layer.
    row("smollm3-fourth-bf16", "smollm3", ["no-rope-layers", "tied"], model_type="smollm3", dtype="bf16", hidden=64, layers=4, kv=2,
        inner=76, tied=True, theta=5000.0, records_rounding=True, config={"pad_token_id": 0}),
    # Granite 3: four multipliers.
    row("granite-f32", "granite", ["multipliers", "gqa", "tied"], model_type="granite", kv=2, inner=100, tied=True,
        config={"embedding_multiplier": 6.0, "residual_multiplier": 0.4, "attention_multiplier": 0.15, "logits_scaling": 3.0}),
    row("granite-bf16", "granite", ["multipliers", "gqa", "qkv-bias", "o-bias"], model_type="granite", dtype="bf16", hidden=64,
        kv=2, inner=128, config={"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.2,
                                 "logits_scaling": 0.5, "attention_bias": True}),
    # OLMo 2 and 3: norms of the results only, q and k normalized over all heads.
    row("olmo2-f32", "olmo2", ["post-norms", "qk-norm-all-heads", "gqa"], model_type="olmo2", kv=2, inner=100, theta=500000.0),
    row("olmo2-bf16", "olmo2", ["post-norms", "qk-norm-all-heads", "mha"], model_type="olmo2", dtype="bf16", hidden=64, inner=128),
    row("olmo3-f32", "olmo3", ["post-norms", "qk-norm-all-heads", "rope-per-layer-type"], model_type="olmo3",
        layers=4, kv=2, inner=100, theta=5000.0,
        rope={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "attention_factor": 1.2,
              "beta_fast": 4.0, "beta_slow": 0.5}, config={"sliding_window": 40}),
    # EXAONE 4: norms of the results, full layers without rotation.
    row("exaone4-f32", "exaone4", ["post-norms", "hybrid-qk-norm", "no-rope-layers"], model_type="exaone4", layers=4,
        kv=2, inner=100, config={"sliding_window": 40, "sliding_window_pattern": 2}),
    # GLM-4: neighbouring dimensions of half of each head are rotated.
    row("glm4-f32", "glm4", ["sandwich-norms", "interleaved-rope", "partial-rotary", "fused-projections", "qkv-bias"],
        model_type="glm4", kv=2, head_dim=24, inner=100, config={"attention_bias": True, "pad_token_id": 0}),
    # Seed-OSS: separate keys for its biases.
    row("seed-oss-f32", "seed-oss", ["qkv-bias", "odd-head-dim"], model_type="seed_oss", kv=2, head_dim=24, inner=100,
        config={"attention_bias": True}),
    # Hunyuan: norms of q and k after the rotation.
    row("hunyuan-f32", "hunyuan", ["qk-norm-after-rope", "rope-alpha"], model_type="hunyuan_v1_dense", kv=2, head_dim=24, inner=100,
        rope={"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0}),
    # ERNIE 4.5: neighbouring dimensions are rotated.
    row("ernie45-f32", "ernie4.5", ["interleaved-rope", "tied", "qkv-bias"], model_type="ernie4_5", kv=2, head_dim=24, inner=100,
        tied=True, config={"use_bias": True}),
    row("ernie45-bf16", "ernie4.5", ["interleaved-rope"], model_type="ernie4_5", dtype="bf16", hidden=64, kv=1, inner=100, head_dim=32),
    # Mixtures of experts. In bf16 a token has all experts, because rounding would choose other ones.
    row("qwen2-moe-f32", "qwen2-moe", ["experts", "shared-expert", "qkv-bias"], model_type="qwen2_moe", layers=3,
        hidden=64, kv=2, inner=64, config={"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                          "shared_expert_intermediate_size": 96, "decoder_sparse_step": 1, "mlp_only_layers": [1]}),
    row("qwen2-moe-bf16", "qwen2-moe", ["experts", "shared-expert", "qkv-bias"], model_type="qwen2_moe", dtype="bf16", hidden=64, kv=2,
        inner=76, config={"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
                          "shared_expert_intermediate_size": 48}),
    row("qwen3-moe-f32", "qwen3-moe", ["experts", "qk-norm", "normalized-weights"], model_type="qwen3_moe", kv=2, head_dim=24,
        inner=100, config={"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 44, "norm_topk_prob": True}),
    row("qwen3-moe-bf16", "qwen3-moe", ["experts", "qk-norm"], model_type="qwen3_moe", dtype="bf16", hidden=64, kv=2, head_dim=24,
        inner=100, shards=2, config={"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
                                     "norm_topk_prob": False}),
    # The router's bias chooses experts only. The first layers are dense.
    row("glm4-moe-f32", "glm4-moe", ["experts", "selection-bias", "shared-experts", "qk-norm", "qkv-bias", "partial-rotary"],
        model_type="glm4_moe", layers=3, kv=2, head_dim=24, inner=100, spelling="v5",
        rope={"rope_type": "default", "partial_rotary_factor": 0.5},
        config={"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 28, "n_shared_experts": 2,
                "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "use_qk_norm": True, "attention_bias": True}),
    row("lfm2-moe-f32", "lfm2-moe", ["experts", "selection-bias", "short-conv", "hybrid-qk-norm", "tied"],
        model_type="lfm2_moe", layers=3, kv=2, inner=100, tied=True,
        config={"layer_types": ["conv", "full_attention", "conv"], "rms_norm_eps": DROP, "hidden_act": DROP, "norm_eps": 1e-5,
                "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 28, "num_dense_layers": 1}),
    row("mixtral-f32", "mixtral", ["experts", "normalized-weights", "window"], model_type="mixtral", kv=2, inner=60,
        config={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 40}),
    row("olmoe-f32", "olmoe", ["experts", "qk-norm-all-heads"], model_type="olmoe", kv=4, inner=40,
        config={"num_experts": 6, "num_experts_per_tok": 3}),
    row("granitemoe-f32", "granite-moe", ["experts", "multipliers", "stacked-experts"], model_type="granitemoe", kv=2, inner=44,
        config={"num_local_experts": 6, "num_experts_per_tok": 2, "embedding_multiplier": 4.0, "residual_multiplier": 0.5,
                "attention_multiplier": 0.2, "logits_scaling": 0.7}),
    row("gpt-oss-f32", "gpt-oss", ["experts", "sinks", "clamped-swish", "rope-yarn"], model_type="gpt_oss", layers=2,
        kv=2, head_dim=24, inner=64, spelling="v5",
        rope={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "truncate": False,
              "beta_fast": 4.0, "beta_slow": 0.5},
        config={"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 40}),
    # LFM2: gated short convolutions beside attention. The config says which layers in either of two ways.
    row("lfm2-f32", "lfm2", ["short-conv", "gqa", "hybrid-qk-norm", "tied"], model_type="lfm2", layers=3, kv=2, inner=150, tied=True,
        config={"layer_types": ["conv", "full_attention", "conv"], "rms_norm_eps": DROP, "hidden_act": DROP, "norm_eps": 1e-5,
                "conv_L_cache": 3, "block_auto_adjust_ff_dim": True, "block_multiple_of": 20, "block_ffn_dim_multiplier": 1.1}),
    row("lfm2-bf16", "lfm2", ["short-conv", "conv-bias", "mqa", "hybrid-qk-norm"], model_type="lfm2", dtype="bf16", hidden=64, layers=3, kv=1,
        head_dim=32, inner=128, theta=300.0, spelling="v5",
        config={"full_attn_idxs": [0, 2], "rms_norm_eps": DROP, "hidden_act": DROP, "norm_eps": 1e-5, "conv_L_cache": 4, "conv_bias": True,
                "block_auto_adjust_ff_dim": False}),
    # Qwen3.5: a gated delta net, and attention with an output gate; every fourth layer by default. The files of the hub
    # are those of models of text with images.
    row("qwen35-f32", "qwen3.5", ["delta-net", "separate-projections", "value-groups", "output-gate", "gqa", "hybrid-qk-norm", "zero-norm", "partial-rotary"],
        model_type="qwen3_5_text", layers=3, kv=2, head_dim=24, inner=96, eps=1e-6, spelling="v5",
        rope={"rope_type": "default", "partial_rotary_factor": 0.5},
        config={"layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_value_heads": 6,
                "linear_num_key_heads": 2, "linear_value_head_dim": 20, "linear_key_head_dim": 14, "linear_conv_kernel_dim": 4}),
    row("qwen35-bf16", "qwen3.5", ["delta-net", "separate-projections", "output-gate", "mqa", "hybrid-qk-norm", "zero-norm"], model_type="qwen3_5_text", dtype="bf16",
        hidden=64, layers=3, kv=1, head_dim=32, inner=100, tied=True, eps=1e-6, theta=100.0, spelling="v5",
        records_rounding=True, outer={"model_type": "qwen3_5", "architecture": "Qwen3_5ForConditionalGeneration"},
        config={"full_attention_interval": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 4, "linear_value_head_dim": 16, "linear_key_head_dim": 16}),
    # The experts are in one tensor, as in memory.
    row("qwen35-moe-stacked-f32", "qwen3.5-moe", ["delta-net", "separate-projections", "output-gate", "hybrid-qk-norm", "zero-norm",
                                           "all-experts", "shared-expert", "memory-names"],
        model_type="qwen3_5_moe_text", kv=2, head_dim=16, eps=1e-6, theta=100.0, spelling="v5",
        config={"layer_types": ["full_attention", "linear_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                "linear_value_head_dim": 16, "linear_key_head_dim": 16, "num_experts": 4, "num_experts_per_tok": 1,
                "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20, "intermediate_size": DROP}),
    row("qwen35-moe-f32", "qwen3.5-moe", ["delta-net", "separate-projections", "output-gate", "hybrid-qk-norm", "zero-norm", "experts",
                                          "shared-expert"],
        model_type="qwen3_5_moe_text", kv=1, head_dim=16, eps=1e-6, spelling="v5",
        outer={"model_type": "qwen3_5_moe", "architecture": "Qwen3_5MoeForConditionalGeneration"},
        config={"layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 3, "linear_num_key_heads": 3,
                "linear_value_head_dim": 9, "linear_key_head_dim": 11, "num_experts": 5, "num_experts_per_tok": 2,
                "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24, "intermediate_size": DROP}),
    # Qwen3-Next: the projections of a group of heads are stored together.
    row("qwen3-next-f32", "qwen3-next", ["experts", "shared-expert", "delta-net", "grouped-projections", "output-gate", "gqa", "hybrid-qk-norm", "zero-norm"],
        model_type="qwen3_next", layers=3, kv=2, head_dim=16, inner=96, eps=1e-6,
        config={"full_attention_interval": 2, "mlp_only_layers": [1], "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
                "num_experts_per_tok": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                "linear_value_head_dim": 16, "linear_key_head_dim": 10, "partial_rotary_factor": 0.5, "num_experts": 5}),
    # Granite 4: Mamba 2, attention without positions, multipliers, one fused projection in the MLP.
    row("granite4-f32", "granite4", ["experts", "stacked-experts", "mamba2", "no-rope", "multipliers", "gqa"], model_type="granitemoehybrid", layers=3, kv=2, inner=36,
        config={"layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 52, "num_local_experts": 5,
                "num_experts_per_tok": 2, "mamba_n_heads": 6, "mamba_n_groups": 1, "mamba_d_state": 14, "mamba_d_head": 16,
                "mamba_expand": 2, "mamba_d_conv": 4, "mamba_conv_bias": True, "mamba_proj_bias": False,
                "position_embedding_type": "nope", "embedding_multiplier": 2.0, "residual_multiplier": 0.6,
                "attention_multiplier": 0.2, "logits_scaling": 0.8}),
    row("granite4-bf16", "granite4", ["mamba2", "mamba-groups", "mamba-biases", "multipliers", "mqa"], model_type="granitemoehybrid",
        dtype="bf16", hidden=64, layers=3, kv=1, inner=76, theta=10000.0, spelling="v5",
        config={"layer_types": ["linear_attention", "full_attention", "linear_attention"], "shared_intermediate_size": 128,
                "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16,
                "mamba_d_head": "auto", "mamba_d_conv": 3, "mamba_conv_bias": False, "mamba_proj_bias": True,
                "position_embedding_type": "rope", "embedding_multiplier": 1.5, "residual_multiplier": 0.8,
                "attention_multiplier": 0.3, "logits_scaling": 0.7}),
]
