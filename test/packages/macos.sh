#!/usr/bin/env bash
# Compiles and links the addon for macOS with zig, on both processors. Nothing runs it: there is no macOS here.
#
#     test/packages/macos.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
. test/packages/zig.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$(node -p "require('./native/node-headers').headersPrefix() ?? ''")
[ -n "$prefix" ] || { echo "expected the headers of Node.js beside $(command -v node), found none" >&2; exit 1; }
flags=(-std=gnu++20 -O3 -Wall -Wextra -Werror -ffp-contract=off -fvisibility=hidden
  -I. "-I$prefix/include/node" "-I$(node -p "require('node-addon-api').include_dir")"
  -DNAPI_VERSION=8 -DNAPI_CPP_EXCEPTIONS -DNODE_ADDON_API_DISABLE_DEPRECATED
  -DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS "-DCAPSTAN_VERSION=\"$(node -p "require('./package.json').version")\"")
avx512=(-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)

# Starts a compiler. There is one per core.
running=0
await_one() {
  wait -n
  running=$((running - 1))
}
compile() { # TARGET SOURCE [FLAG…]
  local target=$1 source=$2
  shift 2
  if [ $running = "$(nproc)" ]; then await_one; fi
  running=$((running + 1))
  $ZIG c++ -target "$target" "${flags[@]}" "$@" -c "$source" -o "$work/$target/${source//\//-}.o" &
}

for target in aarch64-macos x86_64-macos; do
  mkdir "$work/$target"
  for source in native/{base,backend,backend/cpu,bench,binding,comm,disk,engine,grammar,model}/*.cpp; do
    case $target:$source in
      aarch64*kernels_avx* | aarch64*kernels_amx.cpp | x86_64*kernels_neon*) ;;
      *kernels_neondot.cpp) compile "$target" "$source" -mcpu=apple_m1 ;;
      *kernels_neonbf16.cpp) compile "$target" "$source" -mcpu=apple_m1+bf16+i8mm ;;
      *kernels_avx2.cpp) compile "$target" "$source" -mavx2 -mfma -mf16c ;;
      *kernels_avxvnni.cpp) compile "$target" "$source" -mavx2 -mfma -mf16c -mavxvnni ;;
      *kernels_avx512.cpp) compile "$target" "$source" "${avx512[@]}" ;;
      *kernels_avx512bf16.cpp | *kernels_amx.cpp) compile "$target" "$source" "${avx512[@]}" -mavx512vnni -mavx512bf16 ;;
      *kernels_avx512vnni.cpp) compile "$target" "$source" "${avx512[@]}" -mavx512vnni ;;
      *) compile "$target" "$source" ;;
    esac
  done
  while [ $running -gt 0 ]; do await_one; done
  $ZIG c++ -target "$target" -dynamiclib -undefined dynamic_lookup "$work/$target"/*.o -o "$work/capstan-$target.node"
  od -An -tx4 -N8 "$work/capstan-$target.node" | grep -q ' feedfacf' || { echo "$target: expected a Mach-O file" >&2; exit 1; }
  echo "$target: $(stat -c %s "$work/capstan-$target.node") bytes, compiled, never run"
done
