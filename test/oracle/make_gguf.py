"""Writes GGUF files of golden cases with the package `gguf`: python test/oracle/make_gguf.py --out test/oracle/fixtures/gguf

The weights and their types are those of the case, so the results in its golden.json hold for the file too.
"""

import argparse
from pathlib import Path

from gguf_writer import write_gguf

FIXTURES = Path(__file__).parent / "fixtures"
# Case -> options of the writer. Together: paired rows and divisors of Llama 3 in three parts, YaRN, biases, QK norms.
CASES = {"llama31-f16": {"split_max_tensors": 8}, "yarn-f16": {}, "qwen2-bf16": {}, "qwen3-bf16": {}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for case, options in CASES.items():
        write_gguf(FIXTURES / case, out / f"{case}.gguf", as_f32=False, has_tokenizer=True, **options)


if __name__ == "__main__":
    main()
