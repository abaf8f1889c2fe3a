"""llama.cpp.   python llama_engine.py FILE.gguf [--kv q8_0]        (llama-cpp-python 0.3.36, gguf)"""

import ctypes
import os
import sys

import gguf
import llama_cpp
import numpy as np
from protocol import serve

CACHE_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
MAX_TOKENS = 512


def bits_per_weight(path):
    tensors = gguf.GGUFReader(path).tensors
    matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]
    return 8 * sum(int(t.n_bytes) for t in matrices) / sum(int(t.n_elements) for t in matrices)


def main():
    path, kv = sys.argv[1], sys.argv[3] if sys.argv[2:3] == ["--kv"] else "f16"
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = MAX_TOKENS
    params.n_threads = params.n_threads_batch = int(os.environ.get("QUALITY_THREADS", "2"))
    params.type_k = params.type_v = CACHE_TYPES[kv]
    context = llama_cpp.llama_init_from_model(model, params)
    assert context, f"llama.cpp has no cache of type {kv}"
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(MAX_TOKENS, 0, 1)

    def logits_of(ids):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i], batch.seq_id[i][0] = token, i, 1, True, 0
        assert llama_cpp.llama_decode(context, batch) == 0
        pointer = ctypes.cast(llama_cpp.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (len(ids), vocab_size))

    serve(f"llama.cpp, {os.path.basename(path)}, {kv} cache", bits_per_weight(path), logits_of)


main()
