"""Small tokenizers with the regular expressions, normalizers, special tokens, decoders and post-processors of the
families, and a vocabulary trained on a page of text."""

import json
from collections import Counter

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from conversations import CONVERSATIONS, TEXTS
from small_tokenizer import TEXT

NUM_MERGES = 420

QWEN_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN_REGEX = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
                r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def corpus():
    lines = TEXT.splitlines() + TEXTS
    for conversation in CONVERSATIONS:
        lines += [m["content"] for m in conversation["messages"] if m["content"]]
        lines.append(json.dumps(conversation.get("tools", []), ensure_ascii=False))
    return [line for line in lines if line]


def train(pre_tokenizer, alphabet, normalizer=None):
    """Returns vocabulary and merges, in the order of the trainer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=NUM_MERGES + len(alphabet), show_progress=False,
                                  initial_alphabet=alphabet, limit_alphabet=len(alphabet))
    tokenizer.train_from_iterator(corpus(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(m) for m in model["merges"]]


def added(tokenizer, specials, plain=()):
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])


def byte_level(regex, specials, plain=(), first_specials=(), normalizer=None, digits=False, ignore_merges=False, extra_words=()):
    """Byte-level BPE. `first_specials` get the lowest ids, `specials` the highest."""
    if regex:
        steps = [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if digits:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    pre_tokenizer = pre_tokenizers.Sequence(steps)
    words, merges = train(pre_tokenizer, pre_tokenizers.ByteLevel.alphabet(), normalizer)
    words = [*first_specials, *words, *extra_words]
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    added(tokenizer, [*first_specials, *specials], plain)
    return tokenizer


def with_bos(tokenizer, bos, byte_level_first=False):
    template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                             special_tokens=[(bos, tokenizer.token_to_id(bos))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template]) if byte_level_first else template
    return tokenizer


def metaspace(specials, prepend_normalizer):
    """SentencePiece BPE with byte fallback: of Llama 2 (a normalizer prepends the space, before every piece between
    special tokens) or of Mistral v0.3 (the pre-tokenizer prepends it, before the first piece only)."""
    counts = Counter(" ".join(corpus()).replace(" ", "▁"))
    alphabet = sorted(counts, key=lambda char: (-counts[char], char))[:90]  # byte fallback covers the rest
    words, merges = train(pre_tokenizers.Metaspace(prepend_scheme="always"), alphabet)
    byte_words = [f"<0x{b:02X}>" for b in range(256)]
    vocab = {word: i for i, word in enumerate([*specials, *byte_words, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if prepend_normalizer:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    added(tokenizer, specials)
    return with_bos(tokenizer, "<s>")


def config(tokenizer_class, bos, eos, pad, **more):
    return {"tokenizer_class": tokenizer_class, "bos_token": bos, "eos_token": eos, "pad_token": pad,
            "clean_up_tokenization_spaces": False, "model_max_length": 4096, **more}


CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MISTRAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]


DEEPSEEK = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", *(f"<｜tool▁{words}｜>" for words in (
    "calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep", "outputs▁begin", "outputs▁end", "output▁begin", "output▁end"))]


def qwen(plain):
    return byte_level(QWEN_REGEX, CHATML, plain=plain, normalizer=normalizers.NFC())


# family -> (tokenizer, tokenizer_config.json, where the chat template is kept or None)
FAMILIES = {
    "qwen2.5": lambda: (qwen(["<tool_call>", "</tool_call>"]), config("Qwen2Tokenizer", None, "<|im_end|>", "<|endoftext|>", add_bos_token=False), "config"),
    "qwen3": lambda: (qwen(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]),
                      config("Qwen2Tokenizer", None, "<|im_end|>", "<|endoftext|>", add_bos_token=False), "jinja"),
    "qwen3.5": lambda: (qwen(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]),
                        config("Qwen2Tokenizer", None, "<|im_end|>", "<|endoftext|>", add_bos_token=False), "jinja"),
    "llama3.1": lambda: (with_bos(byte_level(LLAMA3_REGEX, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"],
                                             # Words that no merges produce: only ignore_merges finds them.
                                             ignore_merges=True, extra_words=["Ġcapstan", "Ġlighthouse", "Hello"]), "<|begin_of_text|>", byte_level_first=True),
                         config("PreTrainedTokenizerFast", "<|begin_of_text|>", "<|eot_id|>", None), "config"),
    "mistral-nemo": lambda: (with_bos(byte_level(TEKKEN_REGEX, [], first_specials=MISTRAL), "<s>", byte_level_first=True),
                             config("PreTrainedTokenizerFast", "<s>", "</s>", None, unk_token="<unk>"), "jinja"),
    "mistral-v3": lambda: (metaspace(MISTRAL, prepend_normalizer=False), config("PreTrainedTokenizerFast", "<s>", "</s>", None, unk_token="<unk>"), "config"),
    "deepseek-v3": lambda: (with_bos(byte_level(LLAMA3_REGEX, ["<｜end▁of▁sentence｜>"], first_specials=["<｜begin▁of▁sentence｜>"], plain=DEEPSEEK), "<｜begin▁of▁sentence｜>", byte_level_first=True),
                            config("PreTrainedTokenizerFast", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"), "config"),
    "llama2": lambda: (metaspace(["<unk>", "<s>", "</s>"], prepend_normalizer=True), config("PreTrainedTokenizerFast", "<s>", "</s>", None, unk_token="<unk>"), None),
    "smollm2": lambda: (byte_level(None, [], first_specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], digits=True),
                        config("PreTrainedTokenizerFast", "<|im_start|>", "<|im_end|>", "<|im_end|>"), "config"),
}
