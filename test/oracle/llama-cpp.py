"""Runs the golden cases in llama.cpp and checks its greedy tokens wherever the margin exceeds the tolerance.

  python llama-cpp.py DIR [--engine FILE] [--out FILE.md]
  python llama-cpp.py DIR --files

DIR contains golden cases (make_models.py). Compares llama.cpp with transformers (golden.json), and with the engine if
--engine names the output of compare.ts --json. Needs gguf and llama-cpp-python 0.3.36, built from source:
CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python==0.3.36 --no-binary llama-cpp-python
f16 and bf16 cases have two rows: weights of the type of the file, and the same values as f32, for which llama.cpp does
not round activations.

--files reads the files of random_gguf.py instead, with their values in f32: CASE.f32.gguf beside golden.json, and
CASE.values.gguf beside CASE.values.json, the results of the engine (compare-gguf.ts).
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

from gguf_writer import read_config, why_not, window_of, write_gguf, yarn_betas

NUM_STEPS = 16
FORK = multiprocessing.get_context("fork")
TOLERANCE = {"f32": 1e-3, "f16": 1e-2, "bf16": 0.15}


class Model:
    """A loaded GGUF with an f32 KV cache and no flash attention."""

    def __init__(self, path, num_positions, yarn_betas):
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise ValueError("llama.cpp does not load the file")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = num_positions
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = 0  # GGML_TYPE_F32
        params.flash_attn_type = 0  # disabled
        params.yarn_beta_fast, params.yarn_beta_slow = yarn_betas
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def logprobs_after(self, token_ids):
        """Appends the tokens to the sequence. Returns the log-softmax of the last token's logits."""
        array = (llama_cpp.llama_token * len(token_ids))(*token_ids)
        status = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(token_ids)))
        assert status == 0, status
        pointer = llama_cpp.llama_get_logits_ith(self.context, -1)
        logits = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.vocab_size,)).astype(np.float64)
        return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

    def greedy(self, prompt, allowed):
        """Returns the tokens and all log-probabilities per step. Never chooses ids from `allowed` on."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        tokens, steps, new = [], [], prompt
        for _ in range(NUM_STEPS):
            steps.append(self.logprobs_after(new))
            new = [int(steps[-1][:allowed].argmax())]
            tokens += new
        return tokens, steps


def compare(tokens, steps, prompt, other_tokens, tolerance):
    """Compares steps until the tokens differ. Returns the worst log-probability difference, the number of equal and
    comparable tokens, and a fault or None."""
    worst = 0.0
    for step, (token, other) in enumerate(zip(tokens, other_tokens)):
        worst = max(worst, *(float(abs(steps[step][i] - value)) for i, value in prompt["topLogprobs"][step]))
        if token != other:
            margin = prompt["margins"][step]
            fault = f"prompt {prompt['name']}, step {step}: {token} instead of {other}, margin {margin}" if margin > 2 * tolerance else None
            return worst, step, NUM_STEPS if fault else step, fault
        if token != prompt["greedyTokenIds"][step]:
            # Both differ from the golden at a near tie, so its later margins do not apply.
            return worst, step + 1, step + 1, None
    return worst, NUM_STEPS, NUM_STEPS, None


def comparable_prompts(config, golden):
    window = window_of(config)
    return [p for p in golden["prompts"] if not window or len(p["promptTokenIds"]) + NUM_STEPS <= window]


def num_token_ids(directory):
    """Returns the number of ids that the tokenizer knows. The greedy tokens of transformers are among them."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    ids = list(vocab.values()) if isinstance(vocab, dict) else range(len(vocab))
    return 1 + max(*ids, *(token["id"] for token in tokenizer["added_tokens"]))


def judge(directory, golden, as_f32, engine_answers):
    """Returns one row of the table."""
    config = read_config(directory)
    tolerance = 1e-3 if as_f32 else TOLERANCE[golden["dtype"]]
    prompts = comparable_prompts(config, golden)
    allowed = num_token_ids(directory)
    row = {"case": golden["case"], "family": golden["family"], "weights": golden["dtype"], "ggufType": "f32" if as_f32 else golden["dtype"],
           "prompts": len(prompts), "worst": 0.0, "equal": 0, "comparable": 0, "engineEqual": 0, "engineComparable": 0, "faults": []}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.gguf"
        write_gguf(directory, path, golden.get("maxModelLen"), as_f32)
        model = Model(path, 1024, yarn_betas(config))
        try:
            for prompt in prompts:
                tokens, steps = model.greedy(prompt["promptTokenIds"], allowed)
                worst, equal, comparable, fault = compare(tokens, steps, prompt, prompt["greedyTokenIds"], tolerance)
                row["worst"] = max(row["worst"], worst)
                row["equal"] += equal
                row["comparable"] += comparable
                row["faults"] += [fault] if fault else []
                if engine_answers:
                    _, equal, comparable, fault = compare(tokens, steps, prompt, engine_answers[prompt["name"]], tolerance)
                    row["engineEqual"] += equal
                    row["engineComparable"] += comparable
                    row["faults"] += [f"engine: {fault}"] if fault else []
        finally:
            model.close()
    return row


def judge_files(directory):
    """Prints a line for each file of random_gguf.py. Returns the number of files with faults."""
    num_wrong = 0
    for case in sorted(path.parent for path in directory.glob("*/golden.json")):
        for kind, expected in {"f32": case / "golden.json", "values": directory / f"{case.name}.values.json"}.items():
            path = directory / f"{case.name}.{kind}.gguf"
            if not path.exists() or not expected.exists():
                continue
            # llama.cpp aborts the process on some configurations, such as hybrid models without an attention layer.
            process = FORK.Process(target=lambda: sys.exit(judge_file(path, case, json.loads(expected.read_text()))))
            process.start()
            process.join()
            if process.exitcode < 0:
                print(f"{path.name}: llama.cpp ends with signal {-process.exitcode}", flush=True)
            num_wrong += process.exitcode > 0
    return num_wrong


def judge_file(path, case, golden):
    """Returns 1 if tokens differ, else 0. It is no fault if llama.cpp does not load the file."""
    config = read_config(case)
    tolerance = max(TOLERANCE["f32"], 4 * golden.get("float32Cost", {}).get("worst", 0))
    try:
        model = Model(path, 1024, yarn_betas(config))
    except ValueError as error:
        print(f"{path.name}: {error}", flush=True)
        return 0
    worst, equal, comparable, faults = 0.0, 0, 0, []
    for prompt in comparable_prompts(config, golden):
        tokens, steps = model.greedy(prompt["promptTokenIds"], num_token_ids(case))
        difference, num_equal, num_comparable, fault = compare(tokens, steps, prompt, prompt["greedyTokenIds"], tolerance)
        worst, equal, comparable = max(worst, difference), equal + num_equal, comparable + num_comparable
        faults += [fault] if fault else []
    model.close()
    print(f"{path.name}: {equal} / {comparable} tokens equal, worst {worst:.1e}", *faults, sep="\n  ", flush=True)
    return 1 if faults else 0


def markdown(rows, skipped, source, has_engine):
    lines = [
        "# llama.cpp with the same weights", "",
        f"llama-cpp-python {llama_cpp.__version__}, built from source, runs the cases of `{source}`. `test/oracle/llama-cpp.py` writes them as GGUF. "
        f"Each prompt has {NUM_STEPS} greedy tokens. The KV cache is f32.", "",
        "- 'worst' is the largest difference of the top five log-probabilities from transformers in float32.",
        "- Steps are compared until the tokens differ. They may differ where the margin is at most twice the tolerance.",
        "- The tolerance is 1e-3. It is 1e-2 with f16 and 0.15 with bf16 GGUF weights, because llama.cpp also rounds the activations there.", "",
        f"| case | weights | GGUF | prompts | worst | tokens equal to transformers / comparable of all |{' tokens equal to the engine / comparable |' if has_engine else ''}",
        f"|---|---|---|---|---|---|{'---|' if has_engine else ''}",
    ]
    for r in rows:
        engine = f" {r['engineEqual']} / {r['engineComparable']} |" if has_engine else ""
        wrong = " **" + "; ".join(r["faults"]) + "**" if r["faults"] else ""
        lines.append(f"| {r['case']} | {r['weights']} | {r['ggufType']} | {r['prompts']} | {r['worst']:.1e} | {r['equal']} / {r['comparable']} of {r['prompts'] * NUM_STEPS} |{engine}{wrong}")
    total = [sum(r[key] for r in rows) for key in ("equal", "comparable")]
    engine = sum(r["engineEqual"] for r in rows), sum(r["engineComparable"] for r in rows)
    lines += ["", f"In total, {total[0]} of {total[1]} tokens are equal to transformers{f', {engine[0]} of {engine[1]} to the engine' if has_engine else ''}. "
              f"{sum(len(r['faults']) for r in rows)} tokens differ where there is no near tie.", "",
              "llama.cpp has no sliding window for these architectures. Cases with a window use only the prompts that fit in it together with their completion. Left out:", ""]
    lines += [f"- {name}: {reason}" for name, reason in skipped]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--engine", type=Path, help="answers of the engine, from compare.ts --json")
    parser.add_argument("--out", type=Path, help="write the table here too")
    parser.add_argument("--files", action="store_true", help="read the files of random_gguf.py")
    args = parser.parse_args()
    if args.files:
        sys.exit(1 if judge_files(args.directory) else 0)
    answers = {}
    for report in json.loads(args.engine.read_text()) if args.engine else []:
        answers[report["case"], report["mode"]] = {a["name"]: a["tokenIds"] for a in report["answers"]}
    rows, skipped = [], []
    for path in sorted(args.directory.glob("*/golden.json")):
        golden = json.loads(path.read_text())
        if "dtype" not in golden:
            continue
        config = read_config(path.parent)
        reason = why_not(config)
        if not reason and not comparable_prompts(config, golden):
            reason = f"its window of {window_of(config)} is shorter than any prompt with its completion"
        if reason:
            skipped.append((golden["case"], reason))
            continue
        for as_f32 in [True] if golden["dtype"] == "f32" else [True, False]:
            rows.append(judge(path.parent, golden, as_f32, answers.get((golden["case"], "f32" if as_f32 else "native"))))
            print(rows[-1], file=sys.stderr, flush=True)
    text = markdown(rows, skipped, args.directory, bool(answers))
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text)
    sys.exit(1 if any(r["faults"] for r in rows) else 0)


# Logs errors only. The callback must outlive the calls.
@llama_cpp.llama_log_callback
def log(level, text, user_data):
    if level >= 4:  # GGML_LOG_LEVEL_ERROR
        sys.stderr.buffer.write(text)


llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # which takes a debugger

if __name__ == "__main__":
    main()
