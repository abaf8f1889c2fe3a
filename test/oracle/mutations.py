"""Disables each feature of a case in transformers and measures how much the results differ from the golden.

If disabling a feature changes less than the tolerance, the golden does not test it. A mutation edits config.json, the
weights or the loaded model. It is measured on the tokens of the golden (prompt and completion in one forward pass), at
the positions and top-five ids that the golden records.
"""

import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file

from golden import NUM_STEPS, load_judge, logprobs_of

# The tolerances of a runtime are 1e-3 (f32), 1e-2 (f16) and 0.15 worst, 0.02 mean (bf16 activations).
MIN_WORST = {"f32": 0.05, "f16": 0.1, "bf16": 0.3}


def measure(golden, model):
    """Returns the worst and mean |difference| of the top log-probabilities over all prompts and steps."""
    differences = []
    for prompt in golden["prompts"]:
        ids = prompt["promptTokenIds"] + prompt["greedyTokenIds"][:-1]
        logprobs = logprobs_of(model, ids, last=NUM_STEPS)
        for step, top in enumerate(prompt["topLogprobs"]):
            differences += [abs(logprobs[step, token].item() - value) for token, value in top]
    return max(differences), sum(differences) / len(differences)


def load_mutated(case, directory, edit_config=None, edit_weights=None, edit_model=None):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        shutil.copytree(directory, scratch, dirs_exist_ok=True)
        config = json.loads((directory / "config.json").read_text())
        text_config = config.get("text_config", config)
        if edit_config:
            edit_config(text_config)
            (scratch / "config.json").write_text(json.dumps(config))
        if edit_weights:
            weights = {}
            for file in scratch.glob("model*.safetensors"):
                weights |= load_file(file)
                file.unlink()
            (scratch / "model.safetensors.index.json").unlink(missing_ok=True)
            edit_weights(weights, text_config)
            save_file(weights, scratch / "model.safetensors", metadata={"format": "pt"})
        model = load_judge(case, scratch)
    if edit_model:
        edit_model(model)
    return model


# Edits of config.json. The RoPE parameters have one of two names.


def rope_record(config):
    return config["rope_parameters"] if "rope_parameters" in config else config["rope_scaling"] or config


def set_rope(**changes):
    def edit(config):
        rope_record(config).update(changes)
        for key in [k for k, v in changes.items() if v is None]:
            del rope_record(config)[key]

    return edit


def no_rope_scaling(config):
    if "rope_parameters" in config:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_parameters"]["rope_theta"]}
    else:
        config["rope_scaling"] = None


def scale_theta(factor):
    def edit(config):
        record = config["rope_parameters"] if "rope_parameters" in config else config
        by_type = [record[kind] for kind in ("full_attention", "sliding_attention") if kind in record]
        for part in by_type or [record]:
            part["rope_theta"] = part.get("rope_theta", 10000.0) * factor

    return edit


def set_config(**changes):
    return lambda config: config.update(changes)


def set_window(change):
    return lambda config: config.update(sliding_window=change(config["sliding_window"]))


def no_window(config):
    config.update(sliding_window=None, use_sliding_window=False)
    config.pop("layer_types", None)


# Edits of the weights.


def zero(*endings):
    def edit(weights, config):
        hit = [name for name in weights if name.endswith(endings)]
        assert hit, endings
        for name in hit:
            weights[name] = torch.zeros_like(weights[name])

    return edit


def ones(*endings):
    def edit(weights, config):
        for name in weights:
            if name.endswith(endings):
                weights[name] = torch.ones_like(weights[name])

    return edit


def swap_qk_norm(weights, config):
    for name in [n for n in weights if n.endswith(("q_norm.weight", "q_layernorm.weight"))]:
        other = name.replace("q_norm", "k_norm").replace("q_layernorm", "k_layernorm")
        if other in weights:  # layers that read the keys of others have no norm of them
            weights[name], weights[other] = weights[other], weights[name]


def head_shape(config):
    heads = config["num_attention_heads"]
    return heads, config.get("num_key_value_heads", heads), config.get("head_dim") or config["hidden_size"] // heads


def interleaved_rope(weights, config):
    """Rotates pairs (2i, 2i + 1) instead of (i, i + half), as GPT-J and llama.cpp (for Llama) do."""
    _, _, head_dim = head_shape(config)
    for name, value in weights.items():
        if name.split(".")[-2] in ("q_proj", "k_proj"):
            halves = value.unflatten(0, (-1, 2, head_dim // 2))
            weights[name] = halves.transpose(1, 2).reshape(value.shape).contiguous()


def modulo_kv_heads(weights, config):
    """Makes query head h read KV head h % kv instead of h // (heads / kv). A gate may follow each query."""
    heads, kv, head_dim = head_shape(config)
    order = torch.arange(heads).view(kv, heads // kv).T.flatten()  # new place -> old head
    for name, value in weights.items():
        if ".q_proj." in name:
            weights[name] = value.unflatten(0, (heads, -1))[order].reshape(value.shape).contiguous()
        elif name.endswith(("self_attn.o_proj.weight", "self_attn.out_proj.weight")):
            by_head = value.unflatten(1, (heads, head_dim))[:, order]
            weights[name] = by_head.reshape(value.shape).contiguous()


# Edits of recurrent layers. Their tensors hold several parts one after the other.


def reverse_taps(weights, config):
    for name in [n for n in weights if n.endswith((".conv1d.weight", ".conv.conv.weight"))]:
        weights[name] = weights[name].flip(-1).contiguous()


def swap_parts(endings, sizes, i, j):
    """Swaps parts i and j of the rows, which have equal sizes. `sizes` computes all sizes from the config."""

    def edit(weights, config):
        names = [n for n in weights if n.endswith(endings)]
        assert names, endings
        for name in names:
            parts = list(weights[name].split(sizes(config, name)))
            parts[i], parts[j] = parts[j], parts[i]
            weights[name] = torch.cat(parts).contiguous()

    return edit


def delta_net_parts(config, name):
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    return [keys, keys, config["linear_num_value_heads"] * config["linear_value_head_dim"]]


def mamba_parts(config, name):
    inner = config.get("mamba_expand", 2) * config["hidden_size"]
    keys = config["mamba_n_groups"] * config["mamba_d_state"]
    channels = [inner, keys, keys]
    return channels if "conv1d" in name else [inner, *channels, config["mamba_n_heads"]]


def swap_mamba_keys(weights, config):
    swap_parts("mamba.in_proj.weight", mamba_parts, 2, 3)(weights, config)
    swap_parts("mamba.conv1d.weight", mamba_parts, 1, 2)(weights, config)


def modulo_groups(weights, config):
    """Makes value head h read group h % groups instead of h // (heads / groups)."""
    heads, groups = config["linear_num_value_heads"], config["linear_num_key_heads"]
    order = torch.arange(heads).view(groups, heads // groups).T.flatten()
    head_dim = config["linear_value_head_dim"]
    for name in list(weights):
        if name.endswith(("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
            weights[name] = weights[name].unflatten(0, (heads, -1))[order].flatten(0, 1).contiguous()
        elif name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
            *keys, values = weights[name].split(delta_net_parts(config, name))
            weights[name] = torch.cat([*keys, values.unflatten(0, (heads, head_dim))[order].flatten(0, 1)]).contiguous()
        elif "linear_attn.out_proj" in name:
            weights[name] = weights[name].unflatten(1, (heads, head_dim))[:, order].flatten(1, 2).contiguous()


def ungrouped_projections(weights, config):
    """Takes the rows of q, k, v and z to lie one after the other, each over all heads."""
    groups, keys = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // groups * config["linear_value_head_dim"]
    for name in [n for n in weights if n.endswith("in_proj_qkvz.weight")]:
        parts = weights[name].split([groups * keys, groups * keys, groups * values, groups * values])
        weights[name] = torch.cat([p.unflatten(0, (groups, -1)) for p in parts], 1).flatten(0, 1).contiguous()


def no_output_gate(weights, config):
    """A gate of zeros halves the result of attention, so the output projection is doubled."""
    heads, _, head_dim = head_shape(config)
    for name in [n for n in weights if ".q_proj." in n]:
        rows = weights[name].unflatten(0, (heads, 2, head_dim)).clone()
        rows[:, 1] = 0
        weights[name] = rows.flatten(0, 2).contiguous()
    for name in [n for n in weights if "self_attn.o_proj.weight" in n]:
        weights[name] = 2 * weights[name]


def norms_without_offset(weights, config):
    for name in weights:
        if name.endswith("norm.weight") and "linear_attn" not in name:
            weights[name] = weights[name] - 1


def set_everywhere(ending, value):
    def edit(weights, config):
        names = [n for n in weights if n.endswith(ending)]
        assert names, ending
        for name in names:
            weights[name] = torch.full_like(weights[name], value)

    return edit


def separate_head(weights, config):
    """Unties the embeddings: the head has the rows of the embedding in reverse order."""
    config["tie_word_embeddings"] = False
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].flip(0).contiguous()


# Edits of the loaded model.


def identity_qk_norm(model):
    for layer in model.model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = torch.nn.Identity()


def qk_norm_over_all_heads(model):
    """Normalizes by the root mean square over all heads instead of each head."""
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.forward = lambda x, norm=norm: norm.weight * x * torch.rsqrt(
                x.pow(2).mean((-2, -1), keepdim=True) + (norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps))


def scale_by_hidden(model):
    """Scales attention by hidden / heads instead of head_dim."""
    for layer in model.model.layers:
        layer.self_attn.scaling = (model.config.hidden_size / model.config.num_attention_heads) ** -0.5


def eps_outside_root(model):
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = lambda x, m=module: m.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + m.variance_epsilon)


def mamba_norms(model):
    return [layer.mamba.norm for layer in model.model.layers if layer.mamba is not None]


def gate_after_norm(model):
    for norm in mamba_norms(model):
        own = norm.forward
        norm.forward = lambda x, gate, own=own: own(x) * torch.nn.functional.silu(gate)


def norm_over_all_groups(model):
    for norm in mamba_norms(model):
        norm.group_size = norm.weight.shape[0]


def growing_dynamic_base(model):
    """Restores the behaviour of transformers: the base follows the current length."""
    model.model.rotary_emb.rope_type = "dynamic"


def dynamic_at(length):
    def edit(model):
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rotary = model.model.rotary_emb
        rotary.inv_freq, _ = ROPE_INIT_FUNCTIONS["dynamic"](model.config, seq_len=length)
        rotary.rope_type = "default"

    return edit


def attention_scaling_squared(model):
    """Applies the attention factor to Q only. It belongs on Q and K, which squares it in the scores."""
    rotary = model.model.rotary_emb
    rotary.attention_scaling = rotary.attention_scaling**0.5


def M(name, config=None, weights=None, model=None):
    return SimpleNamespace(name=name, edits={"edit_config": config, "edit_weights": weights, "edit_model": model})


EVERY_CASE = [
    M("rope pairs interleaved", weights=interleaved_rope),
    M("rope theta x 1.5", config=scale_theta(1.5)),
    M("norm weights ignored", weights=ones("layernorm.weight")),
    M("final norm weight ignored", weights=ones("model.norm.weight", "embedding_norm.weight")),
]

SANDWICH_NORMS = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight", "post_self_attn_layernorm.weight",
                  "post_mlp_layernorm.weight")


def constant(endings):
    """Sets norm weights to the value that leaves the normalized vector as it is."""
    def edit(weights, config):
        neutral = 0.0 if config["model_type"].startswith("gemma") else 1.0
        for name in [name for name in weights if name.endswith(tuple(endings))]:
            weights[name] = torch.full_like(weights[name], neutral)

    return edit


def unscaled_embedding(model):
    model.get_input_embeddings().embed_scale.fill_(1.0)


def swap_ropes(model):
    rotary = model.model.rotary_emb
    names = [f"{kind}_inv_freq" for kind in ("full_attention", "sliding_attention")]
    first, second = (getattr(rotary, name).clone() for name in names)
    setattr(rotary, names[0], second)
    setattr(rotary, names[1], first)


def other_longrope(model):
    """The judge has the factors of the configured length. Takes those of the other side of the trained length."""
    rotary, config = model.model.rotary_emb, model.config
    factors = [torch.tensor(config.rope_parameters[key]) for key in ("short_factor", "long_factor")]
    ratio = factors[1] / factors[0]
    dim = rotary.inv_freq.numel() * 2
    plain = 1 / config.rope_parameters["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
    is_long = torch.allclose(rotary.inv_freq, plain / factors[1])
    rotary.inv_freq = rotary.inv_freq * (ratio if is_long else 1 / ratio)


def rms_for_layer_norms(model):
    for module in model.modules():
        if type(module).__name__.endswith("LayerNorm"):
            module.forward = lambda x, m=module: m.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon)


def mlp_after_attention(model):
    for layer in model.model.layers:
        attention = layer.self_attn.forward

        def both(hidden_states, layer=layer, attention=attention, **rest):
            result, weights = attention(hidden_states=hidden_states, **rest)
            layer.sum = result
            return result, weights

        mlp = layer.mlp.forward
        layer.self_attn.forward = both
        layer.mlp.forward = lambda x, layer=layer, mlp=mlp: mlp(layer.input_layernorm(x + layer.sum))


def rope_in_full_layers(model):
    for layer in model.model.layers:
        layer.self_attn.sliding_window = layer.self_attn.sliding_window or 1


BESIDE_MLP = [
    M("no experts", weights=zero("experts.down_proj")), M("no dense MLP", weights=zero("mlp.down_proj.weight")),
    M("scales of experts ignored", weights=ones("per_expert_scale")), M("norm of the router ignored", weights=ones("router.scale")),
    M("norm of the experts ignored", weights=ones("pre_feedforward_layernorm_2.weight")),
    M("norm of their results ignored", weights=ones("post_feedforward_layernorm_2.weight")),
    M("norm of the MLP's result ignored", weights=ones("post_feedforward_layernorm_1.weight")),
]

OF_FEATURE = {
    "mha": [],
    "mqa": [],  # one KV head: no order to get wrong
    "gqa": [M("KV head h % kv", weights=modulo_kv_heads)],
    "eps": [M("eps 1e-5", config=set_config(rms_norm_eps=1e-5)), M("eps outside the root", model=eps_outside_root)],
    "odd-head-dim": [M("scale by hidden / heads", model=scale_by_hidden)],
    "large-head-dim": [M("scale by hidden / heads", model=scale_by_hidden)],
    "default-theta": [M("theta 500000 by default", config=set_config(rope_theta=500000.0))],
    "small-theta": [M("theta 10000", config=set_config(rope_theta=10000.0))],
    "tied": [M("head not the embedding", weights=separate_head)],
    "qkv-bias": [M("no Q bias", weights=zero("q_proj.bias")), M("no K bias", weights=zero("k_proj.bias")),
                 M("no V bias", weights=zero("v_proj.bias"))],
    "o-bias": [M("no output bias", weights=zero("o_proj.bias"))],
    "mlp-bias": [M("no gate bias", weights=zero("gate_proj.bias")), M("no up bias", weights=zero("up_proj.bias")),
                 M("no down bias", weights=zero("down_proj.bias"))],
    "gelu": [M("SiLU", config=set_config(hidden_act="silu"))],
    "qk-norm": [M("no QK norm", model=identity_qk_norm), M("QK norm weights ignored", weights=ones("q_norm.weight", "k_norm.weight")),
                M("Q and K norm swapped", weights=swap_qk_norm), M("QK norm over all heads", model=qk_norm_over_all_heads)],
    "rope-linear": [M("no scaling", config=no_rope_scaling), M("factor x 1.25", config=lambda c: rope_record(c).update(
        factor=rope_record(c)["factor"] * 1.25))],
    "rope-dynamic": [M("scaled for twice the length", model=dynamic_at(2048)),
                     M("taken for linear", config=lambda c: rope_record(c).update(type="linear"))],
    "rope-dynamic-extended": [M("no scaling", model=dynamic_at(256)), M("base of the length so far", model=growing_dynamic_base),
                              M("base of max_position x factor", model=dynamic_at(512))],
    "rope-llama3": [M("no scaling", config=no_rope_scaling), M("low frequency factor 2", config=set_rope(low_freq_factor=2.0)),
                    M("high frequency factor 8", config=set_rope(high_freq_factor=8.0)),
                    M("original length 8192", config=set_rope(original_max_position_embeddings=8192)),
                    M("taken for linear", config=lambda c: rope_record(c).update(rope_type="linear"))],
    "rope-yarn": [M("no scaling", config=no_rope_scaling), M("attention factor 1", config=set_rope(attention_factor=1.0)),
                  M("attention factor on Q only", model=attention_scaling_squared)],
    "yarn-attention-factor": [M("attention factor by default", config=set_rope(attention_factor=None))],
    "yarn-betas": [M("beta_fast 32", config=set_rope(beta_fast=32.0)), M("beta_slow 1", config=set_rope(beta_slow=1.0))],
    "yarn-mscale": [M("no mscale", config=set_rope(mscale=None, mscale_all_dim=None)),
                    M("mscale over 1", config=set_rope(mscale_all_dim=1e-9))],
    "yarn-default-original": [M("original length max_position / factor", config=set_rope(original_max_position_embeddings=256))],
    "yarn-truncate": [M("range truncated", config=set_rope(truncate=True))],
    "window": [M("no window", config=no_window), M("window + 1", config=set_window(lambda w: w + 1)),
               M("window - 1", config=set_window(lambda w: w - 1))],
    "mixed-layers": [M("window on every layer", config=lambda c: c.update(max_window_layers=0) or c.pop("layer_types", None)),
                     M("window on the first layers", config=lambda c: c.update(
                         layer_types=["sliding_attention", "full_attention", "full_attention"][: c["num_hidden_layers"]]))],
    "unused-window": [M("window used", config=set_config(use_sliding_window=True))],
    "null-window": [M("window 32", config=set_config(sliding_window=32))],
    "hybrid-qk-norm": [M("QK norm weights ignored", weights=ones("q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight")),
                       M("Q and K norm swapped", weights=swap_qk_norm)],
    "short-conv": [M("taps reversed", weights=reverse_taps),
                   M("B and C swapped", weights=swap_parts("conv.in_proj.weight", lambda c, _: [c["hidden_size"]] * 3, 0, 1))],
    "conv-bias": [M("no bias of the convolution", weights=zero("conv.conv.bias")), M("no input bias", weights=zero("conv.in_proj.bias")),
                  M("no output bias", weights=zero("conv.out_proj.bias"))],
    "delta-net": [M("taps reversed", weights=reverse_taps), M("no decay", weights=set_everywhere("A_log", -20)),
                  M("no dt_bias", weights=zero("dt_bias")), M("norm weight ignored", weights=ones("linear_attn.norm.weight"))],
    "separate-projections": [M("q and k swapped", weights=swap_parts(("in_proj_qkv.weight", "conv1d.weight"), delta_net_parts, 0, 1)),
                             M("no beta", weights=zero("in_proj_b.weight")), M("constant time step", weights=zero("in_proj_a.weight"))],
    "value-groups": [M("value head h % groups", weights=modulo_groups)],
    "grouped-projections": [M("parts one after the other", weights=ungrouped_projections)],
    "output-gate": [M("no output gate", weights=no_output_gate)],
    "zero-norm": [M("norm weights not minus 1", weights=norms_without_offset)],
    "partial-rotary": [M("all of a head rotated", config=set_rope(partial_rotary_factor=1.0))],
    "mamba2": [M("taps reversed", weights=reverse_taps), M("no decay", weights=set_everywhere("A_log", -20)),
               M("no dt_bias", weights=zero("dt_bias")), M("no D", weights=zero("mamba.D")),
               M("B and C swapped", weights=swap_mamba_keys),
               M("norm weight ignored", weights=ones("mamba.norm.weight")), M("gate after the norm", model=gate_after_norm)],
    "mamba-groups": [M("norm over all groups", model=norm_over_all_groups)],
    "mamba-biases": [M("no input bias", weights=zero("mamba.in_proj.bias")), M("no output bias", weights=zero("mamba.out_proj.bias"))],
    "no-rope": [M("rotary positions", config=set_config(position_embedding_type="rope"))],
    "multipliers": [M(f"no {key}", config=set_config(**{key: 1.0})) for key in
                    ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")],
    "query-scale": [M("no scale by position", config=set_rope(llama_4_scaling_beta=1e-9))],
    "sandwich-norms": [M("result norms ignored", weights=constant(SANDWICH_NORMS))],
    "scaled-embedding": [M("embedding not scaled", model=unscaled_embedding)],
    "soft-caps": [M("no cap of scores", config=set_config(attn_logit_softcapping=None)),
                  M("no cap of logits", config=set_config(final_logit_softcapping=None))],
    "rope-per-layer-type": [M("rotations swapped", model=swap_ropes)],
    "fused-projections": [],  # a wrong order of the parts changes everything
    "rope-longrope": [M("factors of the other length", model=other_longrope)],
    "no-rope-layers": [],  # the modelling code has no switch for it
    "post-norms": [M("result norms ignored", weights=constant(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")))],
    "qk-norm-all-heads": [M("Q and K norm ignored", weights=ones("q_norm.weight", "k_norm.weight"))],
    "interleaved-rope": [],  # the rotation is in the modelling code
    "qk-norm-after-rope": [M("QK norm ignored", weights=ones("query_layernorm.weight", "key_layernorm.weight"))],
    "rope-alpha": [M("no alpha", config=set_rope(alpha=1.0001))],
    "experts": [M("one expert per token", config=lambda c: c.get("text_config", c).update(num_experts_per_tok=1))],
    "all-experts": [],
    "experts-beside-mlp": [M("one expert per token", config=lambda c: c.update(top_k_experts=1)), *BESIDE_MLP],
    "all-experts-beside-mlp": [M("one expert per token", config=lambda c: c.get("text_config", c).update(top_k_experts=1)), *BESIDE_MLP],
    "layer-norms": [M("RMS norms", model=rms_for_layer_norms)],
    "parallel": [M("the MLP after attention", model=mlp_after_attention)],
    "logit-scale": [M("logits not scaled", config=set_config(logit_scale=1.0))],
    "rope-in-windows": [M("rotation in full layers", model=rope_in_full_layers)],
    "xielu": [M("alpha_p ignored", weights=zero("alpha_p")), M("alpha_n ignored", weights=zero("alpha_n")),
              M("beta ignored", weights=set_everywhere("act_fn.beta", 0.0)), M("SiLU", config=set_config(hidden_act="silu"))],
    "selection-bias": [M("no selection bias", weights=zero("expert_bias", "e_score_correction_bias"))],
    "expert-groups": [M("one group of experts", config=set_config(n_group=1, topk_group=1))],
    "shared-experts": [M("no shared experts", weights=zero("shared_experts.down_proj.weight"))],
    "per-layer-inputs": [M("no table", weights=zero("embed_tokens_per_layer.weight")),
                         M("no projection of the embedding", weights=zero("per_layer_model_projection.weight")),
                         M("no inputs per layer", weights=zero("per_layer_projection.weight"))],
    "shared-kv": [M("keys of the sliding layer ignored", weights=zero("layers.1.self_attn.v_proj.weight"))],
    "layer-scales": [M("no layer scales", weights=ones("layer_scalar"))],
    "equal-kv": [],  # a projection of values would be missing
    "rope-proportional": [M("all of a head rotated", config=lambda c: c["rope_parameters"]["full_attention"].update(
        partial_rotary_factor=1.0))],
    "shared-expert": [M("no shared expert", weights=zero("shared_expert.down_proj.weight")),
                      M("constant gate", weights=zero("shared_expert_gate.weight"))],
    "normalized-weights": [],  # Mixtral has no switch for it
    "stacked-experts": [],
    "sinks": [M("no sinks", weights=set_everywhere("sinks", -30.0))],
    "clamped-swish": [],
    "hub-prefix": [],
    "memory-names": [],
    "padded-vocab": [],  # changes the chosen tokens, not the log-probabilities; checked separately
    "stored-inv-freq": [],
    "odd-tails": [],
}


def measure_mutation(case, directory, golden, mutation):
    """A config that transformers cannot run is visible."""
    try:
        return measure(golden, load_mutated(case, directory, **mutation.edits))
    except (TypeError, KeyError, ValueError):
        if mutation.edits["edit_config"] is None:
            raise
        return float("inf"), float("inf")


def check_case(case, directory):
    """Prints a row per mutation. Returns the number of mutations that the golden does not detect."""
    golden = json.loads((directory / "golden.json").read_text())
    rows = [("(none)", *measure(golden, load_judge(case, directory)))]
    assert rows[0][1] < 1e-4, f"{case['name']}: transformers does not reproduce its golden ({rows[0][1]:.2g})"
    has_rope = "no-rope" not in case["features"]
    has_q_proj = case["model_type"] != "phi3"  # Phi-3 has one projection for q, k and v
    in_every_case = [m for m in EVERY_CASE if (has_rope or "rope" not in m.name) and (has_q_proj or m.edits["edit_weights"] != interleaved_rope)]
    mutations = in_every_case + [m for feature in case["features"] for m in OF_FEATURE[feature]]
    rows += [(m.name, *measure_mutation(case, directory, golden, m)) for m in mutations]
    least = MIN_WORST[case["dtype"]]
    hidden = 0
    for name, worst, mean in rows:
        is_hidden = name != "(none)" and worst < least
        hidden += is_hidden
        print(f"{case['name']:22} {name:36} {worst:9.4f} {mean:9.4f}{'  INVISIBLE' if is_hidden else ''}", flush=True)
    if case["tokenizer_size"] and not samples_padding_without_mask(golden, case["tokenizer_size"]):
        print(f"{case['name']:22} ids without a token sampled           INVISIBLE")
        hidden += 1
    return hidden


def samples_padding_without_mask(golden, tokenizer_size):
    return any(top[0][0] >= tokenizer_size for prompt in golden["prompts"] for top in prompt["topLogprobs"])
