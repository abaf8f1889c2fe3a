#!/usr/bin/env python3
"""The product over HTTP on a device: `capstan serve` with the embedded model, and, where PyTorch is, with random weights of the Qwen2.5-1.5B shape, whose answers are
compared with those of transformers. JSON lines; ends with 1 where they differ by more than is allowed.

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

PORT = 18090


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
        # An emulated device takes long to warm up for more.
        flags = ['--max-model-len', '512', '--max-num-batched-tokens', '64', '--max-num-seqs', '2'] if args.tiny else []
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([args.node, os.path.join(args.product, 'dist/server/main.js'), 'serve', model, '--device', device, '--port', str(PORT), *flags], stdout=self.log, stderr=self.log)

    def __enter__(self):
        begun = time.monotonic()
        while time.monotonic() - begun < 240:
            if self.process.poll() is not None:
                break
            if is_listening():
                try:
                    if request('/health', timeout=5).status == 200:
                        self.seconds = time.monotonic() - begun
                        return self
                except OSError:
                    pass
            time.sleep(0.2)
        self.__exit__()
        raise SystemExit('the server did not come up:\n' + self.text()[-2000:])

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
    """Milliseconds until the first event of a stream."""
    begun = time.perf_counter()
    answer = request('/v1/completions', {'model': model, 'prompt': prompt, 'max_tokens': 2, 'temperature': 0, 'stream': True, 'ignore_eos': True})
    answer.read(1)
    first = time.perf_counter() - begun
    answer.read()
    return first * 1e3


def model_name():
    return json.loads(request('/v1/models').read())['data'][0]['id']


def backend_name():
    return re.search(r'^capstan_model_info\{.*\bbackend="(\w+)"', request('/metrics').read().decode(), re.MULTILINE)[1]


def tell(name, **fields):
    print(json.dumps({'name': name, **fields}), flush=True)


# Of the random weights: the widths, depth and heads of Qwen2.5-1.5B, or little.
SHAPES = {
    '1.5B': {'hidden_size': 1536, 'intermediate_size': 8960, 'num_hidden_layers': 28, 'num_attention_heads': 12, 'num_key_value_heads': 2, 'vocab_size': 151936},
    'tiny': {'hidden_size': 256, 'intermediate_size': 512, 'num_hidden_layers': 4, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'vocab_size': 2048},
}


def random_model(folder, shape):
    """Random weights with the embedded model's tokenizer: ids beyond it are never drawn. Their scales are those of test/oracle/golden.py, as flat logits and even
    attention would hide faults."""
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
    """Times, and the answers that are to be compared: of prompts one after the other, and of many at a time, which go through other products, attention and graphs; again when they are cached."""
    with Server(args, folder, args.device) as server:
        name = model_name()
        tell(f'start of the {shape} shape', seconds=round(server.seconds, 2))
        answers = {'alone': [answer_of(name, prompt_of(length, 9), prompt_logprobs=0) for length in args.lengths]}
        for count in (6,) if args.tiny else (8, 96):
            prompts = [prompt_of(70 + i % 60, 1000 * count + i) for i in range(count)]  # a block of the KV cache, and some
            with ThreadPoolExecutor(count) as pool:
                for state in ('', ', cached'):
                    answers[f'{count} at a time{state}'] = list(pool.map(lambda prompt: answer_of(name, prompt), prompts))
        for length in (64, 128) if args.tiny else (1024, 8192):
            times = {'cold': [], 'cached': []}
            for i in range(5):
                prompt = prompt_of(length, length + i)  # begins as none before it does
                times['cold'].append(first_token_ms(name, prompt))
                times['cached'].append(first_token_ms(name, prompt))
            for kind, values in times.items():
                tell(f'first token {length} {kind}', ms=round(statistics.median(values), 2))
        begun = time.perf_counter()
        length, count = (64, 16) if args.tiny else (1024, 256)
        usage = complete([7] * length, count, model=name)['usage']
        tell(f'{count} tokens after {length}', tokens_per_s=round(usage['completion_tokens'] / (time.perf_counter() - begun), 1))
        return answers


def answer_of(model, prompt, **more):
    """What is compared of a greedy answer: its tokens, the likeliest of each step, and, where asked for, the log-probability of each token of the prompt but the first."""
    body = complete(prompt, 16, model=model, logprobs=2 * NUM_TOP, return_token_ids=True, return_tokens_as_token_ids=True, **more)
    choice = body['choices'][0]
    top = [{int(word.removeprefix('token_id:')): logprob for word, logprob in step.items()} for step in choice['logprobs']['top_logprobs']]
    of_prompt = [entry[str(token)]['logprob'] for token, entry in zip(prompt[1:], choice['prompt_logprobs'][1:], strict=True)] if 'prompt_logprobs' in more else None
    return {'prompt': prompt, 'tokens': choice['token_ids'], 'top': top, 'of_prompt': of_prompt}


# Of bf16, by contract 4: differences of log-probabilities to transformers in float32.
NUM_TOP = 5
WORST, MEAN = 0.15, 0.02


class Differences:
    """Our differences to the truth, and of the same figures those of transformers in bf16. Allowed is the contract's, or twice the latter where that is more, as in
    test/oracle."""

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
                # The negations also catch NaN.
                'passed': all(value <= self.worst_allowed for value in self.ours) and mean <= mean_allowed}


def first_position(answer):
    return len(answer['prompt']) - 1 if answer['of_prompt'] is None else 0


def logprobs_by_transformers(folder, dtype, answers):
    """Of each answer in one pass: (positions, vocab_size), what follows each position of its prompt, or only the last, and of its tokens."""
    import torch
    from transformers import AutoModelForCausalLM
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    with torch.inference_mode():
        for answer in answers:
            ids = torch.tensor([answer['prompt'] + answer['tokens'][:-1]], device=device)
            yield torch.log_softmax(model(ids).logits[0, first_position(answer):].float(), -1).cpu()


def compare_with_transformers(folder, shape, answers):
    """Of prompts their own log-probabilities; of each step, after the tokens that we chose, the likeliest five's, and that none is likelier than our choice by more than
    differences explain. False where more differs than is allowed."""
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
                    # Not among ours: then it is at most as likely as the last of them.
                    steps.add(wanted, top[id] if id in top else min(wanted, *top.values()), rounded[position, id].item())
                margins.append((truth[position, :num_ids].max() - truth[position, token]).item())
        of_prompts, of_steps = prompts.figures() if prompts.ours else None, steps.figures()
        passed = (of_prompts is None or of_prompts['passed']) and of_steps['passed'] and all(margin <= 2 * steps.worst_allowed for margin in margins)
        tell(f'{shape} shape to transformers in f32, {kind}', of_prompts=of_prompts, of_steps=of_steps, tokens=len(margins), tokens_equal=margins.count(0.0), worst_margin=round(max(margins), 4), passed=passed)
        all_passed = all_passed and passed
    return all_passed


def answer_of_demo(args, device):
    """Of the embedded model, which is sure of every token of it."""
    with Server(args, 'demo', device) as server:
        if backend_name() != device.split(':')[0]:
            raise SystemExit(f'expected the backend of {device}, got {backend_name()}')
        answer = ask('/v1/chat/completions', {'model': model_name(), 'messages': [{'role': 'user', 'content': 'What is Capstan?'}], 'max_tokens': 12, 'temperature': 0})
        text = answer['choices'][0]['message']['content']
        tell(f'embedded model on {device}', seconds=round(server.seconds, 2), text=text, tokens=answer['usage']['completion_tokens'])
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
        raise SystemExit(f'expected the answer of the CPU, got {answers}')
    try:
        import torch  # noqa: F401
    except ImportError:
        print('there is no PyTorch to make random weights with', file=sys.stderr)
        return
    shape = 'tiny' if args.tiny else '1.5B'
    args.lengths = (5, 70, 300) if args.tiny else (5, 300, 2000)
    with tempfile.TemporaryDirectory() as folder:
        random_model(folder, shape)
        answers = measure_random(args, folder, shape)
        if not compare_with_transformers(folder, shape, answers):
            raise SystemExit('answers differ from those of transformers by more than is allowed')


main()
