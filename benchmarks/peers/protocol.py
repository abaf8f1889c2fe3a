"""What every peer does: reads one JSON task per line, answers with one JSON line.

  {"op": "decode", "streams": 8, "context": 128, "tokens": 48}  ->  {"tokens_per_s": …}   new tokens of all streams per second, prompts not counted
  {"op": "prefill", "tokens": 512}                              ->  {"tokens_per_s": …}   prompt tokens until the first new token is there
"""

import json
import sys


def prompt(seed, count):
    """The same ids for every peer; different for every seed, so that no prefix cache helps."""
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
