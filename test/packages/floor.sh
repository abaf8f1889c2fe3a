#!/usr/bin/env bash
# Fails if a native file below the folders needs more than glibc 2.28 (GLIBC names another version)
# or any libstdc++ newer than GLIBCXX_3.4.21.
#
#     test/packages/floor.sh FOLDER...
set -euo pipefail
status=0 num_files=0
while read -r file; do
  num_files=$((num_files + 1))
  needs=$(objdump -T "$file" | grep -oE '(GLIBC|GLIBCXX|CXXABI)_[0-9.]+' | sort -Vu)
  for pair in "GLIBC_${GLIBC:-2.28}" GLIBCXX_3.4.21 CXXABI_1.3.9; do
    newest=$(grep "^${pair%%_*}_" <<< "$needs" | tail -1 || true)
    [ -n "$newest" ] || continue
    if [ "$(printf '%s\n%s\n' "$newest" "$pair" | sort -V | tail -1)" != "$pair" ]; then
      echo "$file: expected at most $pair, needs $newest"
      status=1
    fi
  done
  libstdcxx=$(grep '^GLIBCXX_' <<< "$needs" | tail -1 || true)
  echo "$(basename "$file"): $(grep '^GLIBC_' <<< "$needs" | tail -1), ${libstdcxx:-no libstdc++}"
done < <(find "$@" -name '*.node' -o -name capstan_sandbox)
[ $num_files -gt 0 ] || { echo "expected native files in $*, found none"; exit 1; }
exit $status
