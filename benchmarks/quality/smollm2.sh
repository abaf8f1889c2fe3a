#!/usr/bin/env bash
# Compares the engines on SmolLM2-135M (README.md).   smollm2.sh FOLDER OUT.md [options of compare.py …]
#
# PYTHON has torch and transformers, L llama-cpp-python, O openvino. Without O, OpenVINO is left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
dir=$1 out=$2
shift 2
capstan() { echo "node capstan_engine.mjs $1 '$2'"; }
"$L" llama_ids.py "$dir/reference.gguf" text.txt "$dir/ids.json"
engines=(
  "Capstan f32=$(capstan "$dir/hf" '{"dtype":"f32"}')"
  "Capstan bf16=$(capstan "$dir/hf" '{"dtype":"bf16"}')"
  "Capstan bf16, KV in 8 bits=$(capstan "$dir/hf" '{"dtype":"bf16","kvCacheDtype":"int8"}')"
  "Capstan int8=$(capstan "$dir/hf" '{"dtype":"bf16","quantization":"int8"}')"
  "Capstan int8, activations in f32=$(capstan "$dir/hf" '{"dtype":"bf16","quantization":"int8","computeDtype":"f32"}')"
  "Capstan int4=$(capstan "$dir/hf" '{"dtype":"bf16","quantization":"int4"}')"
  "Capstan int4, activations in f32=$(capstan "$dir/hf" '{"dtype":"bf16","quantization":"int4","computeDtype":"f32"}')"
  "Capstan Q8_0=$(capstan "$dir/Q8_0.gguf" '{"dtype":"bf16"}')"
  "Capstan Q4_0=$(capstan "$dir/Q4_0.gguf" '{"dtype":"bf16"}')"
  "Capstan Q4_K_M=$(capstan "$dir/Q4_K_M.gguf" '{"dtype":"bf16"}')"
  "llama.cpp BF16=$L llama_engine.py $dir/BF16.gguf"
  "llama.cpp BF16, KV in 8 bits=$L llama_engine.py $dir/BF16.gguf --kv q8_0"
  "llama.cpp Q8_0=$L llama_engine.py $dir/Q8_0.gguf"
  "llama.cpp Q4_0=$L llama_engine.py $dir/Q4_0.gguf"
  "llama.cpp Q4_K_M=$L llama_engine.py $dir/Q4_K_M.gguf"
)
if [ -n "${O:-}" ]; then
  exact="INFERENCE_PRECISION_HINT=f32 KV_CACHE_PRECISION=f32 DYNAMIC_QUANTIZATION_GROUP_SIZE=0"
  engines+=(
    "OpenVINO fp16=$O openvino_engine.py $dir/ov-fp16"
    "OpenVINO int8=$O openvino_engine.py $dir/ov-int8"
    "OpenVINO int4=$O openvino_engine.py $dir/ov-int4"
    "OpenVINO int8, computed in f32=$O openvino_engine.py $dir/ov-int8 $exact"
    "OpenVINO int4, computed in f32=$O openvino_engine.py $dir/ov-int4 $exact"
  )
fi
"$PYTHON" compare.py --reference "$dir/hf" --ids "$dir/ids.json" --title "Quality of quantized weights: SmolLM2-135M" --out "$out" "$@" "${engines[@]}"
