#!/usr/bin/env bash
# Builds for the GPU present, tests and measures on it: `npm run gpu`, or this script itself on a machine without Node. It needs nvcc (12.4 or newer), CMake, make,
# g++ and Python; PyTorch with transformers for the comparison, compute-sanitizer for its phase. No network.
#
#     benchmarks/gpu.sh [PHASE…]
#
#   records   here, before a machine is borrowed (needs Node): what the golden models are, for programs without JavaScript, and the commit → build/gpu
#   build     capstan_cuda.so and the kernels' tests with nvcc, the engine's tests with g++ → build/gpu
#   ops       every kernel against double precision, and a small decoder through all of them
#   sanitize  compute-sanitizer over small shapes: memcheck, racecheck, initcheck, synccheck
#   model     the whole engine: like the CPU, like transformers, and what must not change a bit
#   soak      random requests and aborts for GPU_SOAK_SECONDS (60)
#   bench     kernels and steps beside this run's ceilings, PyTorch and transformers
#   serve     the product itself over HTTP (needs Node and dist/): the embedded model, and random weights of the Qwen2.5-1.5B shape where PyTorch is
#
# Without a phase: build ops model bench soak sanitize, leaving out what has passed for this commit before, and what would begin beyond GPU_SECONDS (540) of this
# call; call again for the rest. Results: one JSON file per commit in GPU_RESULTS (default $OUT where that is set, else benchmarks/results/gpu), merged with what
# benchmarks/results/gpu holds of the commit.
#
# GPU_DEVICE=host runs the kernels on the CPU (test/native/cuda_host) with tiny shapes, to see that the script works; its results are not kept.
#
# A borrowed machine starts bare, with the working tree and what is carried along. Before: `npm run gpu -- records`, and carry build/gpu. For `serve` on a machine
# without Node also carry dist and .gpu-node, made here (about 50 MB) by
#
#     mkdir -p .gpu-node && xz -T0 -c "$(command -v node)" > .gpu-node/node.xz && cp package.json package-lock.json .gpu-node/ && npm ci --omit=dev --ignore-scripts --prefix .gpu-node
#
# and the addon in build/Release/capstan.node, which that machine can also build where node-gyp finds Node's headers; .gpu-node is to be named in .git/info/exclude.
set -uo pipefail
cd "$(dirname "$0")/.."

DEVICE=${GPU_DEVICE:-cuda}
SECONDS_LEFT_FOR=${GPU_SECONDS:-540}
BUILD=build/gpu
RESULTS=${GPU_RESULTS:-${OUT:-benchmarks/results/gpu}}
[ "$DEVICE" = host ] && RESULTS=${GPU_RESULTS:-$BUILD/host}
mkdir -p "$BUILD" "$RESULTS"
COMMIT=$(git rev-parse HEAD 2>/dev/null || cat "$BUILD/commit" 2>/dev/null || echo unknown)
FILE=$RESULTS/gpu-${COMMIT:0:12}.json
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

# nvcc's name of the card present: 9.0 needs the architecture's own instructions.
card_arch() {
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  case $capability in
    90) echo 90a ;;
    8[0-9] | 120) echo "$capability" ;;
    *) echo "expected a card of compute capability 8.0 to 9.0 or 12.0, got ${capability:-none}" >&2; return 1 ;;
  esac
}

phase_records() {
  git rev-parse HEAD > "$BUILD/commit"
  node -r ./test/oracle/register-ts.cjs test/oracle/records.ts "$BUILD/golden.txt"
}

phase_build() {
  if [ "$DEVICE" = host ]; then
    make -C test/native -j"$(jobs)" -s gpu cuda_host
    return
  fi
  local arch
  arch=$(card_arch) || return 1
  CAPSTAN_CUDA_ARCHS=$arch cmake -S test/native/gpu -B "$BUILD/cmake" -DCMAKE_BUILD_TYPE=Release -DCAPSTAN_STRICT=OFF > "$BUILD/configure.log" || { tail -20 "$BUILD/configure.log"; return 1; }
  # The engine's tests need no nvcc: both at once.
  make -C test/native -j"$(jobs)" -s WERROR= gpu & local make_job=$!
  cmake --build "$BUILD/cmake" --parallel "$(jobs)" > "$BUILD/build.log" 2>&1 || { grep -E 'error' "$BUILD/build.log" | head -20; tail -5 "$BUILD/build.log"; wait "$make_job"; return 1; }
  wait "$make_job"
}

# Each test of a program, by a part of its name, in a process of its own: an error of CUDA ends all that the process would do after it, and a kernel may never end.
each_test() {
  local program=$1 part=$2 seconds=$3 test code status=0
  for test in $("$program" --list | grep "$part"); do
    timeout --kill-after=5 "$seconds" "$program" "$test" | grep -vE '^[0-9]+ passed'
    code=${PIPESTATUS[0]}
    [ "$code" = 0 ] && continue
    status=1
    # Those that end by themselves say so themselves.
    [ "$code" = 1 ] || printf '  ended with status %s (124, 137: after %s s)\nFAILED %s\n' "$code" "$seconds" "$test"
  done
  return $status
}

phase_ops() {
  local status=0
  each_test "$KERNELS/gpu_ops" kernel_ 100 || status=1
  each_test "$NATIVE/gpu_tests" cuda_decoder 60 || status=1
  return $status
}

phase_sanitize() {
  if [ "$DEVICE" = host ] || ! command -v compute-sanitizer > /dev/null; then
    echo 'there is no compute-sanitizer'
    return 3
  fi
  local tool status=0
  for tool in memcheck racecheck initcheck synccheck; do
    echo "== $tool"
    env -u CAPSTAN_TEST_FULL timeout 80 compute-sanitizer --tool "$tool" --error-exitcode 9 "$KERNELS/gpu_ops" kernel_ > "$BUILD/sanitize-$tool.log" 2>&1 || status=1
    grep -q 'Device not supported' "$BUILD/sanitize-$tool.log" && { echo 'compute-sanitizer cannot use the device of this machine'; return 3; }
    tail -25 "$BUILD/sanitize-$tool.log"
  done
  echo '== memcheck, the engine'
  env -u CAPSTAN_TEST_FULL timeout 80 compute-sanitizer --tool memcheck --error-exitcode 9 "$NATIVE/gpu_tests" cuda_engine_company > "$BUILD/sanitize-engine.log" 2>&1 || status=1
  tail -10 "$BUILD/sanitize-engine.log"
  return $status
}

phase_model() {
  local status=0
  unset CAPSTAN_SOAK_SECONDS
  each_test "$NATIVE/gpu_tests" cuda_engine 90 || status=1
  each_test "$NATIVE/gpu_tests" cuda_golden 90 || status=1
  return $status
}

phase_soak() {
  CAPSTAN_SOAK_SECONDS=${GPU_SOAK_SECONDS:-60} "$NATIVE/gpu_tests" cuda_engine_soak
}

phase_bench() {
  local clocks=0 status=0 read peak
  rm -f "$BUILD"/{kernels,torch,steps,clocks}.jsonl
  if [ "$DEVICE" != host ]; then
    nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader,nounits -l 1 > "$BUILD/clocks.csv" &
    clocks=$!
  fi
  timeout --kill-after=5 120 "$KERNELS/gpu_kernels" "${TINY[@]}" > "$BUILD/kernels.jsonl" || status=1
  if python3 -c 'import torch' 2>/dev/null; then
    timeout 120 python3 benchmarks/gpu/torch_figures.py "${TORCH[@]}" > "$BUILD/torch.jsonl" || echo 'PyTorch did not come to its end'
  else
    echo 'there is no PyTorch: nothing to compare with'
  fi
  read=$(sed -nE 's/.*"name": ?"read".*"gb_per_s": ?([0-9.]+).*/\1/p' "$BUILD/kernels.jsonl")
  peak=$(sed -nE 's/.*"name": ?"peak".*"tflop_per_s": ?([0-9.]+).*/\1/p' "$BUILD/torch.jsonl" 2>/dev/null)
  timeout 240 "$NATIVE/gpu_steps" --shape "$SHAPE" --read-gb-per-s "${read:-4300}" --tflop-per-s "${peak:-790}" > "$BUILD/steps.jsonl" || status=1
  if [ "$clocks" != 0 ]; then
    kill "$clocks"
    awk -F', *' '$1 > 0 { n++; sm += $1; mem += $2; watts += $3; if ($1 > top) top = $1; if ($4 > hot) hot = $4 }
         END { if (n) printf "{\"name\":\"clocks\",\"sm_mhz\":%.0f,\"sm_mhz_most\":%d,\"memory_mhz\":%.0f,\"watts\":%.0f,\"celsius_most\":%d}\n", sm / n, top, mem / n, watts / n, hot }' "$BUILD/clocks.csv" > "$BUILD/clocks.jsonl"
  fi
  return $status
}

phase_serve() {
  local node
  node=$(command -v node || true)
  if [ -z "$node" ] && [ -s .gpu-node/node.xz ]; then
    xz -dc .gpu-node/node.xz > .gpu-node/node && chmod +x .gpu-node/node && node=$PWD/.gpu-node/node
    [ -e node_modules ] || ln -s .gpu-node/node_modules node_modules
  fi
  if [ -z "$node" ] || [ ! -f dist/server/main.js ]; then
    echo 'there is no Node, or no dist/'
    return 3
  fi
  python3 benchmarks/gpu/serve.py --node "$node" --device "$([ "$DEVICE" = host ] && echo cpu || echo cuda)" "${TINY[@]/#/--}" > "$BUILD/serve.jsonl"
}

# Seconds that a phase may take; it does not begin where fewer are left of this call.
seconds_of() {
  case $1 in
    build) echo 300 ;; ops | model) echo 200 ;; sanitize) echo 400 ;; bench) echo 330 ;; soak) echo $((${GPU_SOAK_SECONDS:-60} + 30)) ;; *) echo 200 ;;
  esac
}

run_phase() {
  local phase=$1 begun=$SECONDS limit status name
  limit=$(seconds_of "$phase")
  [ $IS_GIVEN = 1 ] || limit=$((limit < SECONDS_LEFT_FOR + 30 - SECONDS ? limit : SECONDS_LEFT_FOR + 30 - SECONDS))
  mkdir -p "$BUILD/logs"
  printf '==== %s\n' "$phase"
  # A shell of its own, which a time limit can end: what it has found until then is kept.
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

if [ "${1:-}" = records ]; then
  phase_records
  exit
fi
case ${1:-} in
  =*) "phase_${1#=}"; exit ;;
esac

if command -v node > /dev/null && [ -d node_modules ] && [ "$(cat "$BUILD/commit" 2>/dev/null)" != "$COMMIT" ]; then phase_records; fi
[ -s "$BUILD/golden.txt" ] && export CAPSTAN_GOLDEN_RECORDS=$PWD/$BUILD/golden.txt
report machine "$FILE" --commit "$COMMIT"
report merge "$FILE" benchmarks/results/gpu/gpu-"${COMMIT:0:12}".json
IS_GIVEN=$(($# > 0))
[ $# -gt 0 ] || set -- build ops model bench soak sanitize
FAILED=0
for phase in "$@"; do
  # What was built elsewhere is not here.
  if [ $IS_GIVEN = 0 ] && report has "$FILE" --commit "$COMMIT" --phase "$phase" && { [ "$phase" != build ] || [ -x "$KERNELS/gpu_ops" ]; }; then
    continue
  fi
  if [ $IS_GIVEN = 0 ] && [ $((SECONDS + $(seconds_of "$phase") * 2 / 3)) -gt "$SECONDS_LEFT_FOR" ]; then
    echo "==== $phase: left for the next call"
    continue
  fi
  run_phase "$phase" || FAILED=1
  [ "$phase" = build ] && [ $FAILED = 1 ] && break
done
echo
report table "$FILE"
echo "$FILE"
exit $FAILED
