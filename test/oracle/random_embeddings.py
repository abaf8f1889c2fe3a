"""Random models that pool: every size, activation, module and spelling is drawn from a seed. `make_embeddings.py --random N`
writes them; `FAMILIES` has one function for each kind of model, and returns the values of a row of `embedding_cases`.
"""

from embedding_cases import SHARED, row
from random_cases import ACTIVATIONS, EXPERT_INNER, INNER, Draw, draw_families

ENCODER_HEAD_DIMS = [8, 10, 14, 16, 20, 24, 32, 40, 64]
HEAD_DIMS = [8, 16, 24, 32, 64, 80]
POOLING_MODES = ["cls", "mean", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"]
DENSE_ACTIVATIONS = ["Identity", "Tanh", "ReLU", "GELU", "SiLU"]
PACKAGES = ["sentence_transformers.models", None]  # None: those of the newest version
PROMPTS = [{}, {"query": "query: ", "passage": "passage: "}, {"query": "Instruct: find\nQuery:", "document": ""}]
LABELS = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
SCORE_ACTIVATIONS = [
    {}, {}, {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "4.1.0"}},
    {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.1.0"}},
]


def random_cases(seed, count, families=None):
    draw = Draw(seed)
    return [FAMILIES[name](draw, f"random-{i:02d}-{name}") for i, name in enumerate(draw_families(draw, FAMILIES, count, families))]


def embedder(draw, name, base, tokenizer, config, may_lack_modules=True):
    values = {"config": config, "dtype": draw.pick("f32", "f32", "bf16"), "shards": draw.pick(1, 1, 3),
              "stray": draw.chance(0.3), "package": draw.choice(PACKAGES)}
    if may_lack_modules and draw.chance(0.15):
        return row(name, base, tokenizer, **values)
    modes = [draw.choice(POOLING_MODES)]
    dense = []
    for _ in range(draw.pick(0, 0, 0, 1, 2)):
        out = draw.pick(20, 31, 48, dense[-1][0] if dense else (config.get("dim") or config["hidden_size"]) * len(modes))
        dense.append((out, draw.chance(0.6), draw.choice(DENSE_ACTIVATIONS)))
    prompts = draw.choice(PROMPTS)
    return row(name, base, tokenizer, modules=[modes[0] if len(modes) == 1 else modes, *["normalize"] * draw.chance(0.6)],
               dense=dense, legacy_pooling=draw.chance(0.5), prompts=prompts, dropout=draw.chance(0.15),
               default_prompt=draw.choice([None, *prompts]), max_length=draw.pick(None, None, 33, 64), lower_case=draw.chance(0.15), **values)


def reranker(draw, name, base, tokenizer, config):
    config = {**config, **LABELS, **draw.choice(SCORE_ACTIVATIONS), **draw.some(problem_type="regression")}
    return row(name, base, tokenizer, config=config, task="score", dtype=draw.pick("f32", "f32", "bf16"), shards=draw.pick(1, 1, 3),
               stray=draw.chance(0.3))


def encoder_sizes(draw):
    heads = draw.pick(1, 2, 3, 4, 6)
    head_dim = draw.choice([n for n in ENCODER_HEAD_DIMS if n * heads <= 160])
    return {"hidden_size": heads * head_dim, "num_attention_heads": heads, "num_hidden_layers": draw.pick(1, 2, 3),
            "intermediate_size": draw.choice(INNER)}


def bert_like(architecture, kind, tokenizer, pad):
    def make(draw, name):
        is_bert = kind in ("bert", "electra", "distilbert")
        is_score = architecture.endswith("Classification")
        vocab = draw.pick(300, 300, 309, 337)
        pad_token = draw.pick(pad, 320) if vocab == 337 and kind in ("roberta", "xlm-roberta", "camembert") else pad  # no token of a text
        config = {
            **encoder_sizes(draw), "architectures": [architecture], "model_type": kind, "hidden_act": draw.choice(ACTIVATIONS),
            "layer_norm_eps": draw.pick(1e-12, 1e-5, 0.1), "pad_token_id": pad_token, "type_vocab_size": draw.pick(2, 3) if is_bert and is_score else draw.pick(1, 2, 3),
            "max_position_embeddings": draw.pick(96, 130, 200) + (0 if is_bert else pad_token + 1), "vocab_size": vocab,
            "bos_token_id": 0, "eos_token_id": 2,
        }
        if kind == "electra":
            config["embedding_size"] = config["hidden_size"]
        if kind == "mpnet":
            config["relative_attention_num_buckets"] = 32
        if kind == "distilbert":
            names = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
                     "intermediate_size": "hidden_dim", "hidden_act": "activation"}
            config = {names.get(key, key): value for key, value in config.items() if key not in ("layer_norm_eps", "type_vocab_size")}
            config["activation"] = draw.pick("gelu", "relu")
        plain = lambda case: {**case, "config": {key: value for key, value in case["config"].items() if kind != "distilbert" or key not in SHARED}}
        if is_score:
            return plain(reranker(draw, name, {}, tokenizer, config))
        config["architectures"] = [draw.pick(architecture, architecture.replace("Model", "ForMaskedLM"))]
        case = plain(embedder(draw, name, {}, tokenizer, config))
        names = draw.pick("plain", "prefix", "old") if kind == "bert" else draw.pick("plain", "prefix")
        return {**case, "prefix": names != "plain", "old_names": names == "old"}

    return make


def modernbert(architecture):
    def make(draw, name):
        sizes = encoder_sizes(draw)
        layers = sizes["num_hidden_layers"]
        config = {
            **sizes, "architectures": [architecture], "model_type": "modernbert", "pad_token_id": 0, "vocab_size": draw.pick(300, 309),
            "max_position_embeddings": draw.pick(96, 128, 200), "local_attention": draw.pick(4, 7, 8, 13, 30, 128),
            "hidden_activation": draw.choice(ACTIVATIONS),
            **draw.some(norm_eps=draw.pick(1e-6, 1e-5, 0.1), norm_bias=draw.chance(0.5), attention_bias=draw.chance(0.5),
                        mlp_bias=draw.chance(0.5), classifier_bias=draw.chance(0.5), classifier_pooling=draw.pick("cls", "mean"),
                        classifier_activation=draw.pick("gelu", "silu", "relu")),
        }
        theta = lambda: draw.pick(20.0, 500.0, 10000.0, 160000.0)
        if draw.chance(0.5):
            config |= draw.some(global_rope_theta=theta(), local_rope_theta=theta(), global_attn_every_n_layers=draw.pick(1, 2, 3))
            if draw.chance(0.2):
                config["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
        else:
            config |= draw.some(layer_types=draw.layer_types(layers))
            config |= draw.some(rope_parameters={kind: {"rope_type": "default", "rope_theta": theta()} for kind in
                                                 ("full_attention", "sliding_attention")})
        if architecture.endswith("Classification"):
            return reranker(draw, name, {}, "wordpiece", config)
        config["architectures"] = [draw.pick(architecture, "ModernBertForMaskedLM")]
        return {**embedder(draw, name, {}, "wordpiece", config), "prefix": draw.chance(0.5)}

    return make


def nomic(draw, name):
    config = {**encoder_sizes(draw), "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "pad_token_id": 0, "vocab_size": 300,
              "max_position_embeddings": 128, "layer_norm_eps": draw.pick(1e-12, 0.1), "type_vocab_size": draw.pick(1, 2),
              **draw.some(rope_theta=draw.pick(100.0, 10000.0))}
    return embedder(draw, name, {}, "wordpiece", config)


def eurobert(architecture):
    def make(draw, name):
        sizes = {key: value for key, value in decoder_sizes(draw).items() if key != "tie_word_embeddings"}
        config = {**sizes, "architectures": [architecture], "model_type": "eurobert", "classifier_pooling": draw.pick("bos", "mean"),
                  **draw.some(attention_bias=True, mlp_bias=True)}
        if architecture.endswith("Classification"):
            return reranker(draw, name, {}, "bpe", config)
        return embedder(draw, name, {}, "bpe", config)

    return make


def decoder_sizes(draw):
    kv = draw.pick(1, 2, 3)
    heads = kv * draw.pick(1, 2, 3)
    head_dim = draw.choice([n for n in HEAD_DIMS if n * heads <= 256])
    hidden = heads * draw.choice([n for n in range(4, 66, 2) if 32 <= heads * n <= 130])
    return {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head_dim,
            "num_hidden_layers": draw.pick(1, 2, 3), "intermediate_size": draw.choice(INNER), "max_position_embeddings": 512,
            "rms_norm_eps": draw.pick(1e-6, 1e-5, 1e-2), "rope_theta": draw.pick(500.0, 10000.0, 1e6), "bos_token_id": 1,
            "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu", "tie_word_embeddings": draw.chance(0.5), "vocab_size": draw.pick(300, 309)}


def embedding_gemma(draw, name):
    sizes = decoder_sizes(draw)
    sizes.pop("hidden_act")
    config = {
        **sizes, "architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "use_bidirectional_attention": True,
        "sliding_window": draw.pick(6, 9, 14, 64, 512), "query_pre_attn_scalar": draw.pick(8, 16, 100),
        **draw.some(rope_local_base_freq=draw.pick(20.0, 10000.0), layer_types=draw.layer_types(sizes["num_hidden_layers"]),
                    hidden_activation=draw.pick("gelu_pytorch_tanh", "silu"), sliding_window_pattern=draw.pick(1, 2, 6)),
    }
    if draw.chance(0.3):
        config["rope_scaling"] = {"rope_type": "linear", "factor": 4.0}
    return embedder(draw, name, {}, "bpe", config)


def moe(draw):
    return {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": draw.choice(EXPERT_INNER)}


# What the other decoders need besides sizes.
DECODERS = {
    "Llama": ("llama", lambda draw: draw.some(attention_bias=True, mlp_bias=True, hidden_act="gelu")),
    "Mistral": ("mistral", lambda draw: {"sliding_window": draw.pick(None, 7, 30)}),
    "Qwen2": ("qwen2", lambda draw: {"head_dim": None}),
    "Qwen3": ("qwen3", lambda draw: draw.some(attention_bias=True, use_sliding_window=True, sliding_window=9, max_window_layers=1)),
    "Gemma2": ("gemma2", lambda draw: {"hidden_act": None, "sliding_window": draw.pick(5, 30), "query_pre_attn_scalar": 16}),
    "Gemma3Text": ("gemma3_text", lambda draw: {"hidden_act": None, "sliding_window": draw.pick(5, 30), "query_pre_attn_scalar": 16}),
    "Qwen3Moe": ("qwen3_moe", moe),
    "Phi3": ("phi3", lambda draw: {"head_dim": None}),
    "SmolLM3": ("smollm3", lambda draw: {"head_dim": None}),
    "Glm4": ("glm4", lambda draw: {"partial_rotary_factor": 0.5, "attention_bias": draw.chance(0.5)}),
    "Exaone4": ("exaone4", lambda draw: {"sliding_window": 9, "sliding_window_pattern": 2}),
    "SeedOss": ("seed_oss", lambda draw: draw.some(attention_out_bias=True)),
    "Apertus": ("apertus", lambda draw: {"hidden_act": "xielu"}),
}
BASES = {"Gemma3Text": "Gemma3"}
WITHOUT_CLASSIFIER = {"Apertus", "SeedOss", "Exaone4"}


def decoder(draw, name):
    """Any model that generates can embed."""
    prefix = draw.choice(list(DECODERS))
    model_type, more = DECODERS[prefix]
    config = {**decoder_sizes(draw), "architectures": [f"{BASES.get(prefix, prefix)}ForCausalLM"], "model_type": model_type, **more(draw)}
    config = {key: value for key, value in config.items() if value is not None or key == "sliding_window"}
    case = embedder(draw, f"{name}-{model_type}", {}, "bpe", config, may_lack_modules=False)
    return {**case, "stray": False, "dtype": "f32"}


def decoder_classifier(draw, name):
    prefix = draw.choice([prefix for prefix in DECODERS if prefix not in WITHOUT_CLASSIFIER])
    model_type, more = DECODERS[prefix]
    config = {**decoder_sizes(draw), "architectures": [f"{prefix}ForSequenceClassification"], "model_type": model_type, **more(draw)}
    config = {key: value for key, value in config.items() if value is not None or key == "sliding_window"}
    return {**reranker(draw, f"{name}-{model_type}", {}, "bpe", config), "stray": False}


def qwen3_reranker(draw, name):
    config = {**decoder_sizes(draw), "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    return row(name, {}, "bpe", config=config, task="score", dtype=draw.pick("f32", "bf16"))


FAMILIES = {
    "bert": bert_like("BertModel", "bert", "wordpiece", 0),
    "bert-rerank": bert_like("BertForSequenceClassification", "bert", "wordpiece", 0),
    "roberta": bert_like("RobertaModel", "roberta", "unigram", 1),
    "roberta-rerank": bert_like("RobertaForSequenceClassification", "roberta", "unigram", 1),
    "xlmr": bert_like("XLMRobertaModel", "xlm-roberta", "unigram", 1),
    "xlmr-rerank": bert_like("XLMRobertaForSequenceClassification", "xlm-roberta", "unigram", 1),
    "camembert": bert_like("CamembertModel", "camembert", "unigram", 1),
    "camembert-rerank": bert_like("CamembertForSequenceClassification", "camembert", "unigram", 1),
    "distilbert": bert_like("DistilBertModel", "distilbert", "wordpiece", 0),
    "distilbert-rerank": bert_like("DistilBertForSequenceClassification", "distilbert", "wordpiece", 0),
    "electra": bert_like("ElectraModel", "electra", "wordpiece", 0),
    "electra-rerank": bert_like("ElectraForSequenceClassification", "electra", "wordpiece", 0),
    "mpnet": bert_like("MPNetModel", "mpnet", "unigram", 1),
    "mpnet-rerank": bert_like("MPNetForSequenceClassification", "mpnet", "unigram", 1),
    "nomic": nomic,
    "eurobert": eurobert("EuroBertModel"),
    "eurobert-rerank": eurobert("EuroBertForSequenceClassification"),
    "modernbert": modernbert("ModernBertModel"),
    "modernbert-rerank": modernbert("ModernBertForSequenceClassification"),
    "embedding-gemma": embedding_gemma,
    "decoder": decoder,
    "decoder-classify": decoder_classifier,
    "qwen3-rerank": qwen3_reranker,
}
