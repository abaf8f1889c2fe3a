"""Random cases: every feature, size and spelling is drawn from a seed, to cover combinations that the table does not."""

import random

from cases import row

VOCABS = [263, 300, 317, 320, 509, 512]
WINDOWS = [1, 7, 16, 23, 64, 100, 255, 700]


def random_cases(seed, count):
    draw = random.Random(seed)
    return [random_case(draw, i) for i in range(count)]


def random_case(draw, index):
    model_type = draw.choice(["llama", "llama", "qwen2", "qwen3", "mistral"])
    kv = draw.choice([1, 1, 2, 3, 4])
    heads = kv * draw.choice([1, 2, 3, 4])
    own_head_dim = model_type == "qwen3" or (model_type != "qwen2" and draw.random() < 0.4)
    head_dim = draw.choice([8, 10, 16, 24, 32, 40, 64, 80, 128]) if heads < 8 else draw.choice([8, 16, 20])
    # hidden is an even multiple of the number of heads, as required for Llama and without an explicit head_dim.
    hidden = heads * draw.choice([n for n in range(4, 66, 2) if 40 <= heads * n <= 130])
    tied = draw.random() < 0.4
    vocab = draw.choice(VOCABS)
    config = random_config(draw, model_type)
    features = [model_type] + (["tied"] if tied else []) + sorted(k for k, v in config.items() if v)
    rope = random_rope(draw)
    extended = rope and rope["rope_type"] == "dynamic" and draw.random() < 0.5
    return row(
        f"random-{index:02d}", f"random {model_type}", features + ([f"rope-{rope['rope_type']}"] if rope else []),
        model_type=model_type, dtype=draw.choice(["f32", "f16", "bf16"]), hidden=hidden, layers=draw.choice([1, 2, 2, 3]), heads=heads, kv=kv,
        head_dim=head_dim if own_head_dim else None, inner=draw.choice([52, 77, 100, 128, 172, 176, 201, 256]), vocab=vocab,
        tokenizer_size=vocab - draw.choice([0, 0, 0, 3]), tied=tied, eps=draw.choice([1e-6, 1e-5, 1e-2]),
        theta=draw.choice([500.0, 10000.0, 10000.0, 100000.0, 1e6]), rope=rope, max_positions=256 if extended else 1024,
        max_model_len=draw.choice([700, 1024, 2000]) if extended else None, spelling=draw.choice(["type", "rope_type", "v5"]),
        shards=draw.choice([1, 1, 2, 5]), eos=draw.choice([2, [2], [2, 7]]), config=config)


def random_rope(draw):
    kind = draw.choice([None, None, "linear", "dynamic", "llama3", "yarn"])
    if kind is None:
        return None
    original = draw.choice([32, 64, 128, 300, 512])
    rope = {"rope_type": kind, "factor": draw.choice([1.5, 2.0, 4.0, 8.0, 32.0])}
    if kind == "llama3":
        low = draw.choice([1.0, 1.0, 2.0])
        rope |= {"low_freq_factor": low, "high_freq_factor": low * draw.choice([2.0, 4.0]), "original_max_position_embeddings": original}
    if kind == "yarn":
        optional = {"original_max_position_embeddings": original, "attention_factor": draw.choice([0.8, 1.0, 1.3]),
                    "beta_fast": draw.choice([4.0, 32.0]), "beta_slow": draw.choice([0.5, 1.0]), "truncate": draw.choice([True, False])}
        rope |= {key: value for key, value in optional.items() if draw.random() < 0.6}
        if draw.random() < 0.4:
            rope |= {"mscale": draw.choice([0.707, 1.0]), "mscale_all_dim": draw.choice([0.5, 1.0])}
    return rope


def random_config(draw, model_type):
    """Returns the keys of the family other than sizes."""
    config = {}
    if model_type == "llama":
        config = {"attention_bias": draw.random() < 0.3, "mlp_bias": draw.random() < 0.3}
        if draw.random() < 0.3:
            config["hidden_act"] = draw.choice(["gelu", "gelu_pytorch_tanh"])
    if model_type == "mistral":
        config = {"sliding_window": draw.choice([None, *WINDOWS])}
    if model_type == "qwen3":
        config = {"attention_bias": draw.random() < 0.3}
    if model_type.startswith("qwen") and draw.random() < 0.6:
        config |= {"sliding_window": draw.choice(WINDOWS), "use_sliding_window": draw.random() < 0.7, "max_window_layers": draw.choice([0, 1, 2])}
    return {key: value for key, value in config.items() if value is not False or draw.random() < 0.5}
