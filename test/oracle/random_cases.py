"""Random cases: every feature, size and spelling is drawn from a seed, to cover combinations that the table does not.

`FAMILIES` has one function for each model type. It returns the values of a row that differ from those that
`random_case` draws for all families.
"""

import random

from cases import DROP, row

VOCABS = [263, 300, 317, 320, 509, 512]
WINDOWS = [1, 3, 7, 16, 23, 64, 100, 255, 700, 5000]
HEAD_DIMS = [8, 10, 16, 24, 32, 40, 64, 80, 96, 112, 128, 192, 256]
ACTIVATIONS = ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu"]
INNER = [52, 77, 100, 128, 172, 176, 201, 256]
EXPERT_INNER = [17, 20, 28, 33, 44, 64]
LAYER_TYPES = ["sliding_attention", "full_attention"]
# Classes that take null for the size of a head.
NULL_HEAD_DIMS = ["llama", "mistral", "mixtral", "apertus"]
PLAIN_ROPES = [None, None, "linear", "dynamic", "llama3", "yarn", "longrope"]


def draw_families(draw, table, count, wanted=None):
    """Returns `count` names of the table. Takes each one once before it takes one again."""
    unknown = set(wanted or []) - set(table)
    assert not unknown, f"unknown families: {unknown}"
    order = []
    while len(order) < count:
        names = list(wanted or table)
        draw.shuffle(names)
        order += names
    return order[:count]


def random_cases(seed, count, families=None):
    draw = Draw(seed)
    return [random_case(draw, name, i) for i, name in enumerate(draw_families(draw, FAMILIES, count, families))]


class Draw(random.Random):
    def pick(self, *values):
        return self.choice(values)

    def chance(self, share):
        return self.random() < share

    def some(self, **optional):
        """Returns each key or leaves it out."""
        return {key: value for key, value in optional.items() if self.chance(0.5)}

    def layer_types(self, layers, types=LAYER_TYPES):
        return [self.choice(types) for _ in range(layers)]


class Shape:
    """Sizes of attention. hidden is an even multiple of the number of heads, as transformers requires of some classes."""

    def __init__(self, draw):
        self.kv = draw.pick(1, 1, 2, 3, 4)
        self.heads = self.kv * draw.pick(1, 2, 3, 4)
        self.own_head_dim = draw.choice([n for n in HEAD_DIMS if n * self.heads <= 512])
        self.hidden = self.heads * draw.choice([n for n in range(4, 66, 2) if 40 <= self.heads * n <= 130])
        self.layers = draw.pick(1, 2, 2, 3, 4)

    @property
    def plain_head_dim(self):
        return self.hidden // self.heads


def random_case(draw, model_type, index):
    shape = Shape(draw)
    vocab = draw.choice(VOCABS)
    dtype = draw.pick("f32", "f16", "bf16")
    own = FAMILIES[model_type](draw, shape)
    config = own.pop("config", {})
    head_dim = own.get("head_dim")
    rotary = int((head_dim or shape.plain_head_dim) * own.pop("partial", 1.0))
    rope, positions = random_rope(draw, own.pop("ropes", PLAIN_ROPES), rotary)
    values = {
        "hidden": shape.hidden, "layers": shape.layers, "heads": shape.heads, "kv": shape.kv, "vocab": vocab,
        "inner": draw.choice(INNER), "tokenizer_size": vocab - draw.pick(0, 0, 0, 3), "tied": draw.chance(0.4),
        "eps": draw.pick(1e-6, 1e-5, 1e-2), "theta": draw.pick(500.0, 10000.0, 10000.0, 100000.0, 1e6), "rope": rope,
        "spelling": draw.pick("type", "rope_type", "v5"), "shards": draw.pick(1, 1, 2, 5), "eos": draw.pick(2, [2], [2, 7]),
        "max_positions": 1024, **positions, **own}
    if "experts" in own.get("features", []) and not takes_all_experts(config):
        dtype = "f32"  # rounding would choose other experts
    features = values.pop("features", [])
    features += file_features(draw, values) + [f"rope-{parameters['rope_type']}" for parameters in [rope] if parameters]
    # As many published configs: without keys that have a default. Then the judge decides what they are.
    for key in ("rms_norm_eps", "hidden_act", "rope_theta", "bos_token_id"):
        if draw.chance(0.1) and key not in config and not (key == "rope_theta" and values["spelling"] == "v5"):
            config[key] = DROP
    # As others: with keys that have no value.
    for key in ("head_dim", "bos_token_id", "pad_token_id", "rope_scaling"):
        is_free = key not in config and values["spelling"] != "v5"
        if draw.chance(0.15) and is_free and (key != "head_dim" or model_type in NULL_HEAD_DIMS and head_dim is None) and (key != "rope_scaling" or rope is None):
            config[key] = None
    features = [model_type] + features + sorted(f"{k}={v}" for k, v in config.items() if v not in (None, False, DROP))
    return row(f"random-{index:02d}-{model_type}", f"random {model_type}", features, model_type=model_type, dtype=dtype,
               config=config, **values)


def takes_all_experts(config):
    counts = [config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(key) is not None]
    return counts[:1] == [config.get("num_experts_per_tok", config.get("top_k_experts"))] or counts[:1] == [0]


def file_features(draw, values):
    """What the files hold besides the model's tensors."""
    features = [name for name in ("stored-inv-freq", "unknown-tensors") if draw.chance(0.15)]
    if values["tied"] and "outer" not in values and draw.chance(0.5):
        features.append(draw.pick("stored-head", "other-head", "head-only"))
    return ["tied"] * values["tied"] + features


# Rotary positions.


def random_rope(draw, kinds, rotary):
    """Returns the rope parameters, and the lengths of the case."""
    kind = draw.choice(kinds)
    if kind is None or isinstance(kind, dict):
        return kind, {}
    original = draw.pick(32, 64, 128, 300, 512)
    rope = {"rope_type": kind, "factor": draw.pick(1.5, 2.0, 4.0, 8.0, 32.0)}
    if kind == "dynamic":
        extended = {"max_positions": 256, "max_model_len": draw.pick(700, 1024, 2000)}
        return rope, extended if draw.chance(0.5) else {}
    if kind == "alpha":
        return {"rope_type": "dynamic", "factor": 1.0, "alpha": draw.pick(2.0, 50.0, 1000.0)}, {}
    if kind == "llama3":
        low = draw.pick(1.0, 1.0, 2.0)
        rope |= {"low_freq_factor": low, "high_freq_factor": low * draw.pick(2.0, 4.0), "original_max_position_embeddings": original}
    if kind == "yarn":
        rope |= draw.some(original_max_position_embeddings=original, attention_factor=draw.pick(0.8, 1.0, 1.3),
                          beta_fast=draw.pick(4.0, 32.0), beta_slow=draw.pick(0.5, 1.0), truncate=draw.chance(0.5))
        if draw.chance(0.4):
            rope |= {"mscale": draw.pick(0.707, 1.0), "mscale_all_dim": draw.pick(0.5, 1.0)}
    if kind == "longrope":
        return long_rope(draw, rotary)
    return rope, {}


def long_rope(draw, rotary):
    divisors = lambda: [round(draw.uniform(0.9, 6.0), 3) for _ in range(rotary // 2)]
    rope = {"rope_type": "longrope", "short_factor": divisors(), "long_factor": divisors(),
            "original_max_position_embeddings": draw.pick(256, 800)}
    rope |= {key: value for key, value in {"factor": draw.pick(1.0, 4.0), "attention_factor": draw.pick(1.0, 1.2)}.items()
             if draw.chance(0.3)}
    return rope, {"max_positions": 2000, "max_model_len": draw.pick(700, 1024, 2000)}


def layer_rope(draw, *kinds):
    """Parameters of one layer type. Transformers reads `truncate` of YaRN elsewhere, so there is none."""
    rope, _ = random_rope(draw, kinds, 0)
    return rope and {key: value for key, value in rope.items() if key != "truncate"}


def nested_rope(draw):
    def one():
        rope = layer_rope(draw, None, "linear", "llama3", "yarn") or {"rope_type": "default"}
        return {"rope_theta": draw.pick(500.0, 10000.0, 1e6), **rope}

    return {"rope_theta": DROP, "rope_scaling": DROP, "rope_parameters": {kind: one() for kind in LAYER_TYPES}}


# Mixtures of experts.


def experts(draw, count_key="num_experts", top_key="num_experts_per_tok"):
    count = draw.pick(1, 2, 3, 4, 5, 8, 12)
    return {count_key: count, top_key: draw.pick(1, min(2, count), min(3, count), count)}


def sparse_layers(draw, layers):
    return draw.some(decoder_sparse_step=draw.pick(1, 2), mlp_only_layers=draw.sample(range(layers), draw.randint(0, layers - 1)))


def with_sparse_layer(config, layers):
    """Drops the keys with which every layer would be dense: such a model has no experts to save."""
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    if not [i for i in range(layers) if (i + 1) % step == 0 and i not in dense]:
        return {key: value for key, value in config.items() if key not in ("decoder_sparse_step", "mlp_only_layers")}
    return config


# Families.


def optional_head_dim(draw, shape):
    return {"head_dim": shape.own_head_dim} if draw.chance(0.5) else {}


def llama(draw, shape):
    config = draw.some(attention_bias=draw.chance(0.6), mlp_bias=draw.chance(0.6), hidden_act=draw.choice(ACTIVATIONS))
    return {"config": config, **optional_head_dim(draw, shape)}


def outer_model(draw, model_type, architecture, vision, share=0.3):
    """A model of text with images, with the names of transformers 5 or those of the hub's files."""
    if not draw.chance(share):
        return {}
    return {"outer": {"model_type": model_type, "architecture": architecture, "vision_config": vision},
            "features": draw.pick([], ["hub-prefix"])}


def pixtral(draw):
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 16, "patch_size": 16}
    return outer_model(draw, "mistral3", "Mistral3ForConditionalGeneration", {**vision, "model_type": "pixtral"})


def mistral(draw, shape):
    return {**pixtral(draw), "config": {"sliding_window": draw.choice([None, *WINDOWS])}, **optional_head_dim(draw, shape)}


def ministral3(draw, shape):
    scaled = {"rope_type": "yarn", "factor": draw.pick(2.0, 8.0), "original_max_position_embeddings": draw.pick(64, 128, 500),
              "llama_4_scaling_beta": draw.pick(0.1, 0.5), **draw.some(mscale=1.0, mscale_all_dim=1.0, beta_fast=4.0)}
    config = draw.some(sliding_window=draw.choice([None, *WINDOWS]))
    if draw.chance(0.2):  # the parameters of the class
        config |= {"rope_theta": DROP, "rope_scaling": DROP, "rope_parameters": DROP}
    return {**pixtral(draw), "config": config, "ropes": [scaled], "head_dim": shape.own_head_dim}


def qwen_windows(draw, shape):
    config = draw.some(sliding_window=draw.choice([None, *WINDOWS]), use_sliding_window=draw.chance(0.7), max_window_layers=draw.randint(0, 4))
    if config.get("use_sliding_window") and config.get("sliding_window") and draw.chance(0.5):
        config["layer_types"] = draw.layer_types(shape.layers)
    return config


def qwen2(draw, shape):
    return {"config": qwen_windows(draw, shape)}


def qwen3(draw, shape):
    return {"config": {**qwen_windows(draw, shape), **draw.some(attention_bias=draw.chance(0.6))}, "head_dim": shape.own_head_dim}


def qwen2_moe(draw, shape):
    config = {**experts(draw), "moe_intermediate_size": draw.choice(EXPERT_INNER),
              "shared_expert_intermediate_size": draw.choice(EXPERT_INNER), **qwen_windows(draw, shape),
              **draw.some(norm_topk_prob=draw.chance(0.5), qkv_bias=draw.chance(0.5)), **sparse_layers(draw, shape.layers)}
    return {"config": with_sparse_layer(config, shape.layers), "features": ["experts"]}


def qwen3_moe(draw, shape):
    config = {**experts(draw), "moe_intermediate_size": draw.choice(EXPERT_INNER), **sparse_layers(draw, shape.layers),
              **draw.some(norm_topk_prob=draw.chance(0.7), attention_bias=draw.chance(0.6), use_sliding_window=draw.chance(0.5),
                          sliding_window=draw.choice([None, *WINDOWS]))}
    return {"config": with_sparse_layer(config, shape.layers), "features": ["experts"], "head_dim": shape.own_head_dim}


def mixtral(draw, shape):
    config = {**experts(draw, "num_local_experts"), **draw.some(sliding_window=draw.choice([None, *WINDOWS]))}
    head = optional_head_dim(draw, shape)
    # Transformers computes no head size for the other rotations.
    ropes = PLAIN_ROPES if head else [None, "linear", "llama3"]
    return {"config": config, "features": ["experts"], "inner": draw.choice(EXPERT_INNER), "ropes": ropes, **head}


def olmoe(draw, shape):
    config = {**experts(draw), **draw.some(norm_topk_prob=draw.chance(0.7), attention_bias=draw.chance(0.6), clip_qkv=None)}
    return {"config": config, "features": ["experts"], "inner": draw.choice(EXPERT_INNER)}


def gpt_oss(draw, shape):
    config = {**experts(draw, "num_local_experts"), "sliding_window": draw.choice(WINDOWS),
              **draw.some(attention_bias=draw.chance(0.5), layer_types=draw.layer_types(shape.layers))}
    return {"config": config, "features": ["experts"], "inner": draw.choice(EXPERT_INNER), "ropes": [None, "yarn", "yarn"],
            "head_dim": shape.own_head_dim}


def gemma2(draw, shape):
    config = {"hidden_act": DROP, "sliding_window": draw.choice(WINDOWS),
              **draw.some(attention_bias=draw.chance(0.5), query_pre_attn_scalar=draw.pick(8, 30, 144),
                          attn_logit_softcapping=draw.pick(None, 4.0, 50.0), final_logit_softcapping=draw.pick(None, 6.0, 30.0),
                          layer_types=draw.layer_types(shape.layers), hidden_activation=draw.pick("gelu_pytorch_tanh", "gelu", "silu"))}
    return {"config": config, "head_dim": shape.own_head_dim}


def gemma3(draw, shape):
    own = gemma2(draw, shape)
    config = own["config"] | draw.some(sliding_window_pattern=draw.pick(1, 2, 3, 6), rope_local_base_freq=draw.pick(500.0, 10000.0))
    nested = draw.chance(0.4)
    config |= nested_rope(draw) if nested else {}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 14, "patch_size": 14}
    outer = outer_model(draw, "gemma3", "Gemma3ForConditionalGeneration", {**vision, "model_type": "siglip_vision_model"})
    # Transformers ignores the old spelling "type" here.
    return {**outer, "config": config, "head_dim": shape.own_head_dim, "spelling": "rope_type",
            "ropes": [None if nested else layer_rope(draw, None, "linear", "yarn")]}


def gemma4(draw, shape):
    shape.layers = draw.pick(2, 3, 4, 6)
    types = draw.layer_types(shape.layers - 1) + ["full_attention"]
    shared = draw.randint(0, shape.layers - 1)
    if set(types[: shape.layers - shared]) != set(types):
        shared = 0
    has_experts = draw.chance(0.4)
    equal = draw.chance(0.4)
    divisors = [n for n in range(1, shape.heads + 1) if shape.heads % n == 0]
    config = {"hidden_act": DROP, "rope_theta": DROP, "rope_scaling": DROP, "sliding_window": draw.choice(WINDOWS), "layer_types": types,
              "global_head_dim": draw.choice([n for n in HEAD_DIMS if n * shape.heads <= 512]), "attention_k_eq_v": equal,
              "hidden_size_per_layer_input": draw.choice([0, 12, 20, 32] if shared == 0 else [12, 20, 32]), "num_kv_shared_layers": shared,
              "use_double_wide_mlp": not has_experts and draw.chance(0.5),
              **draw.some(attention_bias=draw.chance(0.5), final_logit_softcapping=draw.pick(None, 8.0),
                          num_global_key_value_heads=draw.choice([None, *divisors])),
              "rope_parameters": {
                  "full_attention": {"rope_type": "proportional", "partial_rotary_factor": draw.pick(0.25, 0.5, 1.0), "rope_theta": draw.pick(1000.0, 1e6)},
                  "sliding_attention": {"rope_type": "default", "rope_theta": draw.pick(500.0, 10000.0)}}}
    if has_experts:
        config |= {"enable_moe_block": True, "moe_intermediate_size": draw.choice(EXPERT_INNER), **experts(draw, top_key="top_k_experts")}
    vocab = draw.choice(VOCABS)
    return {"config": {**config, "vocab_size_per_layer_input": vocab}, "vocab": vocab, "tokenizer_size": None, "tied": True, "ropes": [None],
            "head_dim": shape.own_head_dim, "features": ["experts"] if has_experts else [], "spelling": "rope_type"}


def phi3(draw, shape):
    partial = draw.choice([p for p in (1.0, 0.75, 0.5) if shape.plain_head_dim * p % 2 == 0])
    original = draw.pick(256, 800)
    config = {"pad_token_id": 0, "partial_rotary_factor": partial, "sliding_window": draw.choice([None, *WINDOWS]),
              "original_max_position_embeddings": original}
    return {"config": config, "partial": partial, "ropes": [None, "longrope", "longrope"], "spelling": draw.pick("type", "rope_type")}


def smollm3(draw, shape):
    config = {"pad_token_id": 0, **draw.some(no_rope_layer_interval=draw.pick(1, 2, 3), mlp_bias=draw.chance(0.5), attention_bias=draw.chance(0.5),
                                             no_rope_layers=[draw.pick(0, 1) for _ in range(shape.layers)])}
    if draw.chance(0.5):
        config |= {"use_sliding_window": True, "sliding_window": draw.choice(WINDOWS), **draw.some(layer_types=draw.layer_types(shape.layers))}
    return {"config": config}


def multipliers(draw):
    return draw.some(embedding_multiplier=draw.pick(2.0, 6.0, 12), residual_multiplier=draw.pick(0.22, 0.6), logits_scaling=draw.pick(0.5, 3.0),
                     attention_multiplier=draw.pick(0.0156, 0.2))


def granite(draw, shape):
    return {"config": {**multipliers(draw), **draw.some(attention_bias=draw.chance(0.6), mlp_bias=draw.chance(0.6))}}


def granitemoe(draw, shape):
    config = {**multipliers(draw), **experts(draw, "num_local_experts"), **draw.some(attention_bias=draw.chance(0.6))}
    return {"config": config, "features": ["experts"], "inner": draw.choice(EXPERT_INNER)}


def olmo2(draw, shape):
    return {"config": draw.some(attention_bias=draw.chance(0.6))}


def olmo3(draw, shape):
    nested = draw.chance(0.4)
    config = {**draw.some(attention_bias=draw.chance(0.6), layer_types=draw.layer_types(shape.layers)), "sliding_window": draw.choice(WINDOWS),
              **(nested_rope(draw) if nested else {})}
    ropes = [None if nested else layer_rope(draw, None, "linear", "yarn")]
    return {"config": config, "ropes": ropes, "theta": 5e5, "spelling": "rope_type"}


def exaone4(draw, shape):
    config = {"sliding_window": draw.choice([None, *WINDOWS]), **draw.some(sliding_window_pattern=draw.pick(1, 2, 3))}
    if config["sliding_window"] is not None and draw.chance(0.4):
        config |= {"layer_types": draw.layer_types(shape.layers), "sliding_window_pattern": "LLLG"}
    if config["sliding_window"] is None:  # as published; transformers fails without the list
        config["layer_types"] = ["full_attention"] * shape.layers
    return {"config": config, **optional_head_dim(draw, shape)}


def partial_head(draw, shape, shares, spelling="key"):
    head_dim = draw.choice([n for n in (8, 16, 24, 32, 64, 80, 96, 128, 256) if n * shape.heads <= 768])
    share = draw.choice([share for share in shares if head_dim * share % 2 == 0])
    return {"head_dim": head_dim, "partial": share}, {"partial_rotary_factor": share}


def glm4(draw, shape):
    own, config = partial_head(draw, shape, (0.25, 0.5, 1.0))
    return {**own, "config": {**config, "pad_token_id": 0, **draw.some(attention_bias=draw.chance(0.5))}, "spelling": draw.pick("type", "rope_type")}


def glm4_moe(draw, shape):
    own, config = partial_head(draw, shape, (0.25, 0.5, 1.0))
    groups = draw.pick(1, 1, 2, 4)
    size = draw.pick(2, 3)
    chosen = draw.randint(1, groups)
    config |= {"n_routed_experts": groups * size, "num_experts_per_tok": draw.randint(1, chosen * size), "n_group": groups, "topk_group": chosen,
               "moe_intermediate_size": draw.choice(EXPERT_INNER), "n_shared_experts": draw.pick(0, 1, 2),
               "first_k_dense_replace": draw.randint(0, shape.layers - 1),
               **draw.some(norm_topk_prob=draw.chance(0.5), routed_scaling_factor=draw.pick(1.0, 2.5), use_qk_norm=draw.chance(0.6),
                           attention_bias=draw.chance(0.6))}
    return {**own, "config": config, "features": ["experts"], "spelling": draw.pick("type", "rope_type")}


def seed_oss(draw, shape):
    config = draw.some(attention_bias=draw.chance(0.5), attention_out_bias=draw.chance(0.5), mlp_bias=draw.chance(0.5))
    return {"config": config, "head_dim": shape.own_head_dim}


def hunyuan(draw, shape):
    config = draw.some(attention_bias=draw.chance(0.5))
    return {"config": config, "head_dim": shape.own_head_dim, "ropes": [None, "alpha", "alpha", "dynamic", "linear"]}


def ernie(draw, shape):
    return {"config": draw.some(use_bias=draw.chance(0.5)), "head_dim": shape.own_head_dim}


def cohere2(draw, shape):
    config = {"rms_norm_eps": DROP, "layer_norm_eps": draw.pick(1e-5, 0.02), "sliding_window": draw.choice(WINDOWS),
              **draw.some(logit_scale=draw.pick(0.0625, 1.0), attention_bias=draw.chance(0.5), sliding_window_pattern=draw.pick(1, 2, 4),
                          layer_types=draw.layer_types(shape.layers))}
    return {"config": config}


def apertus(draw, shape):
    activation = draw.pick(DROP, "xielu", "relu", "silu")
    config = {"pad_token_id": 0, "hidden_act": activation, **draw.some(attention_bias=draw.chance(0.5))}
    return {"config": config, **optional_head_dim(draw, shape)}


def delta_net(draw, shape):
    groups = draw.pick(1, 2, 3)
    types = draw.layer_types(shape.layers, ["linear_attention", "linear_attention", "full_attention"])
    return {"linear_num_key_heads": groups, "linear_num_value_heads": groups * draw.pick(1, 2, 3, 4), "linear_value_head_dim": draw.pick(5, 16, 20, 64),
            "linear_key_head_dim": draw.pick(6, 14, 16, 64), "linear_conv_kernel_dim": draw.pick(2, 3, 4, 5),
            **(draw.pick({"full_attention_interval": draw.pick(1, 2, 3)}, {"layer_types": types})), **draw.some(attention_bias=draw.chance(0.5))}


def qwen3_next(draw, shape):
    own, config = partial_head(draw, shape, (0.25, 0.5, 1.0))
    config |= {**delta_net(draw, shape), **experts(draw), "moe_intermediate_size": draw.choice(EXPERT_INNER),
               "shared_expert_intermediate_size": draw.choice(EXPERT_INNER), **sparse_layers(draw, shape.layers),
               **draw.some(norm_topk_prob=draw.chance(0.5))}
    return {**own, "config": with_sparse_layer(config, shape.layers), "features": ["experts"], "spelling": draw.pick("type", "rope_type")}


def qwen3_5(draw, shape):
    own, config = partial_head(draw, shape, (0.25, 0.5, 1.0))
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": shape.hidden}
    outer = outer_model(draw, "qwen3_5", "Qwen3_5ForConditionalGeneration", vision)
    outer.pop("features", None)  # its files have the names of transformers
    return {**own, **outer, "config": {**config, **delta_net(draw, shape)}, "spelling": draw.pick("type", "rope_type")}


def qwen3_5_moe(draw, shape):
    own, config = partial_head(draw, shape, (0.25, 0.5, 1.0))
    config |= {**delta_net(draw, shape), **experts(draw), "moe_intermediate_size": draw.choice(EXPERT_INNER),
               "shared_expert_intermediate_size": draw.choice(EXPERT_INNER), "intermediate_size": DROP}
    names = draw.pick([], ["memory-names"])
    return {**own, "config": config, "features": ["experts", *names], "spelling": draw.pick("type", "rope_type")}


def short_convolutions(draw, shape):
    return {"rms_norm_eps": DROP, "hidden_act": DROP, "conv_L_cache": draw.pick(2, 3, 4, 5),
            **draw.some(norm_eps=draw.pick(1e-5, 0.02), conv_bias=draw.chance(0.5))}


def lfm2(draw, shape):
    types = {"layer_types": draw.layer_types(shape.layers, ["conv", "full_attention"])}
    indices = {"full_attn_idxs": draw.sample(range(shape.layers), draw.randint(0, shape.layers))}
    sizes = draw.some(block_ff_dim=draw.choice(INNER), block_multiple_of=draw.pick(20, 256), block_ffn_dim_multiplier=draw.pick(1.0, 1.3),
                      block_auto_adjust_ff_dim=draw.chance(0.5))
    return {"config": {**short_convolutions(draw, shape), **draw.pick(types, indices), **sizes}, **optional_head_dim(draw, shape)}


def lfm2_moe(draw, shape):
    config = {**short_convolutions(draw, shape), **experts(draw), "layer_types": draw.layer_types(shape.layers, ["conv", "full_attention"]),
              "moe_intermediate_size": draw.choice(EXPERT_INNER), "num_dense_layers": draw.randint(0, shape.layers - 1),
              **draw.some(norm_topk_prob=draw.chance(0.5), routed_scaling_factor=draw.pick(1.0, 2.5), use_expert_bias=draw.chance(0.5))}
    return {"config": config, "features": ["experts"]}


def granite_hybrid(draw, shape):
    heads = draw.choice([n for n in (2, 4, 6, 8, 12, 16) if 2 * shape.hidden % n == 0])
    old = draw.chance(0.5)
    types = draw.layer_types(shape.layers, ["mamba", "attention"] if old else ["linear_attention", "full_attention"])
    config = {**multipliers(draw), "shared_intermediate_size": draw.choice(INNER), "mamba_n_heads": heads, "mamba_d_state": draw.pick(4, 7, 14, 16, 128),
              "mamba_n_groups": draw.choice([n for n in (1, 2, 4) if heads % n == 0]), "mamba_d_conv": draw.pick(2, 3, 4), "layer_types": types,
              **draw.some(mamba_conv_bias=draw.chance(0.5), mamba_proj_bias=draw.chance(0.5), mamba_chunk_size=draw.pick(8, 64, 256),
                          attention_bias=draw.chance(0.5), position_embedding_type=draw.pick("rope", "nope", None),
                          mamba_d_head=draw.pick("auto", 2 * shape.hidden // heads))}
    has_experts = draw.chance(0.5)
    config |= experts(draw, "num_local_experts") if has_experts else {"num_local_experts": 0, "num_experts_per_tok": 0}
    return {"config": config, "features": ["experts"] if has_experts else [], "inner": draw.choice(EXPERT_INNER)}


def gemma(draw, shape):
    # The class takes the exact function for the approximation.
    return {"config": draw.some(attention_bias=draw.chance(0.5), hidden_act=draw.pick("gelu", "gelu_pytorch_tanh", "silu")), "head_dim": shape.own_head_dim}


def ministral(draw, shape):
    # Transformers has a default for neither.
    config = {"sliding_window": draw.choice(WINDOWS), **draw.some(layer_types=draw.layer_types(shape.layers))}
    return {"config": config, "head_dim": shape.own_head_dim}


def cwm(draw, shape):
    config = {"sliding_window": draw.choice(WINDOWS), **draw.some(mlp_bias=draw.chance(0.5), layer_types=draw.layer_types(shape.layers))}
    if draw.chance(0.3):  # the parameters of the class
        config |= {"rope_theta": DROP, "rope_scaling": DROP, "rope_parameters": DROP}
    return {"config": config, "head_dim": shape.own_head_dim, "ropes": ["llama3"]}


def helium(draw, shape):
    return {"config": {"pad_token_id": 0, **draw.some(attention_bias=draw.chance(0.5), mlp_bias=draw.chance(0.5))}, "head_dim": shape.plain_head_dim}


def cohere(draw, shape):
    return {"config": {"rms_norm_eps": DROP, "layer_norm_eps": draw.pick(1e-5, 0.02),
                       **draw.some(logit_scale=draw.pick(0.0625, 1.0), attention_bias=draw.chance(0.5))}}


def starcoder2(draw, shape):
    return {"config": {"rms_norm_eps": DROP, "sliding_window": draw.choice([None, *WINDOWS]), "hidden_act": draw.pick(DROP, "gelu_pytorch_tanh", "relu"),
                       **draw.some(norm_epsilon=draw.pick(1e-5, 0.02), use_bias=draw.chance(0.5))}}


def stablelm(draw, shape):
    share = draw.choice([share for share in (0.25, 0.5, 1.0) if shape.plain_head_dim * share % 2 == 0])
    return {"config": {"rms_norm_eps": DROP, "partial_rotary_factor": share, **draw.some(layer_norm_eps=draw.pick(1e-5, 0.02), use_qkv_bias=draw.chance(0.5))},
            "partial": share, "spelling": draw.pick("type", "rope_type")}


def granitemoeshared(draw, shape):
    own = granitemoe(draw, shape)
    return {**own, "config": {**own["config"], "shared_intermediate_size": draw.pick(0, 20, 64)}}


def flex_olmo(draw, shape):
    config = {"pad_token_id": 0, **experts(draw), **draw.some(norm_topk_prob=draw.chance(0.5), attention_bias=draw.chance(0.5))}
    return {"config": config, "features": ["experts"], "inner": draw.choice(EXPERT_INNER)}


def dots1(draw, shape):
    own = glm4_moe(draw, shape)
    config = {key: value for key, value in own["config"].items() if key not in ("use_qk_norm", "partial_rotary_factor")}
    config |= {"n_shared_experts": draw.pick(1, 2), **draw.some(sliding_window=draw.choice([None, *WINDOWS]), max_window_layers=draw.randint(0, 4))}
    return {"config": config, "features": ["experts"], "head_dim": shape.own_head_dim}


def minimax_m2(draw, shape):
    own, config = partial_head(draw, shape, (0.25, 0.5, 1.0))
    rotary = {"rotary_dim": int(own["head_dim"] * own["partial"])}
    return {**own, "config": {**draw.pick(config, rotary), **experts(draw, "num_local_experts")}, "features": ["experts"],
            "inner": draw.choice(EXPERT_INNER), "spelling": draw.pick("type", "rope_type")}


FAMILIES = {
    "llama": llama, "mistral": mistral, "ministral3": ministral3, "qwen2": qwen2, "qwen3": qwen3, "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe, "mixtral": mixtral, "olmoe": olmoe, "gpt_oss": gpt_oss, "gemma2": gemma2, "gemma3_text": gemma3,
    "gemma4_text": gemma4, "phi3": phi3, "smollm3": smollm3, "granite": granite, "granitemoe": granitemoe, "olmo2": olmo2,
    "olmo3": olmo3, "exaone4": exaone4, "glm4": glm4, "glm4_moe": glm4_moe, "seed_oss": seed_oss, "hunyuan_v1_dense": hunyuan,
    "ernie4_5": ernie, "cohere2": cohere2, "apertus": apertus, "qwen3_next": qwen3_next, "qwen3_5_text": qwen3_5,
    "qwen3_5_moe_text": qwen3_5_moe, "lfm2": lfm2, "lfm2_moe": lfm2_moe, "granitemoehybrid": granite_hybrid,
    "gemma": gemma, "vaultgemma": gemma2, "ministral": ministral, "cwm": cwm, "glm": glm4, "helium": helium, "cohere": cohere,
    "starcoder2": starcoder2, "stablelm": stablelm, "granitemoeshared": granitemoeshared, "flex_olmo": flex_olmo, "dots1": dots1,
    "minimax_m2": minimax_m2,
}
