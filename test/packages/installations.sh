#!/usr/bin/env bash
# Installs the packages in build/packages as run.sh does not: by other package managers, and in the folder that Next.js
# makes for a container. Each installation is in an empty folder, with install scripts blocked. It embeds the library, and
# runs the server and the service.
#
#     test/packages/installations.sh [pnpm|yarn|standalone]...          default: all
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# Outside of the tree, so that no package of the tree is found.
work=$(mktemp -d)
node "$here/registry.cjs" "$root/build/packages" > "$work/url" &
registry=$!
trap 'kill $registry; rm -rf "$work"' EXIT
until [ -s "$work/url" ]; do kill -0 $registry; sleep 0.1; done
url=$(cat "$work/url")

tool() { npm install --no-audit --no-fund --ignore-scripts --loglevel error --prefix "$work/tools" "$1"; }

project() {
  mkdir "$work/$1"
  cd "$work/$1"
  echo '{ "private": true }' > package.json
  cp "$here"/{embed.cjs,embed.mjs,use.mjs} .
}

pnpm() {
  tool pnpm@10.34.8
  project pnpm
  node "$work/tools/node_modules/pnpm/bin/pnpm.cjs" add --registry "$url" --store-dir "$work/store" --ignore-scripts \
    capstan @capstan/service
  for program in embed.cjs embed.mjs; do node $program; done
  node use.mjs --service
}

# Yarn without node_modules: packages stay in archives, and a loader finds them (Plug'n'Play).
yarn() {
  tool @yarnpkg/cli-dist@4.18.1
  project yarn
  touch yarn.lock
  cat > .yarnrc.yml <<END
nodeLinker: pnp
npmRegistryServer: $url
unsafeHttpWhitelist: [127.0.0.1]
enableScripts: false
enableTelemetry: false
globalFolder: $work/yarn-global
# Our registry does not date its packages.
npmMinimalAgeGate: 0
END
  local yarn="node $work/tools/node_modules/@yarnpkg/cli-dist/bin/yarn.js"
  $yarn add capstan @capstan/service
  for program in embed.cjs embed.mjs; do $yarn node $program; done
  $yarn node use.mjs --main "$($yarn bin capstan)"
  # The service needs node_modules, and says so.
  if $yarn capstan up --data-dir "$work/service" > up.log 2>&1; then echo 'capstan up: expected an error'; exit 1; fi
  grep 'nodeLinker: node-modules' up.log
}

standalone() {
  project next
  npm install --registry "$url" --no-audit --no-fund --ignore-scripts --loglevel error \
    capstan next@16.4.6 react@19.3.1 react-dom@19.3.1 openai@6.49.0
  cp -r "$here"/hosts/next/. "$here/hosts/chat.mjs" .
  NEXT_OUTPUT=standalone NEXT_TELEMETRY_DISABLED=1 npx next build
  # Elsewhere, so that it finds no other node_modules.
  mv .next/standalone "$work/standalone"
  du -sm "$work/standalone"
  # PORT=0 means 3000 here.
  local port
  port=$(node -p 'require("node:crypto").randomInt(61000, 65536)')
  (cd "$work/standalone" && PORT=$port HOSTNAME=127.0.0.1 exec node server.js > ../next.log 2>&1) &
  server=$!
  trap 'kill $registry $server; cat "$work/next.log"; rm -rf "$work"' EXIT
  until grep -q Ready "$work/next.log"; do kill -0 $server; sleep 0.2; done
  node chat.mjs "http://127.0.0.1:$port/ai/v1"
  kill $server
}

[ $# -gt 0 ] || set -- pnpm yarn standalone
for installation in "$@"; do
  echo "---- $installation"
  "$installation"
done
