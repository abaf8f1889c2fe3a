#!/usr/bin/env bash
# Runs widely used clients from PyPI and npm against our server, over both transports. The first run creates a virtual
# environment and a folder for npm clients (CLIENTS_DIR, default build/clients). Usage: test/clients/run.sh [TABLE.md]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${CLIENTS_DIR:-$PWD/build/clients}
table=${1:-}

python=$dir/venv/bin/python
if ! "$python" -c 'import anthropic, openai, litellm, langchain_openai' 2>/dev/null; then
  python3 -m venv "$dir/venv"
  "$dir/venv/bin/pip" install --quiet --no-compile -r test/clients/requirements.txt
fi
if [ ! -d "$dir/ai-sdk/node_modules/@ai-sdk/cohere" ]; then
  mkdir -p "$dir/ai-sdk"
  echo '{ "private": true }' > "$dir/ai-sdk/package.json"
  npm install --prefix "$dir/ai-sdk" --no-audit --no-fund --silent ai@7.0.173 @ai-sdk/openai@4.0.118 \
    @ai-sdk/openai-compatible@3.0.92 @ai-sdk/anthropic@4.0.105 @ai-sdk/cohere@4.0.52 zod@4.6.7
fi
if [ ! -d "$dir/agents/node_modules/@openai/agents" ]; then
  mkdir -p "$dir/agents"
  echo '{ "private": true }' > "$dir/agents/package.json"
  npm install --prefix "$dir/agents" --no-audit --no-fund --silent @openai/agents@0.20.0 openai@6.49.0 \
    langchain@1.5.14 @langchain/core@1.4.0 @langchain/openai@1.5.8 zod@4.6.7
fi
node -r ./test/oracle/register-ts.cjs test/clients/run.ts "$python" "$dir/ai-sdk" "$dir/agents" ${table:+"$table"}
