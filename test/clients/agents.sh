#!/usr/bin/env bash
# Runs OpenAI's Codex and Anthropic's Claude Code against our servers, in their mode without a terminal. The first run
# installs them (CLIENTS_DIR, default build/clients). Usage: test/clients/agents.sh [TABLE.md]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${CLIENTS_DIR:-$PWD/build/clients}/coding-agents
table=${1:-}

if [ ! -d "$dir/node_modules/@anthropic-ai/claude-code" ]; then
  mkdir -p "$dir"
  echo '{ "private": true }' > "$dir/package.json"
  npm install --prefix "$dir" --no-audit --no-fund --silent --ignore-scripts @openai/codex@0.171.0 \
    @anthropic-ai/claude-code@2.1.332
fi
node -r ./test/oracle/register-ts.cjs test/clients/agents.ts "$dir" ${table:+"$table"}
