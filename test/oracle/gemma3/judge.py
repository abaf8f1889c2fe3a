"""Compares the output of completions.ts with llama.cpp.

  python judge.py FILE.gguf OUT.json [--steps FILE.json]

Needs gguf and llama-cpp-python 0.3.36, built from source. llama.cpp runs on the file as it is, and on its decoded values in
F32. It reads the tokens of each completion, so that one other token does not change the rest. Its tokenizer must make the
same prompts. --steps writes each step at which llama.cpp chooses another token.
"""

import argparse
import ctypes
import json
import os
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

NUM_POSITIONS = 4096


def decode_file(source, target):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0


class Model:
    """A loaded GGUF with an f32 KV cache and no flash attention."""

    def __init__(self, path):
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = NUM_POSITIONS
        params.n_threads = params.n_threads_batch = int(os.environ.get("THREADS", "2"))
        params.type_k = params.type_v = 0  # GGML_TYPE_F32
        params.flash_attn_type = 0  # disabled
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.batch = llama_cpp.llama_batch_init(NUM_POSITIONS, 0, 1)

    def tokenize(self, text):
        data, ids = text.encode(), (llama_cpp.llama_token * NUM_POSITIONS)()
        return list(ids[: llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, NUM_POSITIONS, True, True)])

    def logprobs(self, prompt, tokens):
        """Returns the log-probabilities before each token: (tokens, vocabulary)."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        ids = prompt + tokens[:-1]
        self.batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            self.batch.token[i], self.batch.pos[i], self.batch.n_seq_id[i], self.batch.seq_id[i][0] = token, i, 1, 0
            self.batch.logits[i] = i >= len(prompt) - 1
        assert llama_cpp.llama_decode(self.context, self.batch) == 0
        pointer = ctypes.cast(llama_cpp.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(pointer, (len(tokens), self.vocab_size)).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def compare(model, runs):
    """Returns the counts of a row of the table, and the steps at which llama.cpp chooses another token."""
    differences, others, steps, whole = [], [], 0, 0
    for run in runs:
        before = len(others)
        for step, (row, token, top) in enumerate(zip(model.logprobs(run["prompt"], run["tokens"]), run["tokens"], run["top"])):
            differences += [abs(row[i] - logprob) for i, logprob in top]
            best = int(row.argmax())
            if best != token:
                ours = dict(map(tuple, top))
                margins = row[best] - row[token], ours[token] - ours[best] if best in ours else float("inf")
                others.append({"name": run["name"], "step": step, "ours": token, "theirs": best, "theirMargin": margins[0], "ourMargin": margins[1]})
        steps += len(run["tokens"])
        whole += len(others) == before
    return steps, whole, max(differences), float(np.mean(differences)), others


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=Path)
    args = parser.parse_args()
    results, found = json.loads(args.output.read_text()), {}
    with tempfile.TemporaryDirectory() as scratch:
        decoded = Path(scratch) / "decoded.gguf"
        decode_file(args.file, decoded)
        for name, path, modes in [("the decoded values in F32", decoded, ["f32"]), ("the file", args.file, ["auto", "f32"])]:
            model = Model(path)
            for run in results["f32"]:
                if model.tokenize(run["text"]) != run["prompt"]:
                    print(f"other tokens: {run['name']}: {model.tokenize(run['text'])[:20]} instead of {run['prompt'][:20]}", flush=True)
            for mode in modes:
                runs = results[mode]
                steps, whole, worst, mean, others = compare(model, runs)
                margins = sorted(round(min(entry["ourMargin"], entry["theirMargin"]), 4) for entry in others)
                print(f"{mode} beside llama.cpp on {name}: {steps} steps, {steps - len(others)} tokens equal, {whole} of {len(runs)} completions whole, "
                      f"worst {worst:.1e}, mean {mean:.1e}, margins of the others up to {margins[-5:]}", flush=True)
                found[f"{mode}, {name}"] = others
    if args.steps:
        args.steps.write_text(json.dumps(found, indent=1))


# Logs nothing. The callback must outlive the calls.
@llama_cpp.llama_log_callback
def log(level, text, user_data):
    pass


llama_cpp.llama_log_set(log, ctypes.c_void_p(0))

if __name__ == "__main__":
    main()
