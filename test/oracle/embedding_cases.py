"""The golden cases of embeddings and rerankers: one row is one tiny random model.

`config` is merged into config.json. `mutations` change it (None removes a key), and each must change the golden.
"""

BERT = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 0.3,
    "max_position_embeddings": 96, "type_vocab_size": 2, "pad_token_id": 0,
}
XLMR = {
    "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "hidden_act": "gelu", "layer_norm_eps": 1e-5,
    "max_position_embeddings": 98, "type_vocab_size": 1, "pad_token_id": 1,
}
MODERNBERT = {
    "architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_activation": "gelu", "norm_eps": 0.3,
    "max_position_embeddings": 96, "local_attention": 8, "global_attn_every_n_layers": 2, "global_rope_theta": 5000.0,
    "local_rope_theta": 20.0, "pad_token_id": 0, "num_hidden_layers": 3,
}
CAMEMBERT = {**XLMR, "architectures": ["CamembertModel"], "model_type": "camembert"}
ELECTRA = {**BERT, "architectures": ["ElectraModel"], "model_type": "electra", "embedding_size": 32}
# The names of its sizes differ from those of BERT.
DISTILBERT = {
    "architectures": ["DistilBertModel"], "model_type": "distilbert", "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64,
    "activation": "gelu", "max_position_embeddings": 96, "pad_token_id": 0,
}
MPNET = {
    "architectures": ["MPNetModel"], "model_type": "mpnet", "hidden_act": "gelu", "layer_norm_eps": 1e-5,
    "max_position_embeddings": 162, "pad_token_id": 1, "relative_attention_num_buckets": 32,
}
NOMIC = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "hidden_act": "silu", "layer_norm_eps": 1e-5,
    "max_position_embeddings": 96, "type_vocab_size": 2, "pad_token_id": 0,
}
EUROBERT = {
    "architectures": ["EuroBertModel"], "model_type": "eurobert", "hidden_act": "silu", "num_key_value_heads": 1,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 1000.0, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "num_key_value_heads": 1,
    "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}
GEMMA = {
    "architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 16, "sliding_window": 14, "use_bidirectional_attention": True, "rope_theta": 1000.0,
    "rope_local_base_freq": 20.0, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "num_hidden_layers": 3, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
SHARED = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}

DEFAULTS = {
    "dtype": "f32", "task": "embed", "mutations": {},
    # The files of sentence-transformers. A dense layer is (outputs, has a bias, activation).
    "modules": None, "dense": [], "dropout": False, "prompts": {}, "default_prompt": None, "max_length": None,
    "lower_case": False, "legacy_pooling": False, "package": "sentence_transformers.models",
    # The files of weights: the prefix of the model with a head, the norms' names of old files, tensors that are no part.
    "prefix": False, "old_names": False, "shards": 1, "stray": False,
}


def row(name, base, tokenizer, **changes):
    assert set(changes) <= DEFAULTS.keys() | {"config"}, set(changes) - DEFAULTS.keys()
    shared = {} if "dim" in base else SHARED
    config = {**shared, **base, **changes.pop("config", {})}
    return {"name": name, "config": config, "tokenizer": tokenizer, **DEFAULTS, **changes}


ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}

CASES = [
    row("bert-mean-f32", BERT, "wordpiece", modules=["mean", "normalize"], max_length=64, legacy_pooling=True,
        mutations={"eps": {"layer_norm_eps": 1e-12}, "activation": {"hidden_act": "relu"}}),
    row("bert-mean-bf16", BERT, "wordpiece", modules=["mean", "normalize"], dtype="bf16", config={"layer_norm_eps": 1e-12}),
    row("bert-cls-f32", BERT, "wordpiece", modules=["cls"], dense=[(20, True, "Tanh")], prefix=True, old_names=True,
        config={"hidden_act": "relu", "layer_norm_eps": 1e-12}, mutations={"activation": {"hidden_act": "gelu"}}),
    row("xlmr-mean-f32", XLMR, "unigram", mutations={"position-offset": {"pad_token_id": 0}}),
    row("xlmr-cls-f32", XLMR, "unigram", modules=["cls", "normalize"],
        prompts={"query": "query: ", "passage": "passage: "}),
    row("bert-lower-f32", BERT, "unigram", modules=["cls", "normalize"], lower_case=True, config={"pad_token_id": 1}),
    row("camembert-root-f32", CAMEMBERT, "unigram", modules=["mean_sqrt_len_tokens"], prefix=True, dropout=True, package=None),
    row("distilbert-f32", DISTILBERT, "wordpiece", modules=["mean", "normalize"], prefix=True,
        mutations={"activation": {"activation": "relu"}}),
    row("electra-max-f32", ELECTRA, "wordpiece", modules=["max"]),
    row("mpnet-max-f32", MPNET, "unigram", modules=["max", "normalize"], prefix=True),
    row("nomic-f32", NOMIC, "wordpiece", modules=["mean", "normalize"], mutations={"theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}}),
    row("eurobert-f32", EUROBERT, "bpe", modules=["mean"]),
    row("modernbert-f32", MODERNBERT, "wordpiece", modules=["cls", "normalize"],
        mutations={"window": {"local_attention": 12}, "period": {"global_attn_every_n_layers": 3},
                   "global-theta": {"global_rope_theta": 50.0}, "local-theta": {"local_rope_theta": 5000.0},
                   "eps": {"norm_eps": 1e-6}}),
    row("modernbert-linear-f32", MODERNBERT, "wordpiece", modules=["mean"],
        config={"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "local_attention": 7},
        mutations={"scaling": {"rope_scaling": None}}),
    row("modernbert-bias-f32", MODERNBERT, "wordpiece", modules=["mean"],
        config={"norm_bias": True, "attention_bias": True, "mlp_bias": True}),
    row("qwen3-last-f32", QWEN3, "bpe", modules=["lasttoken", "normalize"], default_prompt="document",
        prompts={"query": "Instruct: find the text\nQuery:", "document": "Text: "}),
    row("qwen3-last-bf16", QWEN3, "bpe", modules=["lasttoken", "normalize"], dtype="bf16"),
    row("qwen3-mean-f32", QWEN3, "bpe", modules=["mean"]),
    row("qwen3-weighted-f32", QWEN3, "bpe", modules=["weightedmean"]),
    row("gemma3-f32", GEMMA, "bpe", modules=["mean", "normalize"], dense=[(72, False, "Identity"), (32, False, "Identity")],
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
        mutations={"window": {"sliding_window": 18}, "bidirectional": {"use_bidirectional_attention": None},
                   "local-theta": {"rope_local_base_freq": 1000.0},
                   "layers": {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}}),
    row("bert-rerank-f32", BERT, "wordpiece", task="score",
        config={"architectures": ["BertForSequenceClassification"], "layer_norm_eps": 1e-12, **ONE_LABEL,
                "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        mutations={"score-activation": {"sbert_ce_default_activation_function": None}}),
    row("distilbert-rerank-f32", DISTILBERT, "wordpiece", task="score",
        config={"architectures": ["DistilBertForSequenceClassification"], **ONE_LABEL}),
    row("electra-rerank-f32", ELECTRA, "wordpiece", task="score",
        config={"architectures": ["ElectraForSequenceClassification"], **ONE_LABEL}),
    row("mpnet-rerank-f32", MPNET, "unigram", task="score",
        config={"architectures": ["MPNetForSequenceClassification"], **ONE_LABEL}),
    row("eurobert-rerank-f32", EUROBERT, "bpe", task="score",
        config={"architectures": ["EuroBertForSequenceClassification"], "classifier_pooling": "mean", **ONE_LABEL}),
    row("xlmr-rerank-f32", XLMR, "unigram", task="score",
        config={"architectures": ["XLMRobertaForSequenceClassification"], **ONE_LABEL}),
    row("roberta-rerank-f32", XLMR, "unigram", task="score",
        config={"architectures": ["RobertaForSequenceClassification"], "model_type": "roberta", **ONE_LABEL,
                "sentence_transformers": SIGMOID}),
    row("modernbert-rerank-f32", MODERNBERT, "wordpiece", task="score",
        config={"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "mean", **ONE_LABEL},
        mutations={"pooling": {"classifier_pooling": "cls"}}),
    row("qwen3-classify-f32", QWEN3, "bpe", task="score",
        config={"architectures": ["Qwen3ForSequenceClassification"], "pad_token_id": 0, **ONE_LABEL}),
    row("gemma2-classify-f32", QWEN3, "bpe", task="score",
        config={"architectures": ["Gemma2ForSequenceClassification"], "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh",
                "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 12, "query_pre_attn_scalar": 16, "pad_token_id": 0,
                "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity", **ONE_LABEL}),
    row("qwen3-rerank-f32", QWEN3, "bpe", task="score"),
    row("qwen3-rerank-untied-f32", QWEN3, "bpe", task="score", config={"tie_word_embeddings": False}),
]
