#!/usr/bin/env bash
# Tests where the single executable (npm run build:binary) unpacks its files, and that it uses no file that another user
# could have put there. Needs root.
#
#     test/packages/unpacking.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work"
install build/binary/capstan "$work/capstan"
version=$(node -p 'require("./package.json").version')

capstan() { env -i "$@" "$work/capstan" --version 2>&1; }
fails() {
  local pattern=$1 output
  shift
  if output=$(capstan "$@"); then echo "expected an error about '$pattern', got: $output"; exit 1; fi
  grep -q "$pattern" <<< "$output" || { echo "expected an error about '$pattern', got: $output"; exit 1; }
  echo "refused: $pattern"
}
works() { [ "$(capstan "$@")" = "$version" ] || { echo "expected $version with $*, got:"; capstan "$@"; exit 1; }; }
folder_of() { find "$1" -mindepth 1 -maxdepth 1 -type d; }

mkdir "$work/home"
works HOME="$work/home"
cache=$work/home/.cache/capstan/executable
[ "$(stat -c %a "$cache")" = 700 ] || { echo "expected mode 700 of $cache, got $(stat -c %a "$cache")"; exit 1; }
tree=$(folder_of "$cache")

# A changed, a missing and a replaced file.
main=$tree/node_modules/capstan/dist/server/main.js
addon=$(find "$tree" -name 'tokenizers.node')
hash=$(sha256sum "$main" "$addon")
echo 'process.exit(3)' >> "$main" && works HOME="$work/home"
rm "$addon" && works HOME="$work/home"
truncate -s -1 "$addon" && works HOME="$work/home"
[ "$hash" = "$(sha256sum "$main" "$addon")" ] || { echo 'expected the files as they were'; exit 1; }
[ "$(folder_of "$cache")" = "$tree" ] || { echo "expected one folder in $cache, got: $(folder_of "$cache")"; exit 1; }
echo 'changed files: unpacked again'

# Two first starts at the same time.
mkdir "$work/both"
works CAPSTAN_UNPACK_DIR="$work/both" & first=$!
works CAPSTAN_UNPACK_DIR="$work/both"
wait $first
[ "$(folder_of "$work/both/executable" | wc -l)" = 1 ] || { echo 'expected one folder after two starts'; exit 1; }
echo 'two starts at the same time: both work'

# Folders that another user made or may change.
mkdir -p "$work/theirs/executable" && chown 65534 "$work/theirs/executable"
fails 'it belongs to the user 65534' CAPSTAN_UNPACK_DIR="$work/theirs"
mkdir -p "$work/open/executable" && chmod 0777 "$work/open/executable"
fails 'other users may write to it' CAPSTAN_UNPACK_DIR="$work/open"
mkdir "$work/parent" && chmod 0777 "$work/parent"
fails "other users may write to $work/parent" CAPSTAN_UNPACK_DIR="$work/parent/mine"
mkdir "$work/owner" && chown 65534 "$work/owner"
fails "$work/owner belongs to the user 65534" CAPSTAN_UNPACK_DIR="$work/owner/mine"
ln -s "$work/theirs/executable" "$work/home/link" && mkdir "$work/links" && ln -s ../home/link "$work/links/executable"
fails 'it belongs to the user 65534' CAPSTAN_UNPACK_DIR="$work/links"

# `sudo -E` keeps the home of the user, in which root makes nothing.
mkdir "$work/user" "$work/root" && chown 65534 "$work/user"
works HOME="$work/user" TMPDIR="$work/root"
[ -z "$(ls -A "$work/user")" ] || { echo "expected that root makes nothing in $work/user"; exit 1; }

# An ordinary user without a home.
mkdir "$work/tmp" && chmod 1777 "$work/tmp"
[ "$(setpriv --reuid=65534 --clear-groups env -i HOME=/nonexistent TMPDIR="$work/tmp" "$work/capstan" --version)" = "$version" ]
[ "$(stat -c '%u %a' "$work/tmp/capstan-executable-65534")" = '65534 700' ]
# A name in /tmp that another user has taken.
mkdir "$work/taken" && chmod 1777 "$work/taken" && mkdir "$work/taken/capstan-executable-0" && chown 65534 "$work/taken/capstan-executable-0"
fails 'it belongs to the user 65534' TMPDIR="$work/taken"
echo 'unpacking: all checks passed'
