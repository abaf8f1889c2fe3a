"""llama.cpp through its C API with a pinned thread pool.   python llama_peer.py FILE.gguf"""

import ctypes
import sys
from importlib.metadata import version
from pathlib import Path

import llama_cpp
import numpy as np
from protocol import NUM_THREADS, clock, prompt, serve

NUM_POSITIONS, NUM_SEQS = 8192, 8


class ThreadPoolParams(ctypes.Structure):
    _fields_ = [("cpumask", ctypes.c_bool * 512), ("n_threads", ctypes.c_int), ("prio", ctypes.c_int), ("poll", ctypes.c_uint32),
                ("strict_cpu", ctypes.c_bool), ("paused", ctypes.c_bool)]


def attach_threads(context):
    ggml = ctypes.CDLL(next(p for p in (f"{llama_cpp.__path__[0]}/lib/{n}" for n in ("libggml-cpu.so", "libggml.so")) if has(p, "ggml_threadpool_new")))
    params = ThreadPoolParams(n_threads=NUM_THREADS, prio=0, poll=50, strict_cpu=True, paused=False)
    for cpu in range(NUM_THREADS):
        params.cpumask[cpu] = True
    ggml.ggml_threadpool_new.restype = ctypes.c_void_p
    ggml.ggml_threadpool_new.argtypes = [ctypes.POINTER(ThreadPoolParams)]
    pool = ggml.ggml_threadpool_new(ctypes.byref(params))
    assert pool
    attach = llama_cpp.llama_cpp._lib.llama_attach_threadpool
    attach.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    attach.restype = None
    attach(ctypes.cast(context, ctypes.c_void_p), pool, pool)


def has(path, symbol):
    try:
        return hasattr(ctypes.CDLL(path), symbol)
    except OSError:
        return False


def main():
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = NUM_POSITIONS, 512, 512, NUM_SEQS
    params.n_threads = params.n_threads_batch = NUM_THREADS
    params.type_k = params.type_v = 1  # f16, the default
    model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), llama_cpp.llama_model_default_params())
    context = llama_cpp.llama_init_from_model(model, params)
    attach_threads(context)
    memory = llama_cpp.llama_get_memory(context)
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(512, 0, 1)

    def run(rows):
        """Decodes rows of (token, position, sequence, wants_logits)."""
        batch.n_tokens = len(rows)
        for i, (token, position, seq, wants_logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wants_logits
            batch.seq_id[i][0] = seq
        assert llama_cpp.llama_decode(context, batch) == 0

    def greedy(row):
        pointer = ctypes.cast(llama_cpp.llama_get_logits_ith(context, row), ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(pointer, (vocab_size,)).argmax())

    def fill(seed, seq, count):
        run([(token, i, seq, i + 1 == count) for i, token in enumerate(prompt(seed, count))])
        return greedy(count - 1)

    def decode(seed, streams, start, tokens):
        llama_cpp.llama_memory_clear(memory, True)
        last = [fill(seed + s, s, start) for s in range(streams)]
        begin = clock()
        for step in range(tokens):
            run([(last[s], start + step, s, True) for s in range(streams)])
            last = [greedy(s) for s in range(streams)]
        return streams * tokens / (clock() - begin)

    def prefill(seed, tokens):
        llama_cpp.llama_memory_clear(memory, True)
        begin = clock()
        fill(seed, 0, tokens)
        return tokens / (clock() - begin)

    serve(f"llama.cpp (llama-cpp-python {version('llama-cpp-python')}), {Path(sys.argv[1]).name}", decode, prefill)


if __name__ == "__main__":
    main()
