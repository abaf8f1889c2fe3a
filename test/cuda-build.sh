#!/usr/bin/env bash
# Compiles the CUDA backend for sm_80 and sm_90a with warnings as errors, and holds the compiler's report to test/cuda-registers.txt: no spills, shared
# memory within the limit, and no kernel with more registers than there.
#
#     test/cuda-build.sh [--update]      --update writes the table anew
#     test/cuda-build.sh --list FILE     only what a finished library (or an object of the default targets) holds: machine code for every target, PTX for later cards
set -euo pipefail
cd "$(dirname "$0")/.."

# Cards between two targets run what the older PTX becomes; cards after the newest, the newest PTX.
check_list() {
  local wanted='sm_80 sm_86 sm_89 sm_90 ptx_80'
  if nvcc --list-gpu-arch | grep -q compute_120; then wanted+=' sm_120 ptx_120'; fi
  python3 test/cuda-targets.py "$1" $wanted
}
if [ "${1:-}" = --list ]; then
  check_list "$2"
  exit
fi

TABLE=test/cuda-registers.txt
OUT=build/cuda-lane
mkdir -p "$OUT"
# With what tests and measures the kernels, as benchmarks/gpu.sh builds them on a device.
CAPSTAN_CUDA_ARCHS='80;90a' cmake -S test/native/gpu -B "$OUT" -DCMAKE_BUILD_TYPE=Release > "$OUT/configure.log"
cmake --build "$OUT" --clean-first --parallel "$(nproc)" > "$OUT/build.log" 2>&1 || { grep -E 'error|warning' "$OUT/build.log" || tail -20 "$OUT/build.log"; exit 1; }

# kernel, architecture, registers, bytes of spills
report() {
  awk '/Compiling entry function/ { split($0, part, "\047"); name = part[2]; arch = part[4] }
       /bytes spill stores/ { spills = 0; for (i = 2; i <= NF; i++) if ($i == "bytes" && $(i + 1) == "spill") spills += $(i - 1) }
       /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); print name, arch, substr($0, RSTART + 5, RLENGTH - 5), spills }' "$OUT/build.log" |
    sed -E 's/_ZN7capstan4cuda[0-9]*_GLOBAL__N__[0-9a-f]+_[0-9]+_([a-z_]+)_cu_[0-9a-f]+/\1:/' | sort -u
}

if [ "${1:-}" = --update ]; then
  report | awk '{ print $1, $2, $3 }' > "$TABLE"
  echo "$(wc -l < "$TABLE") rows in $TABLE"
  exit 0
fi
report > "$OUT/report.txt"
[ -s "$OUT/report.txt" ] || { echo 'the compiler reported nothing about its kernels' >&2; exit 1; }
awk 'NR == FNR { allowed[$1 " " $2] = $3; next }
     $4 > 0 { print $1 " on " $2 " spills " $4 " bytes"; bad = 1 }
     !(($1 " " $2) in allowed) { print $1 " on " $2 " is not in the table: test/cuda-build.sh --update"; bad = 1; next }
     $3 > allowed[$1 " " $2] { print $1 " on " $2 " uses " $3 " registers, more than the " allowed[$1 " " $2] " of the table"; bad = 1 }
     END { exit bad }' "$TABLE" "$OUT/report.txt"
echo "$(wc -l < "$OUT/report.txt") kernels: no spills, registers as in $TABLE"

# One object of the default targets shows the list of the whole library.
FAT=build/cuda-targets
env -u CAPSTAN_CUDA_ARCHS cmake -S cuda -B "$FAT" -DCMAKE_BUILD_TYPE=Release > "$OUT/configure-targets.log"
make -C "$FAT" -s kernels/rows.cu.o > "$OUT/targets.log" 2>&1 || { tail -20 "$OUT/targets.log"; exit 1; }
check_list "$FAT/CMakeFiles/capstan_cuda_objects.dir/kernels/rows.cu.o"
