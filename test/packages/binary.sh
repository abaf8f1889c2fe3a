#!/usr/bin/env bash
# Builds the single executable and uses it where there is no Node.js: below a root directory with glibc and libstdc++ alone,
# and below a Debian. It serves, checks keys, and runs `up` with a deployment in a sandbox. Prints its size and start
# times. Needs root. Builds the packages if they are not of the present sources.
#
#     test/packages/binary.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
. test/packages/node.sh
target=linux-$(node -p process.arch)-gnu
node ts/pack.js --target "$target" > /dev/null 2>&1 || {
  . test/packages/zig.sh
  node native/prebuild.js --target "$target"
  node ts/pack.js --target "$target"
}
npm run -s build:binary -- --node "$RELEASED_NODE"
binary=$root/build/binary/capstan
command -v debootstrap > /dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends debootstrap; }
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

# Uses the executable below a root directory. Its files are in $work/files, at the same path inside and outside.
use() {
  local system=$1
  shift
  printf '#!/bin/sh\nexec python3 %s/test/packages/in-root.py %s --bind %s -- /usr/local/bin/capstan "$@"\n' \
    "$root" "$system" "$work/files" > "$work/capstan"
  chmod +x "$work/capstan"
  TMPDIR=$work/files node test/packages/use.mjs --command "$work/capstan" "$@" | tee "$work/output"
}

mkdir "$work/files"
echo "---- glibc and libstdc++ alone"
libraries=/lib/$(gcc -print-multiarch)
mkdir -p "$work/bare"/{root,tmp,etc,usr/local/bin} "$work/bare$libraries"
cp -L "$libraries"/lib{c,m,dl,rt,pthread,resolv,nss_dns,nss_files,gcc_s}.so.[0-9] /usr"$libraries"/libstdc++.so.6 "$work/bare$libraries/"
# The linker: /lib64/ld-linux-x86-64.so.2, or /lib/ld-linux-aarch64.so.1.
linker=$(ldd "$binary" | grep -oE '^\s+/\S+' | tr -d '[:space:]')
install -D "$linker" "$work/bare$linker"
install "$binary" "$work/bare/usr/local/bin/capstan"
use "$work/bare"

echo "---- Debian"
debootstrap --variant=minbase bookworm "$work/debian" http://deb.debian.org/debian > "$work/debootstrap.log"
install "$binary" "$work/debian/usr/local/bin/capstan"
use "$work/debian" --service
grep -q '^Isolation: process L2' "$work/output" || { echo 'expected that deployments run at level L2'; exit 1; }

echo "---- start times"
node test/packages/start-times.mjs

echo "---- files that another user or an accident changed"
test/packages/unpacking.sh
