#!/usr/bin/env bash
# Builds for the GPU of this machine, then tests and measures on it: `npm run gpu`, or this script directly on a machine without Node.
# Requires nvcc 12.4 or newer, CMake, make, g++ and Python. Optional: PyTorch with transformers for comparisons, compute-sanitizer for
# its phase. Needs no network.
#
#     benchmarks/gpu.sh [PHASE…]
#
#   records   run locally before using a GPU machine (needs Node): writes the golden models in a format that needs no JavaScript, and
#             the identity of the source tree, to build/gpu-records
#   pack      `records`, plus all programs built for compute capability 9.0 (needs nvcc, no GPU) and the product with Node, so that
#             they need not be built on the GPU machine
#   build     capstan_cuda.so and the kernel tests with nvcc, and the engine tests with g++, in build/gpu
#   primitives  the single instructions that kernels are made of, 10 s each. A failure ends the script, because it explains all later ones
#   ops       every kernel against double precision, and a small decoder through all of them
#   sanitize  compute-sanitizer on small shapes: memcheck, racecheck, initcheck, synccheck
#   model     the whole engine, compared with the CPU and with transformers, and tests of bitwise equality
#   soak      random requests and aborts for GPU_SOAK_SECONDS (60), then tests that lose the device
#   bench     kernels and steps, compared with the hardware limits of the same run, PyTorch and transformers
#   serve     the product over HTTP, from this tree or packed: the embedded model, which must answer as on the CPU, and random weights
#             of the Qwen2.5-1.5B shape if PyTorch is installed
#
# Without arguments: build and primitives, then the phases of ops, bench, model, serve, sanitize and soak that have no result for this tree, then those
# that failed, until GPU_SECONDS (540) have passed.
# Results: one JSON file per tree in GPU_RESULTS (default: $OUT if set, else benchmarks/results/gpu), merged with the results for the same
# tree in benchmarks/results/gpu and from the previous call on this machine. Copy it into benchmarks/results/gpu before the next call.
#
# GPU_DEVICE=host checks the script itself with kernels on the CPU (test/native/cuda_host): few tests, tiny shapes, and the embedded model
# over HTTP. Its results are temporary.
#
# A remote GPU machine may start empty, with only the working tree and the files sent along. Before using one, commit, run
# `npm run gpu -- pack`, and send build/gpu-records with every call (62 MB including the tree).
set -uo pipefail
cd "$(dirname "$0")/.."

DEVICE=${GPU_DEVICE:-cuda}
SECONDS_LEFT_FOR=${GPU_SECONDS:-540}
BUILD=build/gpu
# Only this folder is sent to a remote machine. $BUILD is not, because it would replace the build of the previous call there.
RECORDS=build/gpu-records
RESULTS=${GPU_RESULTS:-${OUT:-benchmarks/results/gpu}}
[ "$DEVICE" = host ] && RESULTS=${GPU_RESULTS:-$BUILD/host}
mkdir -p "$BUILD" "$RECORDS" "$RESULTS"
# The identity of the source tree: its commit, and a hash of uncommitted changes. A remote machine may lack the history and reads the
# recorded identity.
tree_key() {
  local commit
  commit=$(git rev-parse --verify -q HEAD) || return 1
  git diff --quiet HEAD || commit=${commit:0:12}-$(git diff HEAD | sha1sum | cut -c1-8)
  echo "$commit"
}
if command -v node > /dev/null; then COMMIT=$(tree_key); else COMMIT=$(cat "$RECORDS/commit" 2>/dev/null || tree_key); fi
COMMIT=${COMMIT:-unknown}
FILE=$RESULTS/gpu-${COMMIT:0:21}.json
for folder in /usr/local/cuda/bin /opt/torch/.venv/bin; do case :$PATH: in *":$folder:"*) ;; *) [ -d "$folder" ] && PATH=$PATH:$folder ;; esac; done
export PATH
report() { python3 benchmarks/gpu/report.py "$@"; }
jobs() { nproc; }

if [ "$DEVICE" = host ]; then
  NATIVE=build/test-native/release
  export CAPSTAN_CUDA_LIBRARY=$PWD/$NATIVE/capstan_cuda.so
  : "${GPU_SOAK_SECONDS:=2}"
  KERNELS=$NATIVE TINY=(tiny) SHAPE=tiny TORCH=(--device cpu --tiny)
else
  NATIVE=build/test-native/release
  export CAPSTAN_CUDA_LIBRARY=$PWD/$BUILD/cmake/cuda/capstan_cuda.so
  export CAPSTAN_TEST_FULL=1
  KERNELS=$BUILD/cmake TINY=() SHAPE=qwen2.5-1.5b TORCH=(--device cuda)
fi

# The programs that `pack` built for this tree, unpacked once.
PACKED=$BUILD/packed
if [ "$(cat "$RECORDS/packed" 2>/dev/null)" = "$COMMIT" ] && [ "$(cat "$PACKED/commit" 2>/dev/null)" != "$COMMIT" ]; then
  rm -rf "$PACKED" && mkdir -p "$PACKED" && { tar -xJf "$RECORDS/pack.tar.xz" -C "$PACKED" || python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$RECORDS/pack.tar.xz" "$PACKED"; } && cp "$RECORDS/packed" "$PACKED/commit"
fi
# Use the packed programs if they run on this machine.
if [ "$DEVICE" != host ] && [ "$(cat "$PACKED/commit" 2>/dev/null)" = "$COMMIT" ] && "$PACKED/bin/gpu_ops" --list > /dev/null 2>&1 && "$PACKED/bin/gpu_tests" --list > /dev/null 2>&1; then
  KERNELS=$PACKED/bin NATIVE=$PACKED/bin
  export CAPSTAN_CUDA_LIBRARY=$PWD/$PACKED/bin/capstan_cuda.so
fi

LIMITED=$KERNELS/gpu_ops_limited

# Prints the CAPSTAN_CUDA_ARCHS value for this machine's GPU. 9.0 needs architecture-specific code. Between 9.0 and 12.0 the driver
# translates PTX 9.0.
gpu_arch() {
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  case $capability in
    90) echo 90a ;;
    8[0-9]) echo "$capability" ;;
    10[0-9] | 11[0-9]) echo 90-virtual ;;
    12[0-9]) echo 120 ;;
    *) echo "expected a GPU of compute capability 8.0 to 12.x, got ${capability:-none}" >&2; return 1 ;;
  esac
}

phase_records() {
  tree_key > "$RECORDS/commit"
  node -r ./test/oracle/register-ts.cjs test/oracle/records.ts "$RECORDS/golden.txt"
}

# Installs the product in folder $1 as npm would, with Node and without files for other platforms.
pack_product() {
  npm ci --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error --prefix "$1" > /dev/null || return 1
  find "$1/node_modules" \( -name '*.node' \( -path '*darwin*' -o -path '*win32*' -o -path '*android*' -o -path '*arm*' -o -path '*musl*' \) -o -name 'uws_*.node' ! -name "uws_linux_x64_$(node -p process.versions.modules).node" \
    -o -name '*.map' -o -name '*.d.ts' -o -name '*.pdf' -o -path '*/bintrees/test/*' \) -type f -delete
  cp -r dist "$1/"
  mkdir -p "$1/build/Release"
  cp build/Release/capstan.node "$1/build/Release/"
  cp "$(command -v node)" "$1/node"
  strip "$1/node" "$1/build/Release/capstan.node"
}

# For a machine like this one with a GPU of compute capability 9.0.
# gpu_ops is built once more, with limited waits.
phase_pack() {
  local folder=$BUILD/pack
  phase_records || return 1
  rm -rf "$RECORDS/packed" "$folder/bin" "$folder/product"
  mkdir -p "$folder/bin" "$folder/product"
  CAPSTAN_CUDA_ARCHS=90a cmake -S test/native/gpu -B "$folder/cmake" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_FLAGS=-lineinfo > "$BUILD/configure.log" || return 1
  cmake --build "$folder/cmake" --parallel "$(jobs)" > "$BUILD/pack.log" 2>&1 || { grep error "$BUILD/pack.log"; return 1; }
  CAPSTAN_CUDA_ARCHS=90a cmake -S test/native/gpu -B "$folder/limited" -DCMAKE_BUILD_TYPE=Release -DCAPSTAN_LIMITED_SPINS=ON > "$BUILD/configure.log" || return 1
  cmake --build "$folder/limited" --parallel "$(jobs)" --target gpu_ops > "$BUILD/pack.log" 2>&1 || { grep error "$BUILD/pack.log"; return 1; }
  make -C test/native -j"$(jobs)" -s gpu || return 1
  cp "$folder/limited/gpu_ops" "$folder/bin/gpu_ops_limited"
  cp "$folder"/cmake/{gpu_ops,gpu_kernels,gpu_faults.so} "$folder/cmake/cuda/capstan_cuda.so" build/test-native/release/{gpu_tests,gpu_steps} "$folder/bin/"
  strip --strip-unneeded "$folder"/bin/*
  cp package.json package-lock.json "$folder/product/"
  npm run --silent build && pack_product "$folder/product" || return 1
  tar -C "$folder" -c bin product | xz -T0 -9e > "$RECORDS/pack.tar.xz" || return 1
  cp "$RECORDS/commit" "$RECORDS/packed"
  du -sh "$RECORDS"
}

phase_build() {
  if [ "$DEVICE" = host ]; then
    make -C test/native -j"$(jobs)" -s gpu cuda_host
    return
  fi
  local arch status=0
  arch=$(gpu_arch) || return 1
  if [ "$KERNELS" = "$PACKED/bin" ]; then
    [ "$arch" = 90a ] && { echo 'using the packed programs'; return 0; }
    echo "the packed programs are for compute capability 9.0, not $arch"
    return 1
  fi
  # Discard a CMake cache from another folder.
  grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD/test/native/gpu" "$BUILD/cmake/CMakeCache.txt" 2>/dev/null || rm -rf "$BUILD/cmake"
  CAPSTAN_CUDA_ARCHS=$arch cmake -S test/native/gpu -B "$BUILD/cmake" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_FLAGS=-lineinfo > "$BUILD/configure.log" || { tail -20 "$BUILD/configure.log"; return 1; }
  # The engine tests need no nvcc, so both builds run in parallel.
  make -C test/native -j"$(jobs)" -k -s WERROR= gpu & local make_job=$!
  # -k builds as much as possible after an error.
  cmake --build "$BUILD/cmake" --parallel "$(jobs)" -- -k > "$BUILD/build.log" 2>&1 || { grep -E 'error' "$BUILD/build.log" | head -20; tail -5 "$BUILD/build.log"; status=1; }
  wait "$make_job" || status=1
  return $status
}

# Prints the time limit of a command in seconds: $1, or less if the phase ends earlier. On an emulated device the limit is generous.
time_limit() {
  [ "$DEVICE" = host ] && { echo 600; return; }
  local left=$((${GPU_PHASE_ENDS:-$(($(date +%s) + 3600))} - $(date +%s) - 8))
  echo $((left < $1 ? (left > 1 ? left : 1) : $1))
}

# Runs the tests of a program that match a filter, each in a separate process, because a CUDA error makes a process unusable and a kernel
# may hang. Failed tests run again: those that hung with limited waits, which name the wait, and the others on small shapes under
# compute-sanitizer, which locates the error and would hang as well.
each_test() {
  local program=$1 part=$2 seconds=$3 processes=$4 test
  "$program" --jobs "$processes" --seconds "$(time_limit "$seconds")" "$part" | tee "$BUILD/tests.log"
  [ "${PIPESTATUS[0]}" = 0 ] && return 0
  local hung
  # A failed test follows its messages.
  hung=$(awk '/did not finish within/ { is_hung = 1 } /^(ok    |FAILED) / { if (is_hung && $1 == "FAILED") print $2; is_hung = 0 }' "$BUILD/tests.log" | sort -u)
  for test in $hung; do
    echo "  $test with limited waits:"
    if [ -x "$LIMITED" ] && "$LIMITED" --list | grep -qx "$test"; then
      "$LIMITED" --jobs 1 --seconds "$(time_limit 30)" "$test" 2>&1 | grep '^  ' | head -5
    else
      echo '  not built; build with cmake -DCAPSTAN_LIMITED_SPINS=ON'
    fi
  done
  [ "$DEVICE" = host ] || ! command -v compute-sanitizer > /dev/null && return 1
  for test in $(sed -n 's/^FAILED //p' "$BUILD/tests.log" | sort -u | grep -vxF "${hung:-.}" | head -4); do
    env -u CAPSTAN_TEST_FULL timeout --kill-after=5 "$(time_limit 40)" compute-sanitizer --tool memcheck --print-limit 20 "$program" "$test" > "$BUILD/sanitize-$test.log" 2>&1
    echo "  $test under memcheck:"
    grep -E '^=========' "$BUILD/sanitize-$test.log" | head -25
  done
  return 1
}

# Prints the test filter: $1 on a device, $2 on the CPU, where `make -C test/native test` already runs all tests.
test_filter() { [ "$DEVICE" = host ] && echo "$2" || echo "$1"; }

# One after the other, so that the first failure is the cause of the others.
phase_primitives() {
  local part
  for part in primitive_ kernel_conversions kernel_mma kernel_wgmma; do
    each_test "$KERNELS/gpu_ops" "$part" 10 1 || return 1
  done
}

# The kernel tests spend most of their time computing the reference on the host.
phase_ops() {
  local status=0
  each_test "$KERNELS/gpu_ops" "$(test_filter kernel_ kernel_norm_over_the_shapes)" 150 "$(jobs)" || status=1
  each_test "$NATIVE/gpu_tests" "$(test_filter cuda_decoder cuda_decoder_with_an_fp8_cache)" 90 "$(jobs)" || status=1
  return $status
}

phase_sanitize() {
  if [ "$DEVICE" = host ] || ! command -v compute-sanitizer > /dev/null; then
    echo 'compute-sanitizer is not installed'
    return 3
  fi
  local tool status=0 pid pids=()
  sanitized() { # name of the log, program, tests, tool
    env -u CAPSTAN_TEST_FULL timeout --kill-after=5 "$(time_limit 230)" compute-sanitizer --tool "$4" --print-limit 20 --error-exitcode 9 "$2" "$3" > "$BUILD/sanitize-$1.log" 2>&1
  }
  # In parallel: most of their time is spent on the host.
  for tool in memcheck racecheck initcheck synccheck; do
    sanitized "$tool" "$KERNELS/gpu_ops" kernel_ "$tool" & pids+=($!)
  done
  sanitized engine "$NATIVE/gpu_tests" cuda_engine_batch memcheck & pids+=($!)
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  grep -lq 'Device not supported' "$BUILD"/sanitize-{memcheck,racecheck,initcheck,synccheck}.log && { echo 'compute-sanitizer does not support the device of this machine'; return 3; }
  for tool in memcheck racecheck initcheck synccheck engine; do
    echo "== $tool"
    # The first errors, and the last tests that finished.
    grep -E '^=========' "$BUILD/sanitize-$tool.log" | head -20
    grep -E '^(ok    |FAILED)|SUMMARY' "$BUILD/sanitize-$tool.log" | tail -4
  done
  return $status
}

phase_model() {
  local status=0
  unset CAPSTAN_SOAK_SECONDS
  [ -n "${CAPSTAN_GOLDEN_RECORDS:-}" ] || { echo '  the golden records are missing'; status=1; }
  each_test "$NATIVE/gpu_tests" "$(test_filter cuda_engine cuda_engine_answers_like_the_cpu)" 150 4 || status=1
  [ "$DEVICE" = host ] || each_test "$NATIVE/gpu_tests" cuda_golden 150 1 || status=1
  return $status
}

phase_soak() {
  local status=0
  CAPSTAN_SOAK_SECONDS=${GPU_SOAK_SECONDS:-60} "$NATIVE/gpu_tests" cuda_engine_soak || status=1
  # Last, because the state of the device is undefined afterwards.
  CAPSTAN_GPU_FAULTS=$PWD/$KERNELS/gpu_faults.so "$NATIVE/gpu_tests" --jobs 1 --seconds "$(time_limit 45)" cuda_loss || status=1
  return $status
}

phase_bench() {
  local status=0 group read peak
  rm -f "$BUILD"/{kernels,torch,steps,clocks}.jsonl
  # Each group runs in a separate process, so that an error or a hang does not affect the others.
  for group in limits gemv gemm codes attention sample wgmma wgmma_attention; do
    read=$(sed -nE 's/.*"name": ?"read".*"gb_per_s": ?([0-9.]+).*/\1/p' "$BUILD/kernels.jsonl" 2>/dev/null)
    timeout --kill-after=5 "$(time_limit 45)" "$KERNELS/gpu_kernels" "${TINY[@]}" "read=${read:-0}" "$group" >> "$BUILD/kernels.jsonl" || { echo "  $group: exited with status $?"; status=1; }
  done
  torch() { PYTHONUNBUFFERED=1 timeout --kill-after=5 "$(time_limit "$1")" python3 benchmarks/gpu/torch_figures.py "${TORCH[@]}" "${@:2}" >> "$BUILD/torch.jsonl" || echo "PyTorch: ${*:2} did not finish"; }
  if python3 -c 'import torch' 2>/dev/null; then torch 40 limits; else echo 'PyTorch is not installed: no comparison, and no peak for the shares of steps'; fi
  peak=$(sed -nE 's/.*"name": ?"peak".*"tflop_per_s": ?([0-9.]+).*/\1/p' "$BUILD/torch.jsonl" 2>/dev/null)
  steps() { timeout --kill-after=5 "$(time_limit "$1")" "$NATIVE/gpu_steps" --shape "$SHAPE" --read-gb-per-s "${read:-0}" --tflop-per-s "${peak:-0}" "${@:2}" >> "$BUILD/steps.jsonl"; }
  # Keys and values come from a prefill. If that fails, measure without.
  steps 110 --only decode || steps 110 --only decode --fill-seconds 0 || { echo "  decodes: exited with status $?"; status=1; }
  if [ -n "$peak" ]; then torch 110 matmul attention model; fi
  steps 110 --only prefill || { echo "  prefills: exited with status $?"; status=1; }
  steps 40 --only decode --deterministic yes --fill-seconds 5 || { echo "  deterministic decodes: exited with status $?"; status=1; }
  for bits in int8 int4; do
    steps 30 --only decode --quantization $bits --fill-seconds 5 || { echo "  decodes with $bits: exited with status $?"; status=1; }
  done
  tail -n +$((${GPU_CLOCKS_FROM:-0} + 1)) "$BUILD/clocks.csv" 2>/dev/null |
    awk -F', *' '$1 > 0 { n++; sm += $1; mem += $2; watts += $3; if ($1 > top) top = $1; if ($4 > hot) hot = $4 }
         END { if (n) printf "{\"name\":\"clocks\",\"sm_mhz\":%.0f,\"sm_mhz_most\":%d,\"memory_mhz\":%.0f,\"watts\":%.0f,\"celsius_most\":%d}\n", sm / n, top, mem / n, watts / n, hot }' > "$BUILD/clocks.jsonl"
  return $status
}

phase_serve() {
  local node product=.
  node=$(command -v node || true)
  if [ -z "$node" ] && [ -x "$PACKED/product/node" ]; then
    product=$PACKED/product
    node=$PWD/$product/node
    ln -sfn "$PWD/models" "$product/models"
  fi
  if [ -z "$node" ] || [ ! -f "$product/dist/server/main.js" ]; then
    echo 'Node or dist/ is missing'
    return 3
  fi
  python3 benchmarks/gpu/serve.py --node "$node" --product "$product" --device cuda "${TINY[@]/#/--}" > "$BUILD/serve.jsonl"
}

# Prints the time limit of a phase in seconds.
seconds_of() {
  case $1 in
    build) echo 240 ;; primitives) echo 60 ;; ops | model) echo 200 ;; sanitize) echo 240 ;; bench) echo 330 ;; soak) echo $((${GPU_SOAK_SECONDS:-60} + 110)) ;; *) echo 200 ;;
  esac
}

run_phase() {
  local phase=$1 started=$SECONDS limit status name
  limit=$(seconds_of "$phase")
  limit=$((limit < SECONDS_LEFT_FOR + 30 - SECONDS ? limit : SECONDS_LEFT_FOR + 30 - SECONDS))
  [ "$DEVICE" = host ] && limit=1800
  mkdir -p "$BUILD/logs"
  printf '==== %s\n' "$phase"
  # A separate shell, so that a timeout can end it and its output is kept.
  GPU_PHASE_ENDS=$(($(date +%s) + limit)) GPU_CLOCKS_FROM=$(cat "$BUILD/clocks.csv" 2>/dev/null | wc -l) \
    timeout --kill-after=10 "$limit" benchmarks/gpu.sh "=$phase" > "$BUILD/logs/$phase.log" 2>&1
  status=$?
  case $status in 0) name=passed ;; 3) name=skipped ;; 124 | 137) name='timed out' ;; *) name=failed ;; esac
  tail -n "$([ $name = passed ] && echo 3 || echo 25)" "$BUILD/logs/$phase.log"
  report add "$FILE" --commit "$COMMIT" --phase "$phase" --status "$name" --seconds $((SECONDS - started)) --log "$BUILD/logs/$phase.log" \
    --lines $([ "$phase" = bench ] && echo "$BUILD"/{kernels,torch,steps,clocks}.jsonl) $([ "$phase" = serve ] && echo "$BUILD/serve.jsonl")
  # After every phase, because this call may be ended before the last one.
  if [ -n "${OUT:-}" ]; then tar -C "$BUILD" -czf "$RESULTS/gpu-logs.tar.gz" logs $(cd "$BUILD" && ls sanitize-*.log configure.log build.log ./*.jsonl clocks.csv 2>/dev/null) 2>/dev/null; fi
  [ $name = passed ] || [ $name = skipped ]
}

case ${1:-} in
  records | pack) "phase_$1"; exit ;;
  =*) "phase_${1#=}"; exit ;;
esac

if command -v node > /dev/null && [ -d node_modules ] && [ "$(cat "$RECORDS/commit" 2>/dev/null)" != "$COMMIT" ]; then phase_records; fi
[ -s "$RECORDS/golden.txt" ] && export CAPSTAN_GOLDEN_RECORDS=$PWD/$RECORDS/golden.txt
report machine "$FILE" --commit "$COMMIT"
report merge "$FILE" benchmarks/results/gpu/gpu-"${COMMIT:0:21}".json "$BUILD/results-${COMMIT:0:21}.json"
# Records the clocks of the GPU, and keeps its driver loaded between processes.
if [ "$DEVICE" != host ]; then
  nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader,nounits -l 1 > "$BUILD/clocks.csv" 2>/dev/null &
  trap "kill $!" EXIT
fi
HAS_PHASES=$(($# > 0))
ALL=(build primitives ops bench model serve sanitize soak)
if [ $# = 0 ]; then
  # Phases without a result, then failed ones.
  set -- build primitives
  for status in '' 'failed|timed out|skipped'; do
    for phase in "${ALL[@]:2}"; do [[ $(report status "$FILE" --commit "$COMMIT" --phase "$phase") =~ ^($status)$ ]] && set -- "$@" "$phase"; done
  done
fi
FAILED=0
for phase in "$@"; do
  if [ $HAS_PHASES = 0 ] && [ $((SECONDS + 45)) -gt "$SECONDS_LEFT_FOR" ]; then
    echo "==== $phase: not enough time, run the script again"
    continue
  fi
  if ! run_phase "$phase"; then
    FAILED=1
    [ "$phase" = primitives ] && break
  fi
  cp "$FILE" "$BUILD/results-${COMMIT:0:21}.json"
done
echo
report table "$FILE"
echo "$FILE"
exit $FAILED
