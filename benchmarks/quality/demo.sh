#!/usr/bin/env bash
# What quantization costs the embedded model (README.md).   demo.sh OUT.md [options of compare.py …]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out=$1 model=../../models/demo
shift
engines=("Capstan bf16=node capstan_engine.mjs $model")
for options in '{"kvCacheDtype":"int8"}' '{"quantization":"int8"}' '{"quantization":"int4"}' '{"quantization":"int4","computeDtype":"f32"}'; do
  engines+=("$(echo "Capstan $options" | tr -d '"{}' | tr : ' ')=node capstan_engine.mjs $model '$options'")
done
"$PYTHON" compare.py --reference "$model" --text "$model/heldout.jsonl" --title "Quality of quantized weights: the embedded model" --out "$out" "$@" "${engines[@]}"
