#!/usr/bin/env bash
# Packs the packages, installs them from a local registry as users do, and tests that installation: empty folder, install
# scripts blocked, no compiler and no Python on the path. Prints sizes and times.
#
#     test/packages/run.sh [TEST...]      default: all of test/models
#
# Removes the installation, unless INSTALL_DIR names its folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
# Outside of the tree, so that no package of the tree is found.
installed=${INSTALL_DIR:-$(mktemp -d)}

. test/packages/zig.sh
node native/prebuild.js
node ts/pack.js

# Only Node, npm and a shell.
tools=$(mktemp -d)
for name in node npm npx sh env; do ln -s "$(command -v $name)" "$tools/$name"; done
node test/packages/registry.cjs build/packages > "$tools/url" &
registry=$!
trap 'kill $registry; rm -rf "$tools"; [ -n "${INSTALL_DIR:-}" ] || rm -rf "$installed"' EXIT
until [ -s "$tools/url" ]; do kill -0 $registry; sleep 0.1; done

mkdir -p "$installed"
[ -z "$(ls -A "$installed")" ] || { echo "INSTALL_DIR: expected an empty folder, got $installed"; exit 2; }
cd "$installed"
echo '{ "private": true }' > package.json
# Keeps the settings of proxies and certificates.
mapfile -t network < <(env | grep -E '^(NODE_EXTRA_CA_CERTS|SSL_CERT_FILE|(https?|no)_proxy|(HTTPS?|NO)_PROXY)=' || true)
alone() { env -i "${network[@]}" HOME="$tools" PATH="$tools" npm_config_registry="$(cat "$tools/url")" npm_config_ignore_scripts=true "$@"; }
megabytes() { du -sm "$@" | cut -f1; }

begin=$SECONDS
alone npm install --no-audit --no-fund capstan
echo "capstan: installed in $((SECONDS - begin)) s, $(megabytes node_modules) MB"
[ "$(megabytes node_modules)" -le 60 ] || { echo 'expected at most 60 MB'; du -sm node_modules/* node_modules/@*/* | sort -rn | head; exit 1; }

(cd "$root" && test/packages/floor.sh "$installed/node_modules")
cp "$root/test/packages/embed.cjs" "$root/test/packages/embed.mjs" .
for program in embed.cjs embed.mjs; do alone node $program; done
alone npx capstan --version
alone npx capstan run -p 'What is Capstan?' --temperature 0 < /dev/null | grep -q Capstan
alone npx capstan doctor > /dev/null
# Without the service, its commands say how to install it.
if alone npx capstan up > up.log 2>&1; then echo 'capstan up: expected an error without @capstan/service'; exit 1; fi
grep -q 'npm install @capstan/service@' up.log

begin=$SECONDS
alone npm install --no-audit --no-fund @capstan/service
echo "@capstan/service: installed in $((SECONDS - begin)) s, $(megabytes node_modules) MB together"

# Models for frameworks, by `require` and `import`. LangChain is a peer dependency.
alone npm install --no-audit --no-fund @langchain/core@1.4.0
cp "$root/test/packages/providers.cjs" "$root/test/packages/providers.mjs" .
for program in providers.cjs providers.mjs; do alone node $program; done

cd "$root"
# The compiled library imports some packages dynamically, for which Jest needs the flag. The transport uws is not installed.
NODE_OPTIONS=--experimental-vm-modules CAPSTAN_INSTALLED=$installed npx jest "${@:-test/models}"
