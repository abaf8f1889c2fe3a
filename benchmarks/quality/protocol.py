"""The protocol of an engine: it writes one JSON line {"engine": title, "bits": bits per weight}, then reads one JSON array of
token ids per line and answers with bytes, little endian. For each id but the first one: the log-probability of the id (f32),
then those of the most likely tokens: their number (i32), their ids (i32) and their log-probabilities (f32)."""

import json
import sys

import numpy as np

NUM_TOP = 1000


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def write_row(out, logprobs, token_id):
    count = min(NUM_TOP, logprobs.size)
    top = np.argpartition(-logprobs, count - 1)[:count].astype(np.int32)
    out.write(np.float32(logprobs[token_id]).tobytes() + np.int32(count).tobytes() + top.tobytes() + logprobs[top].astype(np.float32).tobytes())


def serve(title, bits, logits_of):
    """logits_of(ids) returns (ids, vocabulary)."""
    out = sys.stdout.buffer
    out.write(json.dumps({"engine": title, "bits": bits}).encode() + b"\n")
    out.flush()
    for line in sys.stdin:
        ids = json.loads(line)
        logits = logits_of(ids)
        for i in range(len(ids) - 1):
            write_row(out, log_softmax(logits[i]), ids[i + 1])
        out.flush()


def read_rows(stream, count):
    """Returns the log-probabilities of the tokens, and per token the ids and log-probabilities of the most likely ones."""
    def read(size):
        data = stream.read(size)
        if len(data) != size:
            raise SystemExit("an engine has ended")
        return data

    logprobs, tops = [], []
    for _ in range(count):
        logprobs.append(np.frombuffer(read(4), np.float32)[0])
        number = int(np.frombuffer(read(4), np.int32)[0])
        ids = np.frombuffer(read(4 * number), np.int32)
        tops.append((ids, np.frombuffer(read(4 * number), np.float32).astype(np.float64)))
    return np.array(logprobs, np.float64), tops
