#!/usr/bin/env bash
# Runs the tasks of this folder with lm-eval (from PyPI, unchanged) and its local-completions model against our server.
# Prompts as token ids and as text must have the same scores. The first run creates a virtual environment (LM_EVAL_DIR,
# default build/lm-eval). Usage: test/clients/lm-eval/run.sh [RESULTS_DIR]
set -euo pipefail
cd "$(dirname "$0")/../../.."
dir=${LM_EVAL_DIR:-$PWD/build/lm-eval}
out=${1:-$dir/results}
port=${PORT:-18480}

if ! "$dir/venv/bin/python" -c 'import lm_eval, transformers' 2>/dev/null; then
  python3 -m venv "$dir/venv"
  "$dir/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 'lm-eval[api]==0.4.13'
fi
node ts/build.js
node dist/server/main.js serve demo --port "$port" --log-level error &
server=$!
trap 'kill $server' EXIT
until curl --silent --fail "http://127.0.0.1:$port/health" > /dev/null; do kill -0 $server; sleep 0.2; done

for tokenized in True False; do
  OPENAI_API_KEY=any HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 "$dir/venv/bin/lm_eval" run --model local-completions \
    --model_args "model=demo,base_url=http://127.0.0.1:$port/v1/completions,tokenizer=models/demo,tokenizer_backend=huggingface,tokenized_requests=$tokenized,num_concurrent=4,max_retries=1,max_length=1024" \
    --tasks sums_choice,sums_generate --include_path test/clients/lm-eval --output_path "$out/$tokenized" 2>&1 | grep -E '^\||rror' 
done
