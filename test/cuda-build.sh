#!/usr/bin/env bash
# Compiles the CUDA backend for sm_80 and sm_90a with warnings as errors, and compares the compiler's report with
# test/cuda-registers.txt. Fails if a kernel uses more registers, stack or spills than its row allows, if wgmma products are
# serialized, or if a kernel has static shared memory. All shared memory is dynamic, so that the tests on the CPU check its size.
#
#     test/cuda-build.sh [--update]      --update rewrites the table
#     test/cuda-build.sh --only 90a      compiles the library alone, for one of the two
#     test/cuda-build.sh --list FILE     only checks the targets in a library, or in an object built for the default targets
set -euo pipefail
cd "$(dirname "$0")/.."

# GPUs between two targets run translated PTX of the older one. GPUs after the newest target run its PTX.
check_list() {
  local wanted='sm_80 sm_86 sm_89 sm_90 ptx_80 ptx_90'
  local known
  known=$(nvcc --list-gpu-arch)  # not in a pipe: a reader that stops early kills nvcc
  if [[ $known == *compute_120* ]]; then wanted+=' sm_120 ptx_120'; fi
  python3 test/cuda-targets.py "$1" $wanted
}
if [ "${1:-}" = --list ]; then
  check_list "$2"
  exit
fi

archs='80;90a' target=all
if [ "${1:-}" = --only ]; then archs=$2 target=capstan_cuda; fi

TABLE=test/cuda-registers.txt
OUT=build/cuda-lane
mkdir -p "$OUT"
# The target `all` includes the tests and benchmarks of the kernels, which benchmarks/gpu.sh builds in the same way on a device.
# ccache keeps the compiler's report too.
launcher=$(command -v ccache || true)
CAPSTAN_CUDA_ARCHS=$archs cmake -S test/native/gpu -B "$OUT" -DCMAKE_CUDA_COMPILER_LAUNCHER="$launcher" -DCMAKE_BUILD_TYPE=Release -DCAPSTAN_STRICT=ON -DCMAKE_CUDA_FLAGS=--no-compress > "$OUT/configure.log"
cmake --build "$OUT" --target "$target" --clean-first --parallel "$(nproc)" > "$OUT/build.log" 2>&1 || { grep -E 'error|warning' "$OUT/build.log" || tail -20 "$OUT/build.log"; exit 1; }

# Prints kernel, architecture, registers, bytes of stack and spills, and bytes of static shared memory. Also prints called functions with
# stack or spills.
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
[ -s "$OUT/report.txt" ] || { echo 'the build log contains no register report' >&2; exit 1; }
awk 'NR == FNR { registers[$1 " " $2] = $3; bytes[$1 " " $2] = $4 + 0; next }
     { key = $1 " " $2; kernel = $1 " on " $2 }
     !(key in registers) { print kernel " is not in the table; run test/cuda-build.sh --update"; bad = 1; next }
     $3 > registers[key] { print kernel " uses " $3 " registers; the table allows " registers[key]; bad = 1 }
     $4 > bytes[key] { print kernel " has " $4 " bytes of stack and spills; the table allows " bytes[key]; bad = 1 }
     $5 > 0 { print kernel " has " $5 " bytes of static shared memory; expected none"; bad = 1 }
     END { exit bad }' "$TABLE" "$OUT/report.txt"
# C7510 and related warnings: wgmma products are serialized.
if grep -E '\(C75[0-9]+\)' "$OUT/build.log"; then exit 1; fi
echo "$(wc -l < "$OUT/report.txt") kernels are within the limits of $TABLE"

KERNELS=$OUT/cuda/CMakeFiles/capstan_cuda_objects.dir/kernels
python3 test/cuda-targets.py --kernels gemm_wgmma_kernel "$KERNELS/gemm_wgmma.cu.o" HGMMA UTMALDG UBLKCP
for codes in plain any; do python3 test/cuda-targets.py --kernels gemm_wgmma_kernel "$KERNELS/gemm_wgmma_$codes.cu.o" HGMMA UTMALDG; done
python3 test/cuda-targets.py --kernels attention_wgmma_kernel "$KERNELS/attention_wgmma.cu.o" HGMMA

if [ $target = all ]; then
  # One object with the default targets stands for the whole library.
  FAT=build/cuda-targets
  env -u CAPSTAN_CUDA_ARCHS cmake -S cuda -B "$FAT" -DCMAKE_BUILD_TYPE=Release > "$OUT/configure-targets.log"
  make -C "$FAT" -s kernels/partials.cu.o > "$OUT/targets.log" 2>&1 || { tail -20 "$OUT/targets.log"; exit 1; }
  check_list "$FAT/CMakeFiles/capstan_cuda_objects.dir/kernels/partials.cu.o"

  # The kernels with waits, with limits of those.
  LIMITED=build/cuda-limited
  CAPSTAN_CUDA_ARCHS=90a cmake -S cuda -B "$LIMITED" -DCMAKE_BUILD_TYPE=Release -DCAPSTAN_STRICT=ON -DCAPSTAN_LIMITED_SPINS=ON > "$OUT/configure-limited.log"
  make -C "$LIMITED" -s -j"$(nproc)" kernels/gemm_wgmma.cu.o kernels/gemm_wgmma_plain.cu.o kernels/attention_wgmma.cu.o > "$OUT/limited.log" 2>&1 || { tail -20 "$OUT/limited.log"; exit 1; }
fi

# The linked library depends on no NVIDIA library. Without a driver the addon opens it and reports why it is not used.
LIBRARY=$OUT/cuda/capstan_cuda.so
needed=$(readelf -d "$LIBRARY" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
if grep -E 'cuda|cublas|nccl|nvrtc' <<< "$needed"; then
  echo 'the library must not depend on these libraries, which the machine may lack' >&2
  exit 1
fi
if [ -e build/Release/capstan.node ] && ! ldconfig -p | grep -c libcuda.so.1 > /dev/null; then
  output=$(CAPSTAN_CUDA_LIBRARY=$PWD/$LIBRARY node -e "
    const { Engine } = require('./dist/ts/index.js');
    (async () => {
      const engine = await Engine.load('demo');
      console.log(...engine.info.notes);
      await engine.close();
      await Engine.load('demo', { device: 'cuda' }).then(() => console.log('loaded'), (error) => console.log(error.message));
    })();")
  [ "$(grep -c 'no NVIDIA driver' <<< "$output")" = 2 ] || { printf 'expected two reports of a missing NVIDIA driver, got %s\n' "$output" >&2; exit 1; }
  echo 'the addon opens the library and reports the missing driver'
fi
