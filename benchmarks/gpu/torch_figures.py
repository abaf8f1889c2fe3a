#!/usr/bin/env python3
"""Measures PyTorch at the shapes of gpu_kernels and gpu_steps: matmul, attention, and steps of transformers with random weights.
Prints JSON lines.

    torch_figures.py [--device cuda] [--tiny] [GROUP…]     GROUP: limits, matmul, attention or model (default: all)
"""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def measure(run, device, tiny, uses_graph=True):
    """Returns the median seconds of one run(i), by default of several in one CUDA graph: launching a small kernel from Python takes longer than running it."""
    if device == 'cpu':
        run(0)
        start = time.perf_counter()
        run(1)
        return time.perf_counter() - start
    for i in range(3):
        run(i)
    times = []
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    run(3)
    end.record()
    torch.cuda.synchronize()
    count = max(3, min(200, int(10 / max(begin.elapsed_time(end), 0.001)))) if not tiny else 1

    def repeat():
        for i in range(count):
            run(i)

    if uses_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            repeat()
        repeat = graph.replay
        repeat()
    for _ in range(7):
        begin.record()
        repeat()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / count)
    return statistics.median(times)


def report(name, seconds, flops=0.0, size=0.0, **more):
    print(json.dumps({'name': name, 'us': round(seconds * 1e6, 3), 'tflop_per_s': round(flops / seconds * 1e-12, 2), 'gb_per_s': round(size / seconds * 1e-9, 1), **more}), flush=True)


def matmul(name, rows, cols, tokens, args):
    copies = 1 if args.tiny else max(1, (400 << 20) // (rows * cols * 2))
    weights = [torch.randn(rows, cols, dtype=torch.bfloat16, device=args.device) * 0.02 for _ in range(copies)]
    acts = torch.randn(tokens, cols, dtype=torch.bfloat16, device=args.device)
    report(name, measure(lambda i: F.linear(acts, weights[i % copies]), args.device, args.tiny), 2.0 * rows * cols * tokens, rows * cols * 2)


def matmuls(args):
    layers = {'qkv': (2048, 1536), 'output': (1536, 1536), 'gate_up': (17920, 1536), 'down': (1536, 8960), 'head': (151936, 1536)}
    for name, (rows, cols) in layers.items():
        for tokens in [1, 9] if args.tiny else [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]:
            if rows < 100000 or tokens <= 256:
                matmul(f'gemm {name} x{tokens}', *((64, 64) if args.tiny else (rows, cols)), tokens, args)


KERNELS = {'flash': SDPBackend.FLASH_ATTENTION, 'cudnn': SDPBackend.CUDNN_ATTENTION, 'efficient': SDPBackend.EFFICIENT_ATTENTION, 'math': SDPBackend.MATH}


def attention(num_seqs, context, count, args):
    heads, kv_heads, dim = (4, 2, 32) if args.tiny else (12, 2, 128)
    size = num_seqs * kv_heads * context * dim * 4
    copies = 1 if args.tiny else max(1, (400 << 20) // size)
    # Contiguous instead of paged, which is the fastest case for PyTorch.
    keys = [torch.randn(num_seqs, kv_heads, context, dim, dtype=torch.bfloat16, device=args.device) for _ in range(copies)]
    values = [torch.randn_like(key) for key in keys]
    queries = torch.randn(num_seqs, heads, count, dim, dtype=torch.bfloat16, device=args.device)
    run = lambda i: F.scaled_dot_product_attention(queries, keys[i % copies], values[i % copies], is_causal=count > 1, enable_gqa=True)
    seen = num_seqs * (count * context - 0.5 * count * (count - 1))
    seconds = {}  # `math` only if no other kernel works
    for name, kernels in KERNELS.items():
        if name == 'math' and seconds:
            break
        try:
            with sdpa_kernel(kernels):
                seconds[name] = measure(run, args.device, args.tiny)
        except RuntimeError:  # not available for these shapes or this device
            pass
    best = min(seconds, key=seconds.get)
    report(f"attention {num_seqs}x{context} {'decode' if count == 1 else 'prefill'}", seconds[best], seen * heads * dim * 4, size, by=best, us_by={name: round(s * 1e6, 3) for name, s in seconds.items()})


def model_steps(args):
    """Measures transformers in eager mode with the default cache, as a user without an inference engine would run it."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    config = Qwen2Config(vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, tie_word_embeddings=True,
                         max_position_embeddings=32768)
    if args.tiny:
        config = Qwen2Config(vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    with torch.device(args.device):
        model = Qwen2ForCausalLM(config).to(torch.bfloat16).eval()
    with torch.inference_mode():
        for length in [70] if args.tiny else [1024, 8192]:
            ids = torch.randint(0, config.vocab_size, (1, length), device=args.device)
            report(f'prefill {length}', measure(lambda i: model(ids, logits_to_keep=1), args.device, True, False))
        generate(model, *((70, 4) if args.tiny else (1024, 128)), args)
        for num_seqs, context in [(2, 70)] if args.tiny else [(1, 1024), (8, 1024), (64, 1024), (256, 1024), (1, 8192), (8, 8192), (64, 8192), (256, 8192)]:
            try:
                decode(model, num_seqs, context, args)
            except torch.OutOfMemoryError:
                print(f'decode {num_seqs}x{context} does not fit in memory', file=sys.stderr)


def decode(model, num_seqs, context, args):
    ids = torch.randint(0, model.config.vocab_size, (1, context), device=args.device)
    cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(num_seqs)
    token = ids[:, :1].repeat(num_seqs, 1)
    times = []
    for _ in range(2 if args.tiny else 20):
        if args.device != 'cpu':
            torch.cuda.synchronize()
        start = time.perf_counter()
        answer = model(token, past_key_values=cache, use_cache=True)
        cache, token = answer.past_key_values, answer.logits[:, -1:].argmax(-1)
        token.cpu()
        times.append(time.perf_counter() - start)
    report(f'decode {num_seqs}x{context}', statistics.median(times))


def generate(model, length, count, args):
    """Measures the time per token of `generate` for one sequence, including the prefill. max_time bounds the run."""
    ids = torch.randint(0, model.config.vocab_size, (1, length), device=args.device)
    run = lambda count: model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count, max_time=10.0).shape[1] - length
    run(2)
    start = time.perf_counter()
    made = run(count)
    seconds = time.perf_counter() - start
    report(f'generate 1x{length}', seconds / made, tokens=made, tokens_per_s=round(made / seconds, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('groups', nargs='*', metavar='GROUP')
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--tiny', action='store_true')
    args = parser.parse_args()
    is_selected = lambda group: not args.groups or group in args.groups
    torch.manual_seed(1)
    if is_selected('limits'):
        size = 64 if args.tiny else 8192
        matmul('peak', size, size, size, args)
    if is_selected('matmul'):
        matmuls(args)
    if is_selected('attention'):
        for num_seqs, context in [(2, 70)] if args.tiny else [(1, 1024), (8, 1024), (64, 1024), (256, 1024), (1, 8192), (8, 8192), (64, 8192)]:
            attention(num_seqs, context, 1, args)
        for length in [70] if args.tiny else [1024, 8192]:
            attention(1, length, length, args)
    if is_selected('model'):
        model_steps(args)


main()
