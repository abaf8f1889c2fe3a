#!/usr/bin/env bash
# Builds for the GPU present, tests and measures on it: `npm run gpu`, or this script itself on a machine without Node. It needs nvcc (12.4 or newer), CMake, make,
# g++ and Python; PyTorch with transformers for the comparison, compute-sanitizer for its phase. No network.
#
#     benchmarks/gpu.sh [PHASE…]
#
#   records   here, before a machine is borrowed (needs Node): what the golden models are, for programs without JavaScript, and what the tree is → build/gpu-records
#   pack      the same, all programs built for compute capability 9.0 (needs nvcc, no card), which then are not built there, and the product with Node
#   build     capstan_cuda.so and the kernels' tests with nvcc, the engine's tests with g++ → build/gpu
#   ops       every kernel against double precision, and a small decoder through all of them
#   sanitize  compute-sanitizer over small shapes: memcheck, racecheck, initcheck, synccheck
#   model     the whole engine: like the CPU, like transformers, and what must not change a bit
#   soak      random requests and aborts for GPU_SOAK_SECONDS (60); then the device is lost on purpose
#   bench     kernels and steps beside this run's ceilings, PyTorch and transformers
#   serve     the product itself over HTTP, as it is here or as packed: the embedded model, which answers as on the CPU, and random weights of the Qwen2.5-1.5B shape where PyTorch is
#
# Without a phase: build, then of ops bench model serve sanitize soak what was not run for this tree before, then what failed, until GPU_SECONDS (540) of this call are over.
# Results: one JSON file per tree in GPU_RESULTS (default $OUT where that is set, else benchmarks/results/gpu), merged with what benchmarks/results/gpu and, on a machine
# that is still warm, the call before have of it. Between two calls copy the JSON of the first into benchmarks/results/gpu.
#
# GPU_DEVICE=host runs the kernels on the CPU (test/native/cuda_host): few tests and tiny shapes, to see that the script works, and the product over HTTP with the
# embedded model; its results are not kept.
#
# A borrowed machine starts bare, with the working tree and what is carried along. Before: commit, `npm run gpu -- pack`, and carry build/gpu-records in every call: with
# the tree 62 MB.
set -uo pipefail
cd "$(dirname "$0")/.."

DEVICE=${GPU_DEVICE:-cuda}
SECONDS_LEFT_FOR=${GPU_SECONDS:-540}
BUILD=build/gpu
# Carried alone, never $BUILD: what is carried takes the place of what is there, the build of the call before included.
RECORDS=build/gpu-records
RESULTS=${GPU_RESULTS:-${OUT:-benchmarks/results/gpu}}
[ "$DEVICE" = host ] && RESULTS=${GPU_RESULTS:-$BUILD/host}
mkdir -p "$BUILD" "$RECORDS" "$RESULTS"
# What the tree is: its commit, and more where it differs from that. On a borrowed machine, which need not have the history, what was written down before.
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

# What `pack` has built elsewhere for this very tree. Unpacked once, into a folder that a borrowed machine keeps while it is warm.
PACKED=$BUILD/packed
if [ "$(cat "$RECORDS/packed" 2>/dev/null)" = "$COMMIT" ] && [ "$(cat "$PACKED/commit" 2>/dev/null)" != "$COMMIT" ]; then
  rm -rf "$PACKED" && mkdir -p "$PACKED" && { tar -xJf "$RECORDS/pack.tar.xz" -C "$PACKED" || python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$RECORDS/pack.tar.xz" "$PACKED"; } && cp "$RECORDS/packed" "$PACKED/commit"
fi
# The programs, where they run here.
if [ "$DEVICE" != host ] && [ "$(cat "$PACKED/commit" 2>/dev/null)" = "$COMMIT" ] && "$PACKED/bin/gpu_ops" --list > /dev/null 2>&1 && "$PACKED/bin/gpu_tests" --list > /dev/null 2>&1; then
  KERNELS=$PACKED/bin NATIVE=$PACKED/bin
  export CAPSTAN_CUDA_LIBRARY=$PWD/$PACKED/bin/capstan_cuda.so
fi

# What to build for the card present. 9.0 needs the architecture's own instructions; between 9.0 and 12.0 the default build has no code but PTX of 8.0, which the driver translates.
card_arch() {
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  case $capability in
    90) echo 90a ;;
    8[0-9]) echo "$capability" ;;
    10[0-9] | 11[0-9]) echo 80-virtual ;;
    12[0-9]) echo 120 ;;
    *) echo "expected a card of compute capability 8.0 to 12.x, got ${capability:-none}" >&2; return 1 ;;
  esac
}

phase_records() {
  tree_key > "$RECORDS/commit"
  node -r ./test/oracle/register-ts.cjs test/oracle/records.ts "$RECORDS/golden.txt"
}

# The product as npm would install it, with Node and without what other platforms need, in folder $1.
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

# For a machine like this one but with a card of compute capability 9.0.
phase_pack() {
  local folder=$BUILD/pack
  phase_records || return 1
  rm -rf "$RECORDS/packed" "$folder/bin" "$folder/product"
  mkdir -p "$folder/bin" "$folder/product"
  CAPSTAN_CUDA_ARCHS=90a cmake -S test/native/gpu -B "$folder/cmake" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_FLAGS=-lineinfo > "$BUILD/configure.log" || return 1
  cmake --build "$folder/cmake" --parallel "$(jobs)" > "$BUILD/pack.log" 2>&1 || { grep error "$BUILD/pack.log"; return 1; }
  make -C test/native -j"$(jobs)" -s gpu || return 1
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
  arch=$(card_arch) || return 1
  if [ "$KERNELS" = "$PACKED/bin" ]; then
    [ "$arch" = 90a ] && { echo 'built elsewhere'; return 0; }
    echo "what was built elsewhere is for compute capability 9.0, not $arch"
    return 1
  fi
  # Of another folder, carried along.
  grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD/test/native/gpu" "$BUILD/cmake/CMakeCache.txt" 2>/dev/null || rm -rf "$BUILD/cmake"
  CAPSTAN_CUDA_ARCHS=$arch cmake -S test/native/gpu -B "$BUILD/cmake" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_FLAGS=-lineinfo > "$BUILD/configure.log" || { tail -20 "$BUILD/configure.log"; return 1; }
  # The engine's tests need no nvcc: both at once.
  make -C test/native -j"$(jobs)" -k -s WERROR= gpu & local make_job=$!
  # What cannot be built takes nothing with it that can.
  cmake --build "$BUILD/cmake" --parallel "$(jobs)" -- -k > "$BUILD/build.log" 2>&1 || { grep -E 'error' "$BUILD/build.log" | head -20; tail -5 "$BUILD/build.log"; status=1; }
  wait "$make_job" || status=1
  return $status
}

# Seconds that a step of the phase may take: what it is given, or what is left of the phase. An emulated device takes what it takes.
within() {
  [ "$DEVICE" = host ] && { echo 600; return; }
  local left=$((${GPU_PHASE_ENDS:-$(($(date +%s) + 3600))} - $(date +%s) - 8))
  echo $((left < $1 ? (left > 1 ? left : 1) : $1))
}

# The tests of a program by a part of their names, each in a process of its own, so many at a time: an error of CUDA ends all that a process would do after it, and a
# kernel may never end. Those that failed run again, on small shapes, under compute-sanitizer, which says where.
each_test() {
  local program=$1 part=$2 seconds=$3 processes=$4 test
  "$program" --jobs "$processes" --seconds "$(within "$seconds")" "$part" | tee "$BUILD/tests.log"
  [ "${PIPESTATUS[0]}" = 0 ] && return 0
  [ "$DEVICE" = host ] || ! command -v compute-sanitizer > /dev/null && return 1
  for test in $(sed -n 's/^FAILED //p' "$BUILD/tests.log" | head -4); do
    env -u CAPSTAN_TEST_FULL timeout --kill-after=5 "$(within 40)" compute-sanitizer --tool memcheck --print-limit 20 "$program" "$test" > "$BUILD/sanitize-$test.log" 2>&1
    echo "  $test under memcheck:"
    grep -E '^=========' "$BUILD/sanitize-$test.log" | head -25
  done
  return 1
}

# Tests by a part of their names: on a device $1; on the CPU, where `make -C test/native test` runs them all, $2 to see that the script works.
part() { [ "$DEVICE" = host ] && echo "$2" || echo "$1"; }

# Most of the time of the kernels' tests is the host's, which finds out what they should come to.
phase_ops() {
  local status=0
  each_test "$KERNELS/gpu_ops" "$(part kernel_ kernel_norm_over_the_shapes)" 150 "$(jobs)" || status=1
  each_test "$NATIVE/gpu_tests" "$(part cuda_decoder cuda_decoder_with_an_fp8_cache)" 90 "$(jobs)" || status=1
  return $status
}

phase_sanitize() {
  if [ "$DEVICE" = host ] || ! command -v compute-sanitizer > /dev/null; then
    echo 'there is no compute-sanitizer'
    return 3
  fi
  local tool status=0 pid pids=()
  sanitized() { # name of the log, program, tests, tool
    env -u CAPSTAN_TEST_FULL timeout --kill-after=5 "$(within 230)" compute-sanitizer --tool "$4" --print-limit 20 --error-exitcode 9 "$2" "$3" > "$BUILD/sanitize-$1.log" 2>&1
  }
  # All at once: they take turns on the device, and most of their time is the host's.
  for tool in memcheck racecheck initcheck synccheck; do
    sanitized "$tool" "$KERNELS/gpu_ops" kernel_ "$tool" & pids+=($!)
  done
  sanitized engine "$NATIVE/gpu_tests" cuda_engine_company memcheck & pids+=($!)
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  grep -lq 'Device not supported' "$BUILD"/sanitize-{memcheck,racecheck,initcheck,synccheck}.log && { echo 'compute-sanitizer cannot use the device of this machine'; return 3; }
  for tool in memcheck racecheck initcheck synccheck engine; do
    echo "== $tool"
    # The first errors say most; the last test that ended says how far it came.
    grep -E '^=========' "$BUILD/sanitize-$tool.log" | head -20
    grep -E '^(ok    |FAILED)|SUMMARY' "$BUILD/sanitize-$tool.log" | tail -4
  done
  return $status
}

phase_model() {
  local status=0
  unset CAPSTAN_SOAK_SECONDS
  [ -n "${CAPSTAN_GOLDEN_RECORDS:-}" ] || { echo '  there are no golden records'; status=1; }
  each_test "$NATIVE/gpu_tests" "$(part cuda_engine cuda_engine_answers_like_the_cpu)" 150 4 || status=1
  [ "$DEVICE" = host ] || each_test "$NATIVE/gpu_tests" cuda_golden 150 1 || status=1
  return $status
}

phase_soak() {
  local status=0
  CAPSTAN_SOAK_SECONDS=${GPU_SOAK_SECONDS:-60} "$NATIVE/gpu_tests" cuda_engine_soak || status=1
  # Last of all, as nobody knows what is left of the device afterwards.
  CAPSTAN_GPU_FAULTS=$PWD/$KERNELS/gpu_faults.so "$NATIVE/gpu_tests" --jobs 1 --seconds "$(within 45)" cuda_loss || status=1
  return $status
}

phase_bench() {
  local status=0 group read peak
  rm -f "$BUILD"/{kernels,torch,steps,clocks}.jsonl
  # In groups, each in a process of its own: what one breaks or hangs in, the others are measured without.
  for group in limits gemv gemm attention sample wgmma wgmma_attention; do
    read=$(sed -nE 's/.*"name": ?"read".*"gb_per_s": ?([0-9.]+).*/\1/p' "$BUILD/kernels.jsonl" 2>/dev/null)
    timeout --kill-after=5 "$(within 45)" "$KERNELS/gpu_kernels" "${TINY[@]}" "read=${read:-0}" "$group" >> "$BUILD/kernels.jsonl" || { echo "  $group: ended with status $?"; status=1; }
  done
  torch() { PYTHONUNBUFFERED=1 timeout --kill-after=5 "$(within "$1")" python3 benchmarks/gpu/torch_figures.py "${TORCH[@]}" "${@:2}" >> "$BUILD/torch.jsonl" || echo "PyTorch's ${*:2} did not come to an end"; }
  if python3 -c 'import torch' 2>/dev/null; then torch 40 limits; else echo 'there is no PyTorch: nothing to compare with, and no peak that steps have a share of'; fi
  peak=$(sed -nE 's/.*"name": ?"peak".*"tflop_per_s": ?([0-9.]+).*/\1/p' "$BUILD/torch.jsonl" 2>/dev/null)
  steps() { timeout --kill-after=5 "$(within "$1")" "$NATIVE/gpu_steps" --shape "$SHAPE" --read-gb-per-s "${read:-0}" --tflop-per-s "${peak:-0}" "${@:2}" >> "$BUILD/steps.jsonl"; }
  # Keys and values come from a prefill, where that works.
  steps 110 --only decode || steps 110 --only decode --fill-seconds 0 || { echo "  decodes: ended with status $?"; status=1; }
  if [ -n "$peak" ]; then torch 110 matmul attention model; fi
  steps 110 --only prefill || { echo "  prefills: ended with status $?"; status=1; }
  steps 40 --only decode --deterministic yes --fill-seconds 5 || { echo "  deterministic decodes: ended with status $?"; status=1; }
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
    echo 'there is no Node, or no dist/'
    return 3
  fi
  python3 benchmarks/gpu/serve.py --node "$node" --product "$product" --device cuda "${TINY[@]/#/--}" > "$BUILD/serve.jsonl"
}

# Seconds that a phase may take; it does not begin where fewer are left of this call.
seconds_of() {
  case $1 in
    build) echo 240 ;; ops | model) echo 200 ;; sanitize) echo 240 ;; bench) echo 330 ;; soak) echo $((${GPU_SOAK_SECONDS:-60} + 110)) ;; *) echo 200 ;;
  esac
}

run_phase() {
  local phase=$1 begun=$SECONDS limit status name
  limit=$(seconds_of "$phase")
  limit=$((limit < SECONDS_LEFT_FOR + 30 - SECONDS ? limit : SECONDS_LEFT_FOR + 30 - SECONDS))
  [ "$DEVICE" = host ] && limit=1800
  mkdir -p "$BUILD/logs"
  printf '==== %s\n' "$phase"
  # A shell of its own, which a time limit can end: what it has found until then is kept.
  GPU_PHASE_ENDS=$(($(date +%s) + limit)) GPU_CLOCKS_FROM=$(cat "$BUILD/clocks.csv" 2>/dev/null | wc -l) \
    timeout --kill-after=10 "$limit" benchmarks/gpu.sh "=$phase" > "$BUILD/logs/$phase.log" 2>&1
  status=$?
  case $status in 0) name=passed ;; 3) name=skipped ;; 124 | 137) name='timed out' ;; *) name=failed ;; esac
  tail -n "$([ $name = passed ] && echo 3 || echo 25)" "$BUILD/logs/$phase.log"
  report add "$FILE" --commit "$COMMIT" --phase "$phase" --status "$name" --seconds $((SECONDS - begun)) --log "$BUILD/logs/$phase.log" \
    --lines $([ "$phase" = bench ] && echo "$BUILD"/{kernels,torch,steps,clocks}.jsonl) $([ "$phase" = serve ] && echo "$BUILD/serve.jsonl")
  # Now, as the call may end before the last phase does.
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
# Says how fast the card runs all along, and keeps its driver awake between processes.
if [ "$DEVICE" != host ]; then
  nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader,nounits -l 1 > "$BUILD/clocks.csv" 2>/dev/null &
  trap "kill $!" EXIT
fi
IS_GIVEN=$(($# > 0))
ALL=(build ops bench model serve sanitize soak)
if [ $# = 0 ]; then
  # What was not run yet, then what failed.
  set -- build
  for status in '' 'failed|timed out|skipped'; do
    for phase in "${ALL[@]:1}"; do [[ $(report status "$FILE" --commit "$COMMIT" --phase "$phase") =~ ^($status)$ ]] && set -- "$@" "$phase"; done
  done
fi
FAILED=0
for phase in "$@"; do
  if [ $IS_GIVEN = 0 ] && [ $((SECONDS + 45)) -gt "$SECONDS_LEFT_FOR" ]; then
    echo "==== $phase: left for the next call"
    continue
  fi
  run_phase "$phase" || FAILED=1
  cp "$FILE" "$BUILD/results-${COMMIT:0:21}.json"
done
echo
report table "$FILE"
echo "$FILE"
exit $FAILED
