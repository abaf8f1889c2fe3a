"""Compares the tokens that engines expect with those of transformers in f32, and writes a table.

  python compare.py --reference FOLDER [--text FILE --ids FILE] [--tokens 50000] [--window 512] [--out FILE.md] [--title TEXT]
      [--save FILE.npz] "name=command" …        (torch, transformers, numpy)

Each window of the text is read by transformers and by every engine (protocol.py). Per token:
- KL is the divergence of an engine's distribution from that of transformers, in nats. The tokens that are not among the 1,000
  that the engine finds most likely count as one, for every engine alike: what that leaves out is far below the differences.
- the perplexity is exp of the mean of -log p(token).
The files are written after every window, so that a long run can be stopped.
"""

import argparse
import datetime
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from protocol import read_rows

HERE = Path(__file__).resolve().parent


class Engine:
    def __init__(self, name, command):
        self.name, self.kl, self.logprobs, self.num_same = name, [], [], 0
        self.process = subprocess.Popen(shlex.split(command), cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for line in self.process.stdout:
            if line.startswith(b"{"):
                self.about = json.loads(line)
                return
        raise SystemExit(f"{name} has ended: {command}")

    def ask(self, ids):
        self.process.stdin.write(json.dumps(ids).encode() + b"\n")
        self.process.stdin.flush()

    def compare(self, reference):
        """reference: log-probabilities (rows, vocabulary) in float64."""
        logprobs, tops = read_rows(self.process.stdout, len(reference))
        self.logprobs.append(logprobs)
        for row, (ids, theirs) in zip(reference, tops):
            self.kl.append(divergence(row, ids, theirs))
            self.num_same += int(ids[theirs.argmax()] == row.argmax())

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)


def divergence(reference, ids, logprobs):
    ours = reference[ids]
    p = np.exp(ours)
    kl = float((p * (ours - logprobs)).sum())
    rest, their_rest = 1 - float(p.sum()), 1 - float(np.exp(logprobs).sum())
    if len(ids) == len(reference) or rest <= 0 or their_rest <= 0:
        return kl
    return kl + rest * math.log(rest / their_rest)


def windows_of(args):
    """Returns lists of token ids. A file of chats has one window per chat, as the model's template writes it."""
    if args.text.suffix == ".jsonl":
        chats = (json.loads(line) for line in args.text.read_text().splitlines())
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.reference)
        plain = [chat for chat in chats if not chat["tools"] and isinstance(chat["expected"], str)]
        texts = ([*chat["messages"], {"role": "assistant", "content": chat["expected"]}] for chat in plain)
        windows = [list(tokenizer.apply_chat_template(messages, return_dict=False))[: args.window] for messages in texts]
    else:
        ids = json.loads(args.ids.read_text())
        windows = [ids[begin : begin + args.window] for begin in range(0, len(ids), args.window)]
    taken, total = [], 0
    for window in windows:
        if total >= args.tokens:
            break
        if len(window) > 1:
            taken.append(window)
            total += len(window) - 1
    return taken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--text", type=Path, default=HERE / "text.txt")
    parser.add_argument("--ids", type=Path, help="the token ids of the text (llama_ids.py), unless it is a file of chats")
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--title", default="Quality of quantized weights")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", type=Path, help="file for the KL of every token, for paired tests")
    parser.add_argument("engines", nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("QUALITY_THREADS", "2")))
    model = transformers.AutoModelForCausalLM.from_pretrained(args.reference, dtype=torch.float32).eval()
    engines = [Engine(*item.split("=", 1)) for item in args.engines]
    windows, own = windows_of(args), []
    for number, ids in enumerate(windows):
        for engine in engines:
            engine.ask(ids)
        with torch.inference_mode():
            reference = model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1).numpy()
        own.append(reference[np.arange(len(ids) - 1), ids[1:]])
        for engine in engines:
            engine.compare(reference)
        print(f"window {number + 1} of {len(windows)}: " + ", ".join(f"{e.name} {np.mean(e.kl):.5f}" for e in engines), file=sys.stderr, flush=True)
        if args.out:
            args.out.write_text(table(args, engines, np.concatenate(own)))
        if args.save:
            np.savez(args.save, **{engine.name: np.array(engine.kl) for engine in engines})
    print(table(args, engines, np.concatenate(own)))
    for engine in engines:
        engine.close()


def table(args, engines, own):
    perplexity = lambda logprobs: math.exp(-float(np.mean(logprobs)))
    lines = [f"# {args.title}", "", f"{len(own):,} tokens of `{args.text.name}` in windows of {args.window}. Measured on {datetime.date.today()}.", "",
             "| weights | bits per weight | KL to transformers in f32 | ± | perplexity | same first choice |", "|---|---|---|---|---|---|",
             f"| the reference in f32 | 32 | 0 | | {perplexity(own):.3f} | 100 % |"]
    for engine in engines:
        kl = np.array(engine.kl)
        lines.append(f"| {engine.name} | {engine.about['bits']:.2f} | {kl.mean():.5f} | {kl.std() / math.sqrt(len(kl)):.5f} "
                     f"| {perplexity(np.concatenate(engine.logprobs)):.3f} | {100 * engine.num_same / len(kl):.1f} % |")
    return "\n".join([*lines, "", *(f"- {engine.name}: {engine.about['engine']}" for engine in engines)]) + "\n"


if __name__ == "__main__":
    main()
