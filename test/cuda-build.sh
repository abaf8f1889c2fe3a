#!/usr/bin/env bash
# Compiles the CUDA backend for sm_80 and sm_90a with warnings as errors, and holds the compiler's report to test/cuda-registers.txt: no kernel with more registers
# than there, no stack or spills but the bytes that a row allows, no products by wgmma that wait for each other. All shared memory is asked for at launch, so that
# the tests on the CPU see how much it is.
#
#     test/cuda-build.sh [--update]      --update writes the table anew
#     test/cuda-build.sh --list FILE     only what a finished library (or an object of the default targets) holds: machine code for every target, PTX for later cards
set -euo pipefail
cd "$(dirname "$0")/.."

# Cards between two targets run what the older PTX becomes; cards after the newest, the newest PTX.
check_list() {
  local wanted='sm_80 sm_86 sm_89 sm_90 ptx_80'
  local known
  known=$(nvcc --list-gpu-arch)  # apart: whoever stops reading early would end nvcc
  if [[ $known == *compute_120* ]]; then wanted+=' sm_120 ptx_120'; fi
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
CAPSTAN_CUDA_ARCHS='80;90a' cmake -S test/native/gpu -B "$OUT" -DCMAKE_BUILD_TYPE=Release -DCAPSTAN_STRICT=ON -DCMAKE_CUDA_FLAGS=--no-compress > "$OUT/configure.log"
cmake --build "$OUT" --clean-first --parallel "$(nproc)" > "$OUT/build.log" 2>&1 || { grep -E 'error|warning' "$OUT/build.log" || tail -20 "$OUT/build.log"; exit 1; }

# kernel, architecture, registers, bytes of stack and spills, bytes of shared memory; and functions that kernels call, where they have such bytes
report() {
  awk '/Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; arch = part[4] }
       /Function properties for/ { name = $NF }
       /bytes stack frame/ { bytes = $1; for (i = 2; i <= NF; i++) if ($i == "bytes" && $(i + 1) == "spill") bytes += $(i - 1)
                             if (name != kernel && bytes > 0) print name, arch, 0, bytes, 0 }
       /Used [0-9]+ registers/ { shared = 0; for (i = 2; i <= NF; i++) if ($i == "bytes" && $(i + 1) ~ /^smem/) shared = $(i - 1)
                                 match($0, /Used [0-9]+/); print kernel, arch, substr($0, RSTART + 5, RLENGTH - 5), bytes, shared }' "$OUT/build.log" |
    sed -E -e 's/_ZN7capstan4cuda[0-9]*_GLOBAL__N__[0-9a-f]+_[0-9]+_([a-z_]+)_cu_[0-9a-f]+/\1:/' \
      -e 's/_ZN[0-9]+_INTERNAL_[0-9a-f]+_[0-9]+_([a-z_]+)_cu_[0-9a-f]{8}7capstan4cuda[0-9]+_GLOBAL__N__[0-9a-f]+_[0-9]+_[a-z_]+_cu_[0-9a-f]{8}[0-9]+/\1:/' | sort -u
}

if [ "${1:-}" = --update ]; then
  report | awk '{ print $1, $2, $3 ($4 > 0 ? " " $4 : "") }' > "$TABLE"
  echo "$(wc -l < "$TABLE") rows in $TABLE"
  exit 0
fi
report > "$OUT/report.txt"
[ -s "$OUT/report.txt" ] || { echo 'the compiler reported nothing about its kernels' >&2; exit 1; }
awk 'NR == FNR { registers[$1 " " $2] = $3; bytes[$1 " " $2] = $4 + 0; next }
     { key = $1 " " $2; kernel = $1 " on " $2 }
     !(key in registers) { print kernel " is not in the table: test/cuda-build.sh --update"; bad = 1; next }
     $3 > registers[key] { print kernel " uses " $3 " registers, more than the " registers[key] " of the table"; bad = 1 }
     $4 > bytes[key] { print kernel " has " $4 " bytes of stack and spills, more than the " bytes[key] " of the table"; bad = 1 }
     $5 > 0 { print kernel " has " $5 " bytes of shared memory that its launch does not ask for"; bad = 1 }
     END { exit bad }' "$TABLE" "$OUT/report.txt"
# C7510 and its like: products by wgmma one after the other.
if grep -E '\(C75[0-9]+\)' "$OUT/build.log"; then exit 1; fi
echo "$(wc -l < "$OUT/report.txt") kernels: registers, stack and spills as in $TABLE"

KERNELS=$OUT/cuda/CMakeFiles/capstan_cuda_objects.dir/kernels
python3 test/cuda-targets.py --kernels gemm_wgmma_kernel "$KERNELS/gemm_wgmma.cu.o" HGMMA UTMALDG UBLKCP
python3 test/cuda-targets.py --kernels attention_wgmma_kernel "$KERNELS/attention_wgmma.cu.o" HGMMA

# One object of the default targets shows the list of the whole library.
FAT=build/cuda-targets
env -u CAPSTAN_CUDA_ARCHS cmake -S cuda -B "$FAT" -DCMAKE_BUILD_TYPE=Release > "$OUT/configure-targets.log"
make -C "$FAT" -s kernels/rows.cu.o > "$OUT/targets.log" 2>&1 || { tail -20 "$OUT/targets.log"; exit 1; }
check_list "$FAT/CMakeFiles/capstan_cuda_objects.dir/kernels/rows.cu.o"

# The library as it is linked: it needs no library of NVIDIA's, the addon opens it, and says why it cannot be used where there is no driver.
LIBRARY=$OUT/cuda/capstan_cuda.so
needed=$(readelf -d "$LIBRARY" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
if grep -E 'cuda|cublas|nccl|nvrtc' <<< "$needed"; then
  echo 'the library is linked to this, which a machine need not have' >&2
  exit 1
fi
if [ -e build/Release/capstan.node ] && ! ldconfig -p | grep -c libcuda.so.1 > /dev/null; then
  said=$(CAPSTAN_CUDA_LIBRARY=$PWD/$LIBRARY node -e "
    const { Engine } = require('./dist/ts/index.js');
    (async () => {
      const engine = await Engine.load('demo');
      console.log(...engine.info.notes);
      await engine.close();
      await Engine.load('demo', { device: 'cuda' }).then(() => console.log('loaded'), (error) => console.log(error.message));
    })();")
  [ "$(grep -c 'no NVIDIA driver' <<< "$said")" = 2 ] || { printf 'expected twice that there is no NVIDIA driver, got %s\n' "$said" >&2; exit 1; }
  echo 'the addon opens the library, and says that there is no driver'
fi
