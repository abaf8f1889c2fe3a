"""The protocol of a peer: it reads one JSON task per line and writes one JSON result per line.

  {"op": "decode", "streams": 8, "context": 128, "tokens": 48}  ->  {"tokens_per_s": …}   new tokens per second of all streams, without the prompts
  {"op": "prefill", "tokens": 512}                              ->  {"tokens_per_s": …}   prompt tokens per second until the first new token
"""

import json
import os
import sys
import time

NUM_THREADS = int(os.environ.get("PEER_THREADS", "2"))
# CPU time of the peer instead of wall time, for one thread on a shared machine.
clock = time.process_time if os.environ.get("PEER_CLOCK") == "cpu" else time.perf_counter


def prompt(seed, count):
    """Returns the same ids in every peer. They differ by seed, so that prefix caches do not help."""
    state, ids = seed * 2654435761 % 2**32, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        ids.append(1000 + (state >> 8) % 140000)
    return ids


def serve(name, decode, prefill):
    print(json.dumps({"peer": name}), flush=True)
    for seed, line in enumerate(sys.stdin):
        task = json.loads(line)
        if task["op"] == "decode":
            speed = decode(1000 * (seed + 1), task["streams"], task["context"], task["tokens"])
        else:
            speed = prefill(1000 * (seed + 1), task["tokens"])
        print(json.dumps({"tokens_per_s": speed}), flush=True)
