"""Quantizes a GGUF file with llama.cpp.   python to_quantized_gguf.py FROM TO Q8_0|Q4_0|Q4_K_M|…"""

import ctypes
import sys

import llama_cpp

source, target, name = sys.argv[1:]
params = llama_cpp.llama_model_quantize_default_params()
params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
    raise SystemExit(f"cannot quantize {source} to {name}")
