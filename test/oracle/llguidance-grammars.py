"""Compares our grammars with llguidance on the cases of grammar-cases.ts. Prints a table. Run by hand:

    python3 -m venv V && V/bin/pip install llguidance==1.9.1
    node -r ./test/oracle/register-ts.cjs test/oracle/grammar-cases.ts > CASES.json
    V/bin/python test/oracle/llguidance-grammars.py CASES.json
"""

import json
import sys
from collections import Counter
from importlib.metadata import version

import llguidance
from llguidance import LLMatcher, LLTokenizer

# Each byte is a token, and one more token ends the text, because the comparison is about texts, not tokenizers.
EOS = 256


def make_tokenizer() -> LLTokenizer:
    class Bytes:
        eos_token_id = EOS
        bos_token_id = None
        tokens = [bytes([i]) for i in range(256)] + [b"<eos>"]
        special_token_ids = [EOS]

        def __call__(self, text):
            return list(text.encode() if isinstance(text, str) else text)

    return LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def judge(tokenizer: LLTokenizer, schema) -> str:
    """Returns the grammar of a schema, or the error."""
    # Any JSON whitespace between the parts.
    overrides = {"whitespace_pattern": r"[ \n\r\t]*"} if isinstance(schema, dict) else None
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides=overrides)
    error = LLMatcher.validate_grammar(grammar, tokenizer)
    return error if error else grammar


def accepts(tokenizer: LLTokenizer, grammar: str, text: str) -> bool:
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def shown(value) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    text = "".join(c if c.isprintable() else "⏎" if c == "\n" else f"\\u{ord(c):04x}" for c in text)
    return (text if len(text) <= 90 else text[:90] + "…").replace("|", "\\|")


def main() -> None:
    cases = json.load(open(sys.argv[1]))
    tokenizer = make_tokenizer()
    counts = Counter()
    rows, refused = [], []
    for case in cases:
        grammar = judge(tokenizer, case["schema"])
        if not grammar.startswith("{"):
            refused.append((case["schema"], grammar))
            continue
        for entry in case["texts"]:
            theirs = accepts(tokenizer, grammar, entry["text"])
            kind = (entry["ours"], theirs, entry["isValid"])
            counts[kind] += 1
            if entry["ours"] != theirs:
                rows.append((case["schema"], entry["text"], *kind))
    total = sum(counts.values())
    print(f"## llguidance {version('llguidance')}\n")
    print(f"{total} texts of {len(cases) - len(refused)} schemas. It does not compile {len(refused)} schema{'' if len(refused) == 1 else 's'}.\n")
    print("| we | llguidance | ajv | texts |\n|---|---|---|---|")
    word = {True: "accept", False: "refuse"}
    for (ours, theirs, is_valid), count in sorted(counts.items(), reverse=True):
        print(f"| {word[ours]} | {word[theirs]}s | {'valid' if is_valid else 'invalid'} | {count} |")
    print("\nTexts that only one of the two accepts:\n\n| schema | text | accepted by | valid |\n|---|---|---|---|")
    for schema, text, ours, _, is_valid in rows:
        print(f"| `{shown(schema)}` | `{shown(text)}` | {'us' if ours else 'llguidance'} | {'yes' if is_valid else 'no'} |")
    print("\nSchemas that llguidance refuses:\n\n| schema | why |\n|---|---|")
    for schema, error in refused:
        print(f"| `{shown(schema)}` | {shown(error.splitlines()[0])} |")


main()
