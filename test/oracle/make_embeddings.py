"""Creates tiny random models that pool, and the results of sentence-transformers and transformers for them.

  python make_embeddings.py --seed 20 --out fixtures/embeddings     the committed fixtures
  python make_embeddings.py --check-mutations --out DIR             checks that each mutation changes the golden in DIR
  python make_embeddings.py --random 30 --seed 7 --out DIR          random models, for compare-embeddings.ts

Needs sentence-transformers (6.2.0) besides requirements.txt.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
try:
    from sentence_transformers import CrossEncoder, SentenceTransformer
except ImportError:  # the cases "*-classify-*" need transformers only
    pass
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from embedding_cases import CASES
from golden import names_of_the_hub, save_weights
from random_embeddings import random_cases
from small_tokenizer import TEXT

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
VOCAB = 300
SENTENCES = [line for line in TEXT.splitlines() if line.strip()]
TEXTS = ["", "anchor", "the ship", "Seven sailors, one rock!", SENTENCES[0], SENTENCES[3], " ".join(SENTENCES[:2])[:150],
         "unknown: 東京 ñandú", "trailing space "]
LONG_TEXT = " ".join(SENTENCES)
QUERY = "which animal jumps over the dog"
DOCUMENTS = ["the quick brown fox", SENTENCES[1], "", "seven sailors haul the anchor", SENTENCES[4], "yes no yes"]

RERANK_BEFORE = (
    '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. '
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
RERANK_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
RERANK_TASK = "Given a web search query, retrieve relevant passages that answer the query"


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=specials, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer, {"tokenizer_class": "BertTokenizer", "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]",
                       "sep_token": "[SEP]", "mask_token": "[MASK]"}


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=VOCAB, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>",
                       "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}


def bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - 4, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("yes", "no", "<think>", "</think>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 2)])
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}


TOKENIZERS = {"wordpiece": wordpiece, "unigram": unigram, "bpe": bpe}


def class_of(config):
    """The names in the files of an encoder's language model are those of the encoder alone, or have a prefix."""
    architecture = config["architectures"][0]
    return getattr(transformers, architecture.replace("ForMaskedLM", "Model"))


def random_weights(case, config, generator):
    with torch.device("meta"):
        model = class_of(case["config"])(config)
    weights = {}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter.shape[-1]
        is_norm = "norm" in name.lower()
        if name.endswith(".bias"):
            value = 0.3 * noise
        elif is_norm:
            value = (0 if case["config"]["model_type"].startswith("gemma") else 1) + 0.25 * noise
        elif "embed" in name:
            value = noise * (0.4 if case["config"]["model_type"].startswith("gemma") else 1.0)
        else:
            value = noise * 1.3 / fan_in**0.5
        weights[name] = value.to(DTYPES[case["dtype"]])
    if "num_experts" in case["config"]:
        weights = names_of_the_hub(config, weights, class_of(case["config"]))
    if case["config"]["model_type"] == "nomic_bert":
        weights = names_of_nomic(weights)
    if case["old_names"]:
        rename = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        weights = {rename(name): value for name, value in weights.items()}
    if case["prefix"]:
        prefix = {"modernbert": "model", "eurobert": "model", "xlm-roberta": "roberta", "camembert": "roberta"}.get(
            case["config"]["model_type"], case["config"]["model_type"])
        weights = {f"{prefix}.{name}": value for name, value in weights.items()}
    if case["stray"]:
        weights |= {"embeddings.position_ids": torch.arange(64)[None], "cls.predictions.decoder.weight": torch.rand(3, 5, generator=generator),
                    "lm_head.dense.weight": torch.rand(4, 4, generator=generator)}
    return weights


def names_of_nomic(weights):
    """The names of the files on the hub."""
    pairs = {"layers.": "encoder.layers.", "embeddings.LayerNorm": "emb_ln", "self_attn.o_proj": "attn.out_proj", "up_proj": "fc11",
             "gate_proj": "fc12", "down_proj": "fc2", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
    names = {}
    for name, value in weights.items():
        if "q_proj" in name:
            parts = [weights[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            name, value = name.replace("self_attn.q_proj", "attn.Wqkv"), torch.cat(parts)
        elif "k_proj" in name or "v_proj" in name:
            continue
        for own, other in pairs.items():
            name = name.replace(own, other)
        names[name] = value
    return names


# The modules of the newest version, by class.
NEW_MODULES = {"Transformer": "base.modules.transformer", "Dense": "base.modules.dense", "Normalize": "base.modules.normalize",
               "Pooling": "sentence_transformer.modules.pooling", "Dropout": "sentence_transformer.modules.dropout"}


def module_type(case, name):
    if case["package"] is not None:
        return f"{case['package']}.{name}"
    return f"sentence_transformers.{NEW_MODULES[name]}.{name}"


def dump(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


LEGACY_POOLING = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens", "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
OLDEST_POOLING = ("cls", "mean", "max", "mean_sqrt_len_tokens")  # the flags that all versions write


def write_modules(case, directory, generator):
    if case["modules"] is None:
        return
    modules = [{"idx": 0, "name": "0", "path": "", "type": module_type(case, "Transformer")}]

    def add(name, config):
        index = len(modules)
        path = f"{index}_{name}"
        modules.append({"idx": index, "name": str(index), "path": path, "type": module_type(case, name)})
        if config is not None:
            dump(directory / path / "config.json", config)
        return directory / path

    hidden = case["config"].get("dim") or case["config"]["hidden_size"]
    mode = case["modules"][0]
    modes = [mode] if isinstance(mode, str) else list(mode)
    if case["legacy_pooling"]:
        modes = [name for name in LEGACY_POOLING if name in modes]
        add("Pooling", {"word_embedding_dimension": hidden, **{flag: name in modes for name, flag in LEGACY_POOLING.items()
                                                               if name in modes or name in OLDEST_POOLING}})
    else:
        add("Pooling", {"embedding_dimension": hidden, "pooling_mode": mode, "include_prompt": True})
    if case["dropout"]:
        add("Dropout", {"dropout": 0.1})
    size = hidden * len(modes)
    for out, has_bias, activation in case["dense"]:
        folder = "torch.nn.modules.linear" if activation == "Identity" else "torch.nn.modules.activation"
        path = add("Dense", {"in_features": size, "out_features": out, "bias": has_bias,
                             "activation_function": f"{folder}.{activation}"})
        weights = {"linear.weight": torch.randn(out, size, generator=generator) * 1.3 / size**0.5}
        if has_bias:
            weights["linear.bias"] = 0.3 * torch.randn(out, generator=generator)
        save_file(weights, path / "model.safetensors")
        size = out
    if "normalize" in case["modules"]:
        add("Normalize", None)
    (directory / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    dump(directory / "config_sentence_transformers.json",
         {"prompts": case["prompts"], "default_prompt_name": case["default_prompt"], "similarity_fn_name": "cosine"})
    if case["max_length"] is not None or case["lower_case"]:
        dump(directory / "sentence_bert_config.json", {"max_seq_length": case["max_length"], "do_lower_case": case["lower_case"]})


def write_model(case, seed, directory):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{case['name']}".encode()))
    tokenizer, tokenizer_config = TOKENIZERS[case["tokenizer"]]()
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=False))
    config = case["config"]
    is_roberta = config["model_type"] in ("roberta", "xlm-roberta", "camembert", "mpnet")
    length = config["max_position_embeddings"] - (config["pad_token_id"] + 1 if is_roberta else 0)
    dump(directory / "tokenizer_config.json", {**tokenizer_config, "model_max_length": length})
    dtype = {"f32": "float32", "bf16": "bfloat16"}[case["dtype"]]
    dump(directory / "config.json", {"vocab_size": VOCAB, **config, "torch_dtype": dtype})
    save_weights(random_weights(case, transformers.AutoConfig.from_pretrained(directory), generator), case["shards"], directory)
    write_modules(case, directory, generator)


MODEL_OPTIONS = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}


def numbers(array):
    return [[float(f"{value:.7g}") for value in row] for row in np.asarray(array, dtype=np.float64)]


def embed(case, directory):
    model = SentenceTransformer(str(directory), device="cpu", model_kwargs=MODEL_OPTIONS)
    encode = lambda texts, **options: numbers(model.encode(texts, batch_size=1, show_progress_bar=False, **options))
    result = {"texts": TEXTS, "embeddings": encode(TEXTS)}
    result["tokens"] = [model.tokenizer(text)["input_ids"] for text in TEXTS]
    result["long"] = {"text": LONG_TEXT, "embedding": encode([LONG_TEXT])[0], "length": model.max_seq_length}
    result["prompts"] = {name: encode(TEXTS[1:3], prompt_name=name) for name in case["prompts"]}
    result["short"] = numbers(model.encode(TEXTS[1:3], truncate_dim=8, normalize_embeddings=True, batch_size=1, show_progress_bar=False))
    return result


@torch.no_grad()
def rerank_by_answer(directory, max_length):
    """As the model card of Qwen3-Reranker does it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, **MODEL_OPTIONS).eval()
    ids_of = lambda text: tokenizer.encode(text, add_special_tokens=False)
    before, after = ids_of(RERANK_BEFORE), ids_of(RERANK_AFTER)
    yes, no = ids_of("yes"), ids_of("no")
    assert len(yes) == len(no) == 1
    scores = []
    for document in DOCUMENTS:
        body = ids_of(f"<Instruct>: {RERANK_TASK}\n<Query>: {QUERY}\n<Document>: {document}")
        ids = before + body[: max_length - len(before) - len(after)] + after
        logits = model(torch.tensor([ids])).logits[0, -1].double()
        scores.append(torch.softmax(logits[[yes[0], no[0]]], dim=0)[0].item())
    return scores


@torch.no_grad()
def score_by_classifier(directory, max_length):
    """transformers reads the last token. sentence-transformers applies the activation of its config."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory, **MODEL_OPTIONS).eval()
    config = json.loads((directory / "config.json").read_text())
    stated = config.get("sentence_transformers", {}).get("activation_fn") or config.get("sbert_ce_default_activation_function", "")
    is_identity = stated.endswith("Identity")
    scores = []
    for document in DOCUMENTS:
        ids = tokenizer(QUERY, document, truncation="longest_first", max_length=max_length)["input_ids"]
        logit = model(torch.tensor([ids])).logits[0, 0].double()
        scores.append((logit if is_identity else torch.sigmoid(logit)).item())
    return scores


def score(case, directory):
    if "-classify-" in case["name"]:  # of a decoder
        length = case["config"]["max_position_embeddings"]
        return {"scores": score_by_classifier(directory, length), "truncated": score_by_classifier(directory, 24), "truncatedTo": 24}
    if "ForCausalLM" in case["config"]["architectures"][0]:
        length = case["config"]["max_position_embeddings"]
        return {"scores": rerank_by_answer(directory, length), "truncated": rerank_by_answer(directory, 300), "truncatedTo": 300}
    model = CrossEncoder(str(directory), device="cpu", model_kwargs=MODEL_OPTIONS)
    pairs = [(QUERY, document) for document in DOCUMENTS]
    predict = lambda: model.predict(pairs, batch_size=1, show_progress_bar=False).tolist()
    scores = predict()
    model.max_length = 24
    return {"scores": scores, "truncated": predict(), "truncatedTo": 24}


def judge(case, directory):
    if case["task"] == "embed":
        return embed(case, directory)
    return {"query": QUERY, "documents": DOCUMENTS, **score(case, directory)}


def difference(case, golden, mutated):
    if case["task"] == "score":
        return max(abs(a - b) for a, b in zip(golden["scores"], mutated["scores"]))
    a, b = (np.array(result["embeddings"]) for result in (golden, mutated))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return 1 - cosines.min()


def check_mutations(case, directory):
    """A mutation whose golden stays within ten times the tolerance of the comparison is invisible."""
    golden = json.loads((directory / "golden.json").read_text())
    hidden = 0
    for name, changes in case["mutations"].items():
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary) / "model"
            shutil.copytree(directory, copy)
            config = json.loads((copy / "config.json").read_text())
            config.update(changes)
            dump(copy / "config.json", {key: value for key, value in config.items() if value is not None})
            changed = difference(case, golden, judge(case, copy))
        is_visible = changed > 1e-4
        hidden += not is_visible
        print(f"{case['name']:24} {name:20} {changed:9.5f} {'' if is_visible else 'INVISIBLE'}", flush=True)
    return hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", help="comma-separated names (all by default)")
    parser.add_argument("--check-mutations", action="store_true")
    parser.add_argument("--random", type=int, help="writes so many random models")
    parser.add_argument("--families", type=lambda text: text.split(","), help="of random models")
    args = parser.parse_args()
    table = random_cases(args.seed, args.random, args.families) if args.random else CASES
    cases = [case for case in table if not args.cases or case["name"] in args.cases.split(",")]
    if args.check_mutations:
        hidden = sum(check_mutations(case, args.out / case["name"]) for case in cases)
        sys.exit(f"{hidden} mutations are invisible" if hidden else 0)
    for case in cases:
        directory = args.out / case["name"]
        write_model(case, args.seed, directory)
        golden = {"case": case["name"], "task": case["task"], "dtype": case["dtype"], **judge(case, directory)}
        (directory / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")
        size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
        print(f"{case['name']:24} {size / 1024:6.0f} KB", flush=True)


if __name__ == "__main__":
    main()
