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
        if edit_config:
            edit_config(config)
            (scratch / "config.json").write_text(json.dumps(config))
        if edit_weights:
            weights = {}
            for file in scratch.glob("model*.safetensors"):
                weights |= load_file(file)
                file.unlink()
            (scratch / "model.safetensors.index.json").unlink(missing_ok=True)
            edit_weights(weights, config)
            save_file(weights, scratch / "model.safetensors", metadata={"format": "pt"})
        model = load_judge(case, scratch)
    if edit_model:
        edit_model(model)
    return model


# Edits of config.json. The RoPE parameters have one of two names.


def rope_record(config):
    return config["rope_parameters"] if "rope_parameters" in config else config["rope_scaling"]


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
        record["rope_theta"] = record.get("rope_theta", 10000.0) * factor

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
    for name in [n for n in weights if n.endswith("q_norm.weight")]:
        other = name.replace("q_norm", "k_norm")
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
    """Makes query head h read KV head h % kv instead of h // (heads / kv)."""
    heads, kv, head_dim = head_shape(config)
    order = torch.arange(heads).view(kv, heads // kv).T.flatten()  # new place -> old head
    for name, value in weights.items():
        if ".q_proj." in name:
            weights[name] = value.unflatten(0, (heads, head_dim))[order].reshape(value.shape).contiguous()
        elif ".o_proj.weight" in name:
            by_head = value.unflatten(1, (heads, head_dim))[:, order]
            weights[name] = by_head.reshape(value.shape).contiguous()


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
                x.pow(2).mean((-2, -1), keepdim=True) + norm.variance_epsilon)


def scale_by_hidden(model):
    """Scales attention by hidden / heads instead of head_dim."""
    for layer in model.model.layers:
        layer.self_attn.scaling = (model.config.hidden_size / model.config.num_attention_heads) ** -0.5


def eps_outside_root(model):
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = lambda x, m=module: m.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + m.variance_epsilon)


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
    M("final norm weight ignored", weights=ones("model.norm.weight")),
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
    "padded-vocab": [],  # changes the chosen tokens, not the log-probabilities; checked separately
    "stored-inv-freq": [],
    "odd-tails": [],
}


def check_case(case, directory):
    """Prints a row per mutation. Returns the number of mutations that the golden does not detect."""
    golden = json.loads((directory / "golden.json").read_text())
    rows = [("(none)", *measure(golden, load_judge(case, directory)))]
    assert rows[0][1] < 1e-4, f"{case['name']}: transformers does not reproduce its golden ({rows[0][1]:.2g})"
    mutations = EVERY_CASE + [m for feature in case["features"] for m in OF_FEATURE[feature]]
    rows += [(m.name, *measure(golden, load_mutated(case, directory, **m.edits))) for m in mutations]
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
