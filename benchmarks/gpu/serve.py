#!/usr/bin/env python3
"""Tests the product over HTTP on a device: `capstan serve` with the embedded model and, if PyTorch is installed, with random weights of
the Qwen2.5-1.5B shape, whose answers are compared with transformers. Prints JSON lines, and exits with 1 if the differences exceed the limits.

    serve.py --node NODE [--product FOLDER] [--device cuda] [--tiny]
"""
import argparse
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


PORT = free_port()


def request(path, body=None, timeout=120):
    connection = http.client.HTTPConnection('127.0.0.1', PORT, timeout=timeout)
    connection.request('POST' if body else 'GET', path, json.dumps(body) if body else None, {'content-type': 'application/json'})
    return connection.getresponse()


def is_listening():
    try:
        with socket.create_connection(('127.0.0.1', PORT), 1):
            return True
    except OSError:
        return False


class Server:
    def __init__(self, args, model, device):
        # An emulated device warms up slowly for larger limits.
        flags = ['--max-model-len', '512', '--max-num-batched-tokens', '64', '--max-num-seqs', '2'] if args.tiny else []
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([args.node, os.path.join(args.product, 'dist/server/main.js'), 'serve', model, '--device', device, '--port', str(PORT), *flags], stdout=self.log, stderr=self.log)

    def __enter__(self):
        start = time.monotonic()
        while time.monotonic() - start < 240:
            if self.process.poll() is not None:
                break
            if is_listening():
                try:
                    if request('/health', timeout=5).status == 200:
                        self.seconds = time.monotonic() - start
                        return self
                except OSError:
                    pass
            time.sleep(0.2)
        self.__exit__()
        raise SystemExit('the server did not start:\n' + self.text()[-2000:])

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors='replace')


def ask(path, body):
    answer = request(path, body)
    text = answer.read()
    if answer.status != 200:
        raise SystemExit(f'HTTP {answer.status}: {text[:300]!r}')
    return json.loads(text)


def complete(prompt, max_tokens, **more):
    return ask('/v1/completions', {'prompt': prompt, 'max_tokens': max_tokens, 'temperature': 0, 'ignore_eos': True, **more})


def first_token_ms(model, prompt):
    """Returns the milliseconds until the first event of the SSE response."""
    start = time.perf_counter()
    answer = request('/v1/completions', {'model': model, 'prompt': prompt, 'max_tokens': 2, 'temperature': 0, 'stream': True, 'ignore_eos': True})
    answer.read(1)
    first = time.perf_counter() - start
    answer.read()
    return first * 1e3


def model_name():
    return json.loads(request('/v1/models').read())['data'][0]['id']


def backend_name():
    return re.search(r'^capstan_model_info\{.*\bbackend="(\w+)"', request('/metrics').read().decode(), re.MULTILINE)[1]


def report(name, **fields):
    print(json.dumps({'name': name, **fields}), flush=True)


# The shapes of the random models: Qwen2.5-1.5B, or tiny.
SHAPES = {
    '1.5B': {'hidden_size': 1536, 'intermediate_size': 8960, 'num_hidden_layers': 28, 'num_attention_heads': 12, 'num_key_value_heads': 2, 'vocab_size': 151936},
    'tiny': {'hidden_size': 256, 'intermediate_size': 512, 'num_hidden_layers': 4, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'vocab_size': 2048},
}


def random_model(folder, shape):
    """Writes a model with random weights and the embedded model's tokenizer, whose ids are the only ones sampled. The scales are
    those of test/oracle/golden.py, because flat logits and uniform attention would hide faults."""
    import torch
    from safetensors.torch import save_file
    for file in ('tokenizer.json', 'tokenizer_config.json'):
        shutil.copy(os.path.join('models/demo', file), folder)
    config = {**SHAPES[shape], 'architectures': ['Qwen2ForCausalLM'], 'model_type': 'qwen2', 'hidden_act': 'silu', 'max_position_embeddings': 32768, 'rms_norm_eps': 1e-6, 'rope_theta': 1e6,
              'tie_word_embeddings': True, 'torch_dtype': 'bfloat16', 'eos_token_id': 2, 'bos_token_id': 1, 'use_sliding_window': False}
    with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as stream:
        json.dump(config, stream)
    torch.manual_seed(1)
    hidden, inner, kv_size = config['hidden_size'], config['intermediate_size'], config['hidden_size'] // config['num_attention_heads'] * config['num_key_value_heads']
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    weight = lambda rows, cols, scale=1.3: (torch.randn(rows, cols, device=device) * scale / cols ** 0.5).to(torch.bfloat16).cpu()
    bias = lambda size: (torch.randn(size) * 0.3).to(torch.bfloat16)
    norm = lambda: (1 + torch.randn(hidden) * 0.25).to(torch.bfloat16)
    tensors = {'model.embed_tokens.weight': weight(config['vocab_size'], hidden, 2), 'model.norm.weight': norm()}
    for layer in range(config['num_hidden_layers']):
        prefix = f'model.layers.{layer}.'
        tensors |= {prefix + 'input_layernorm.weight': norm(), prefix + 'post_attention_layernorm.weight': norm()}
        for name, rows in (('q', hidden), ('k', kv_size), ('v', kv_size)):
            tensors |= {prefix + f'self_attn.{name}_proj.weight': weight(rows, hidden), prefix + f'self_attn.{name}_proj.bias': bias(rows)}
        tensors |= {prefix + 'self_attn.o_proj.weight': weight(hidden, hidden), prefix + 'mlp.gate_proj.weight': weight(inner, hidden), prefix + 'mlp.up_proj.weight': weight(inner, hidden),
                    prefix + 'mlp.down_proj.weight': weight(hidden, inner)}
    save_file(tensors, os.path.join(folder, 'model.safetensors'))
    torch.cuda.empty_cache()


def prompt_of(length, seed):
    return [5 + (seed * 131 + k * k) % 400 for k in range(length)]


def measure_random(args, folder, shape):
    """Measures times, and returns the answers to compare: of prompts one at a time, of many prompts at once (which use other kernels
    and graphs), and of the same prompts from the prefix cache."""
    with Server(args, folder, args.device) as server:
        name = model_name()
        report(f'start of the {shape} shape', seconds=round(server.seconds, 2))
        answers = {'alone': [answer_of(name, prompt_of(length, 9), prompt_logprobs=0) for length in args.lengths]}
        for count in (6,) if args.tiny else (8, 96):
            prompts = [prompt_of(70 + i % 60, 1000 * count + i) for i in range(count)]  # more than a block of the KV cache
            with ThreadPoolExecutor(count) as pool:
                for state in ('', ', cached'):
                    answers[f'{count} at a time{state}'] = list(pool.map(lambda prompt: answer_of(name, prompt), prompts))
        for length in (64, 128) if args.tiny else (1024, 8192):
            times = {'cold': [], 'cached': []}
            for i in range(5):
                prompt = prompt_of(length, length + i)  # shares no prefix with earlier prompts
                times['cold'].append(first_token_ms(name, prompt))
                times['cached'].append(first_token_ms(name, prompt))
            for kind, values in times.items():
                report(f'first token {length} {kind}', ms=round(statistics.median(values), 2))
        start = time.perf_counter()
        length, count = (64, 16) if args.tiny else (1024, 256)
        usage = complete([7] * length, count, model=name)['usage']
        report(f'{count} tokens after {length}', tokens_per_s=round(usage['completion_tokens'] / (time.perf_counter() - start), 1))
        return answers


def answer_of(model, prompt, **more):
    """Returns a greedy answer: its tokens, the most likely tokens of each step and, if requested, the log-probabilities of the prompt
    tokens after the first."""
    body = complete(prompt, 16, model=model, logprobs=2 * NUM_TOP, return_token_ids=True, return_tokens_as_token_ids=True, **more)
    choice = body['choices'][0]
    top = [{int(word.removeprefix('token_id:')): logprob for word, logprob in step.items()} for step in choice['logprobs']['top_logprobs']]
    of_prompt = [entry[str(token)]['logprob'] for token, entry in zip(prompt[1:], choice['prompt_logprobs'][1:], strict=True)] if 'prompt_logprobs' in more else None
    return {'prompt': prompt, 'tokens': choice['token_ids'], 'top': top, 'of_prompt': of_prompt}


# Limits for bf16 by contract 4: differences of log-probabilities to transformers in float32.
NUM_TOP = 5
WORST, MEAN = 0.15, 0.02


class Differences:
    """Differences of our results, and of transformers in bf16, to transformers in float32. The limit is the contract's, or twice the
    difference of transformers in bf16 if that is larger, as in test/oracle."""

    def __init__(self):
        self.ours, self.theirs = [], []

    def add(self, truth, ours, theirs):
        self.ours.append(abs(ours - truth))
        self.theirs.append(abs(theirs - truth))

    @property
    def worst_allowed(self):
        return max(WORST, 2 * max(self.theirs))

    def figures(self):
        mean, mean_of_theirs = statistics.fmean(self.ours), statistics.fmean(self.theirs)
        mean_allowed = max(MEAN, 2 * mean_of_theirs)
        return {'count': len(self.ours), 'worst': round(max(self.ours), 4), 'mean': round(mean, 5), 'transformers_worst': round(max(self.theirs), 4), 'transformers_mean': round(mean_of_theirs, 5),
                # NaN fails these comparisons.
                'passed': all(value <= self.worst_allowed for value in self.ours) and mean <= mean_allowed}


def first_position(answer):
    return len(answer['prompt']) - 1 if answer['of_prompt'] is None else 0


def logprobs_by_transformers(folder, dtype, answers):
    """Yields the log-probabilities (positions, vocab_size) of each answer, computed in one pass: after each position of the prompt (or
    only its last), and after each completion token."""
    import torch
    from transformers import AutoModelForCausalLM
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    with torch.inference_mode():
        for answer in answers:
            ids = torch.tensor([answer['prompt'] + answer['tokens'][:-1]], device=device)
            yield torch.log_softmax(model(ids).logits[0, first_position(answer):].float(), -1).cpu()


def compare_with_transformers(folder, shape, answers):
    """Compares the log-probabilities of the prompts and, for each step after our tokens, of the five most likely tokens. Also checks that
    no token is more likely than ours by more than the allowed difference. Returns False if a limit is exceeded."""
    import torch
    with open(os.path.join(folder, 'tokenizer.json'), encoding='utf-8') as stream:
        tokenizer = json.load(stream)
    num_ids = 1 + max([*tokenizer['model']['vocab'].values(), *(token['id'] for token in tokenizer['added_tokens'])])
    every = [answer for of_kind in answers.values() for answer in of_kind]
    truths = list(logprobs_by_transformers(folder, torch.float32, every))
    judged = zip(every, truths, logprobs_by_transformers(folder, torch.bfloat16, every))
    all_passed = True
    for kind, of_kind in answers.items():
        prompts, steps, margins = Differences(), Differences(), []
        for answer, truth, rounded in itertools.islice(judged, len(of_kind)):
            for position, (token, logprob) in enumerate(zip(answer['prompt'][1:], answer['of_prompt'] or [])):
                prompts.add(truth[position, token].item(), logprob, rounded[position, token].item())
            for position, (token, top) in enumerate(zip(answer['tokens'], answer['top'], strict=True), len(truth) - len(answer['tokens'])):
                for id in truth[position].topk(NUM_TOP).indices.tolist():
                    wanted = truth[position, id].item()
                    # A token missing from our list is at most as likely as its last entry.
                    steps.add(wanted, top[id] if id in top else min(wanted, *top.values()), rounded[position, id].item())
                margins.append((truth[position, :num_ids].max() - truth[position, token]).item())
        of_prompts, of_steps = prompts.figures() if prompts.ours else None, steps.figures()
        passed = (of_prompts is None or of_prompts['passed']) and of_steps['passed'] and all(margin <= 2 * steps.worst_allowed for margin in margins)
        report(f'{shape} shape to transformers in f32, {kind}', of_prompts=of_prompts, of_steps=of_steps, tokens=len(margins), tokens_equal=margins.count(0.0), worst_margin=round(max(margins), 4), passed=passed)
        all_passed = all_passed and passed
    return all_passed


def answer_of_demo(args, device):
    """Returns the embedded model's answer to a question with large margins at every token."""
    with Server(args, 'demo', device) as server:
        if backend_name() != device.split(':')[0]:
            raise SystemExit(f'expected the {device} backend, got {backend_name()}')
        answer = ask('/v1/chat/completions', {'model': model_name(), 'messages': [{'role': 'user', 'content': 'What is Capstan?'}], 'max_tokens': 12, 'temperature': 0})
        text = answer['choices'][0]['message']['content']
        report(f'embedded model on {device}', seconds=round(server.seconds, 2), text=text, tokens=answer['usage']['completion_tokens'])
        return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--node', required=True)
    parser.add_argument('--product', default='.')
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--tiny', action='store_true')
    args = parser.parse_args()
    answers = {device: answer_of_demo(args, device) for device in ('cpu', args.device)}
    if answers[args.device] != answers['cpu']:
        raise SystemExit(f'expected the same answer as on the CPU, got {answers}')
    try:
        import torch  # noqa: F401
    except ImportError:
        print('skipped the random model: PyTorch is not installed', file=sys.stderr)
        return
    shape = 'tiny' if args.tiny else '1.5B'
    args.lengths = (5, 70, 300) if args.tiny else (5, 300, 2000)
    with tempfile.TemporaryDirectory() as folder:
        random_model(folder, shape)
        answers = measure_random(args, folder, shape)
        if not compare_with_transformers(folder, shape, answers):
            raise SystemExit('the answers differ from transformers by more than the limit')


main()
