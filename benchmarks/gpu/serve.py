#!/usr/bin/env python3
"""The product over HTTP on a device: `capstan serve` with the embedded model, and, where PyTorch is, with random weights of the Qwen2.5-1.5B shape. JSON lines.

    serve.py --node NODE [--product FOLDER] [--device cuda] [--tiny]
"""
import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

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
    def __init__(self, args, model):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([args.node, os.path.join(args.product, 'dist/server/main.js'), 'serve', model, '--device', args.device, '--port', str(PORT)], stdout=self.log, stderr=self.log)

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


def complete(prompt, max_tokens, **more):
    answer = request('/v1/completions', {'model': more.pop('model'), 'prompt': prompt, 'max_tokens': max_tokens, 'temperature': 0, 'ignore_eos': True, **more})
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f'HTTP {answer.status}: {body[:300]!r}')
    return json.loads(body)


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


def tell(name, **fields):
    print(json.dumps({'name': name, **fields}), flush=True)


def random_model(folder):
    """Random weights with the embedded model's tokenizer: ids beyond it are never drawn."""
    import torch
    from safetensors.torch import save_file
    for file in ('tokenizer.json', 'tokenizer_config.json'):
        shutil.copy(os.path.join('models/demo', file), folder)
    hidden, inner, layers, vocab = 1536, 8960, 28, 151936
    config = {'architectures': ['Qwen2ForCausalLM'], 'model_type': 'qwen2', 'hidden_act': 'silu', 'hidden_size': hidden, 'intermediate_size': inner, 'max_position_embeddings': 32768,
              'num_attention_heads': 12, 'num_hidden_layers': layers, 'num_key_value_heads': 2, 'rms_norm_eps': 1e-6, 'rope_theta': 1e6, 'tie_word_embeddings': True, 'vocab_size': vocab,
              'torch_dtype': 'bfloat16', 'eos_token_id': 2, 'bos_token_id': 1, 'use_sliding_window': False}
    with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as stream:
        json.dump(config, stream)
    torch.manual_seed(1)
    weight = lambda *shape: (torch.randn(*shape) * 0.02).to(torch.bfloat16)
    ones = lambda size: torch.ones(size, dtype=torch.bfloat16)
    tensors = {'model.embed_tokens.weight': weight(vocab, hidden), 'model.norm.weight': ones(hidden)}
    for layer in range(layers):
        prefix = f'model.layers.{layer}.'
        tensors |= {prefix + 'input_layernorm.weight': ones(hidden), prefix + 'post_attention_layernorm.weight': ones(hidden)}
        for name, rows in (('q', hidden), ('k', 256), ('v', 256)):
            tensors |= {prefix + f'self_attn.{name}_proj.weight': weight(rows, hidden), prefix + f'self_attn.{name}_proj.bias': weight(rows)}
        tensors |= {prefix + 'self_attn.o_proj.weight': weight(hidden, hidden), prefix + 'mlp.gate_proj.weight': weight(inner, hidden), prefix + 'mlp.up_proj.weight': weight(inner, hidden),
                    prefix + 'mlp.down_proj.weight': weight(hidden, inner)}
    save_file(tensors, os.path.join(folder, 'model.safetensors'))


def measure_random(args, folder):
    with Server(args, folder) as server:
        name = model_name()
        tell('start of the 1.5B shape', seconds=round(server.seconds, 2))
        for length in (1024, 8192):
            times = {'cold': [], 'cached': []}
            for i in range(5):
                prompt = [5 + (i * 131 + k * k) % 400 for k in range(length)]
                times['cold'].append(first_token_ms(name, prompt))
                times['cached'].append(first_token_ms(name, prompt))
            for kind, values in times.items():
                tell(f'first token {length} {kind}', ms=round(statistics.median(values), 2))
        begun = time.perf_counter()
        usage = complete([7] * 1024, 256, model=name)['usage']
        tell('256 tokens after 1024', tokens_per_s=round(usage['completion_tokens'] / (time.perf_counter() - begun), 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--node', required=True)
    parser.add_argument('--product', default='.')
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--tiny', action='store_true')
    args = parser.parse_args()
    with Server(args, 'demo') as server:
        name = model_name()
        answer = complete('The capital', 8, model=name)
        tell('embedded model', seconds=round(server.seconds, 2), text=answer['choices'][0]['text'], tokens=answer['usage']['completion_tokens'])
        if answer['usage']['completion_tokens'] != 8:
            raise SystemExit('expected 8 tokens')
    if args.tiny:
        return
    try:
        import torch  # noqa: F401
    except ImportError:
        print('there is no PyTorch to make random weights with', file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        random_model(folder)
        measure_random(args, folder)


main()
