"""Writes the token ids of a text.   python llama_ids.py FILE.gguf TEXT OUT.json        (llama-cpp-python)"""

import json
import sys
from pathlib import Path

import llama_cpp

model, text, out = sys.argv[1:]
tokenizer = llama_cpp.Llama(model, vocab_only=True, verbose=False)
Path(out).write_text(json.dumps(tokenizer.tokenize(Path(text).read_bytes(), add_bos=False, special=False)))
