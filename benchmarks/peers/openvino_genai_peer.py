"""OpenVINO GenAI with continuous batching and bf16 inference.   python openvino_genai_peer.py DIR"""

import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import NUM_THREADS, clock, prompt, serve

PROPERTIES = {"INFERENCE_NUM_THREADS": NUM_THREADS, "ENABLE_CPU_PINNING": True, "INFERENCE_PRECISION_HINT": "bf16"}


def main():
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    pipe = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", PROPERTIES)
    num_requests = 0

    def add(seed, count, tokens):
        nonlocal num_requests
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos, config.do_sample = True, False
        num_requests += 1
        return pipe.add_request(num_requests, ov.Tensor(np.array([prompt(seed, count)], dtype=np.int64)), config)

    def drain():
        while pipe.has_non_finished_requests():
            pipe.step()

    def decode(seed, streams, start, tokens):
        # More tokens than are timed: the first ones come with the prompts, and all streams must run until the end.
        handles = [add(seed + s, start, tokens + 2 * streams + 2) for s in range(streams)]
        for _ in range((streams * start + 511) // 512 + 1):
            pipe.step()
        begin = clock()
        for _ in range(tokens):
            pipe.step()
        seconds = clock() - begin
        drain()
        del handles
        return streams * tokens / seconds

    def prefill(seed, tokens):
        begin = clock()
        handle = add(seed, tokens, 1)
        drain()
        seconds = clock() - begin
        del handle
        return tokens / seconds

    serve(f"OpenVINO GenAI {version('openvino-genai')}, {Path(sys.argv[1]).name}, bf16 inference", decode, prefill)


if __name__ == "__main__":
    main()
