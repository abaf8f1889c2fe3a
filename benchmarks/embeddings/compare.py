"""Compares inputs per second with ONNX Runtime and OpenVINO, in turns, on the same CPU and with the same tokens.

  python compare.py [--threads 2] [--seconds 2] [--shapes minilm,bge-small] [--dtypes f32,bf16] [--package DIR]

Random weights of the shapes of all-MiniLM-L6-v2 and bge-small-en-v1.5. Needs torch, transformers, onnx, onnxruntime and openvino.
DIR is the folder of an installed package, such as node_modules/capstan; without it, the sources and the built addon are measured.
A figure is the median of three turns; a ratio above 1 means that the engine is faster than the best of the others.
ONNX Runtime has no bf16 on the CPU: it is compared in f32 only.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {"minilm": (384, 6, 12, 1536), "bge-small": (384, 12, 12, 1536)}
VOCAB = 30522


def write_model(shape, directory):
    hidden, layers, heads, inner = SHAPES[shape]
    config = transformers.BertConfig(vocab_size=VOCAB, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner)
    torch.manual_seed(0)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(directory)
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    tokenizer.save(str(directory / "tokenizer.json"))
    return model


class Mean(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def tokens_of(batch, length):
    rows, columns = np.arange(batch)[:, None], np.arange(length)[None, :]
    return (1000 + (rows * 131 + columns * 17) % 20000).astype(np.int64)


def rate_of(run, batch, seconds):
    run()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        run()
        count += batch
    return count / (time.perf_counter() - begin)


def onnx_runner(path, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda ids: session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]


def openvino_runner(model, threads, dtype):
    import openvino

    example = torch.from_numpy(tokens_of(2, 8))
    converted = openvino.convert_model(model, example_input=(example, torch.ones_like(example)))
    hint = {"f32": "f32", "bf16": "bf16"}[dtype]
    compiled = openvino.Core().compile_model(converted, "CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": hint})
    return lambda ids: compiled((ids, np.ones_like(ids)))[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--shapes", default="minilm,bge-small")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--batches", default="1,32,256")
    parser.add_argument("--lengths", default="32,256")
    parser.add_argument("--package", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{'shape':10} {'dtype':5} {'batch':>5} {'tokens':>6} {'ours':>10} {'OpenVINO':>10} {'ONNX RT':>10} {'ratio':>6}")
    for shape in args.shapes.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            mean = Mean(write_model(shape, directory))
            for dtype in args.dtypes.split(","):
                compare(mean, directory, shape, dtype, args)


def compare(mean, directory, shape, dtype, args):
    peers = {"OpenVINO": openvino_runner(mean, args.threads, dtype)}
    if dtype == "f32":
        path = directory / "model.onnx"
        example = torch.from_numpy(tokens_of(2, 8))
        axes = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
        torch.onnx.export(mean, (example, torch.ones_like(example)), str(path), input_names=["input_ids", "attention_mask"],
                          output_names=["embedding"], dynamic_axes=axes, opset_version=17, dynamo=False)
        peers["ONNX RT"] = onnx_runner(path, args.threads)
    package = [str(args.package.resolve())] if args.package else []
    ours = subprocess.Popen(["node", "-r", "./test/oracle/register-ts.cjs", "benchmarks/embeddings/ours.ts", str(directory), dtype, str(args.threads), *package],
                            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert ours.stdout.readline() == "ready\n"

    def run_ours(batch, length):
        ours.stdin.write(f"{batch} {length} {args.seconds}\n")
        ours.stdin.flush()
        return float(ours.stdout.readline())

    for batch in map(int, args.batches.split(",")):
        for length in map(int, args.lengths.split(",")):
            ids = tokens_of(batch, length)
            rates = {name: [] for name in ("ours", *peers)}
            for _ in range(3):
                rates["ours"].append(run_ours(batch, length))
                for name, run in peers.items():
                    rates[name].append(rate_of(lambda: run(ids), batch, args.seconds))
            median = {name: statistics.median(values) for name, values in rates.items()}
            best = max(median[name] for name in peers)
            cell = lambda name: f"{median[name]:10.1f}" if name in median else f"{'':10}"
            print(f"{shape:10} {dtype:5} {batch:5} {length:6} {cell('ours')} {cell('OpenVINO')} {cell('ONNX RT')} {median['ours'] / best:6.2f}", flush=True)
    ours.stdin.close()
    ours.wait()


if __name__ == "__main__":
    main()
