"""Writes small tokenizer.model and tekken.json files, with the ids of the packages sentencepiece and tiktoken:

    pip install sentencepiece tiktoken && python test/oracle/make_tokenizers.py --out test/oracle/fixtures/tokenizers

The words of the Tekken file are learned here from the same text as the SentencePiece models.
"""

import argparse
import base64
import io
import json
from collections import Counter
from pathlib import Path

import regex
import sentencepiece
import tiktoken

HERE = Path(__file__).parent
TEXTS = [
    "Hello world", "  two  spaces  ", " lead", "trail ", "\n\nnew\tline\r\n", "déjà vu — ½ ﬁ Å", "日本語のテキスト、漢字",
    "🙂👩‍👩‍👧 emoji", "1234567890 3.14", "def f(x):\n    return x**2  # комментарий\n", "    indented", "a" * 50, "ＦＵＬＬ width",
    "한글 ไทย عربى", "The model directory holds the weights, and the tokenizer.", "x", "", "\u00a0nbsp\u200bzw", "isn't WE'LL",
]  # fmt: skip
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Replacements of characters, as hexadecimal code points: a ligature, a fraction, two full-width letters.
RULES = "FB01\t66 69\nBD\t31 2F 32\nFF26\t46\nFF35\t55\n"


def corpus():
    return (HERE / "../../docs/models.md").resolve().read_text().splitlines() + TEXTS * 3


def write_sentencepiece(out, name, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, vocab_size=420, character_coverage=0.98, minloglevel=2,
        hard_vocab_limit=False, num_threads=1, unk_surface="<unk>", **options)
    (out / name).mkdir(parents=True, exist_ok=True)
    (out / name / "tokenizer.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    write_golden(out / name, [(text, processor.encode(text), processor.decode(processor.encode(text))) for text in TEXTS])


def learn_ranks(num_words):
    """Byte-level BPE: joins the most frequent pair until there are enough words."""
    pieces = Counter(piece for line in corpus() for piece in regex.findall(TEKKEN_PATTERN, line))
    words = {tuple(bytes([byte]) for byte in piece.encode()): count for piece, count in pieces.items()}
    ranks = [bytes([byte]) for byte in range(256)]
    while len(ranks) < num_words:
        pairs = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if b"".join(best) not in ranks:
            ranks.append(b"".join(best))
        words = {joined(word, best): count for word, count in words.items()}
    return ranks


def joined(word, pair):
    result = []
    for part in word:
        if result and (result[-1], part) == pair:
            result[-1] += part
        else:
            result.append(part)
    return tuple(result)


def write_tekken(out, num_special=24, num_words=460, spare=6):
    ranks = learn_ranks(num_words + spare)
    vocab = [{"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for i, token in enumerate(ranks)]
    config = {"pattern": TEKKEN_PATTERN, "num_vocab_tokens": len(vocab), "default_vocab_size": num_special + num_words,
              "default_num_special_tokens": num_special, "version": "v3"}
    out.mkdir(parents=True, exist_ok=True)
    (out / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}, separators=(",", ":")))
    encoding = tiktoken.Encoding("t", pat_str=TEKKEN_PATTERN, mergeable_ranks={t: i for i, t in enumerate(ranks[:num_words])}, special_tokens={})
    ids = lambda text: [num_special + i for i in encoding.encode(text)]
    write_golden(out, [(text, ids(text), text) for text in TEXTS])


def write_golden(folder, rows):
    cases = [{"text": text, "tokenIds": ids, "decoded": decoded} for text, ids, decoded in rows]
    (folder / "golden.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    rules = out / "rules.tsv"
    out.mkdir(parents=True, exist_ok=True)
    rules.write_text(RULES)
    spaces = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    write_sentencepiece(out, "bpe", model_type="bpe", byte_fallback=True, **spaces)
    write_sentencepiece(out, "bpe-normalized", model_type="bpe", byte_fallback=True, normalization_rule_tsv=str(rules))
    write_sentencepiece(out, "bpe-no-prefix", model_type="bpe", byte_fallback=True, add_dummy_prefix=False, **spaces)
    write_sentencepiece(out, "unigram", model_type="unigram", byte_fallback=True, **spaces)
    write_sentencepiece(out, "unigram-normalized", model_type="unigram", normalization_rule_tsv=str(rules))
    write_tekken(out / "tekken")
    rules.unlink()


if __name__ == "__main__":
    main()
