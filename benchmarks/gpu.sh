#!/usr/bin/env bash
# Builds for the GPU of this machine, then tests and measures on it: `npm run gpu`, or this script directly on a machine without Node.
# Requires nvcc 12.4 or newer, CMake, make, g++ and Python. Optional: PyTorch with transformers for comparisons, ncu and compute-sanitizer
# for their phases. Needs no network.
#
#     benchmarks/gpu.sh first | second | third     one call on a machine that is lent for minutes (docs/how-to/run-on-a-gpu.md)
#     benchmarks/gpu.sh [PHASE…]
#
#   first     build, limits, primitives, repeats, steps, ablations, timeline, counters, kernels
#   second    build, ops, model, serve, bench
#   third     build, sanitize, soak
#
#   build       capstan_cuda.so and the kernel tests with nvcc, and the engine tests with g++, in build/gpu; or nothing if they are packed
#   limits      clocks, bandwidths, the fastest matrix product of PyTorch, and the time between empty kernels
#   primitives  the single instructions that kernels are made of, 10 s each. A failure ends the script, because it explains all later ones
#   repeats     each kernel 200 times at a shape of Qwen2.5-1.5B: the bits must be the same, and some values as in references.tsv
#   steps       decodes of 1, 8, 64, 65 and 256 sequences of 1,024 tokens, and a prefill of 1,024
#   ablations   the same without one feature at a time (CAPSTAN_CUDA_WITHOUT)
#   timeline    the time of each kernel in these steps
#   counters    single launches under ncu
#   kernels     kernels compared with cuBLAS and the attention of PyTorch
#   ops         every kernel against double precision, and a small decoder through all of them
#   model       the whole engine, compared with the CPU and with transformers, and tests of bitwise equality
#   serve       the product over HTTP, from this tree or packed: the embedded model, which must answer as on the CPU, and random weights
#               of the Qwen2.5-1.5B shape if PyTorch is installed
#   bench       steps with 8,192 tokens, deterministic steps, and steps of transformers
#   sanitize    compute-sanitizer on small shapes: memcheck, racecheck, initcheck, synccheck
#   soak        random requests and aborts for GPU_SOAK_SECONDS (60), then tests that lose the device
#
# Without arguments: the phases of all three calls that have no result for this tree, then those that failed.
# The script ends when GPU_SECONDS (540) have passed. It prints a short table last, also after a failure or a timeout.
# Results: one JSON file per tree in GPU_RESULTS (default: $OUT if set, else benchmarks/results/gpu), merged with the results for the same
# tree in benchmarks/results/gpu and from the previous call on this machine. Copy it into benchmarks/results/gpu before the next call.
#
# GPU_DEVICE=host checks the script itself with kernels on the CPU (test/native/cuda_host): few tests, tiny shapes, and the embedded model
# over HTTP. Its results are temporary. test/native/gpu/rehearsal.sh runs it with planted faults.
#
# Before a machine that starts empty is used (benchmarks/gpu/pack.sh):
#   pack          all programs for compute capability 9.0 (needs nvcc, no GPU), and the records of the golden models, in build/gpu-records
#   pack_product  for the second call: the product with Node, and the golden models
#   aside         moves folders that the machine does not need out of the tree, which is too large to be sent; `restore` moves them back
#   size          fails if the tree and the packs are too large to be sent
#   records       the golden models in a format that needs no JavaScript, and the identity of the tree
set -uo pipefail
cd "$(dirname "$0")/.."

DEVICE=${GPU_DEVICE:-cuda}
SECONDS_LEFT_FOR=${GPU_SECONDS:-540}
BUILD=${GPU_BUILD:-build/gpu}
# Only this folder is sent to a remote machine. $BUILD is not, because it would replace the build of the previous call there.
RECORDS=build/gpu-records
RESULTS=${GPU_RESULTS:-${OUT:-benchmarks/results/gpu}}
[ "$DEVICE" = host ] && RESULTS=${GPU_RESULTS:-$BUILD/host}
mkdir -p "$BUILD" "$RECORDS" "$RESULTS"
# The identity of the source tree: its commit, and a hash of uncommitted changes.
tree_key() {
  local commit
  commit=$(git rev-parse --verify -q HEAD) || return 1
  git diff --quiet HEAD || commit=${commit:0:12}-$(git diff HEAD | sha1sum | cut -c1-8)
  echo "$commit"
}
# A remote machine may lack the history, and folders of the tree. It reads the recorded identity.
if [ -d node_modules ]; then COMMIT=$(tree_key); else COMMIT=$(cat "$RECORDS/commit" 2>/dev/null || tree_key); fi
COMMIT=${COMMIT:-unknown}
FILE=$RESULTS/gpu-${COMMIT:0:21}.json
for folder in /usr/local/cuda/bin /opt/torch/.venv/bin; do case :$PATH: in *":$folder:"*) ;; *) [ -d "$folder" ] && PATH=$PATH:$folder ;; esac; done
export PATH
report() { python3 benchmarks/gpu/report.py "$@"; }
jobs() { nproc; }

NATIVE=build/test-native/release
if [ "$DEVICE" = host ]; then
  KERNELS=${GPU_PROGRAMS:-$NATIVE} TINY=(tiny) SHAPE=tiny TORCH=(--device cpu --tiny)
  export CAPSTAN_CUDA_LIBRARY=$PWD/$NATIVE/capstan_cuda.so
  : "${GPU_SOAK_SECONDS:=2}"
else
  KERNELS=$BUILD/cmake TINY=() SHAPE=qwen2.5-1.5b TORCH=(--device cuda)
  export CAPSTAN_CUDA_LIBRARY=$PWD/$BUILD/cmake/cuda/capstan_cuda.so
  export CAPSTAN_TEST_FULL=1
fi

. benchmarks/gpu/pack.sh
PACKED=$BUILD/packed
if [ "$DEVICE" != host ] && [ "$(cat "$RECORDS/packed" 2>/dev/null)" = "$COMMIT" ]; then
  unpack
  # Use the packed programs if they run on this machine.
  if "$PACKED/bin/gpu_ops" --list > /dev/null 2>&1 && "$PACKED/bin/gpu_tests" --list > /dev/null 2>&1; then
    KERNELS=$PACKED/bin NATIVE=$PACKED/bin
    export CAPSTAN_CUDA_LIBRARY=$PWD/$PACKED/bin/capstan_cuda.so
  fi
fi
. benchmarks/gpu/phases.sh

run_phase() {
  local phase=$1 started=$SECONDS limit status name
  limit=$(seconds_of "$phase")
  limit=$((limit < SECONDS_LEFT_FOR - SECONDS ? limit : SECONDS_LEFT_FOR - SECONDS))
  mkdir -p "$BUILD/logs"
  printf '==== %s, at most %d s\n' "$phase" "$limit"
  # A separate shell, so that a timeout can end it and its output is kept.
  GPU_PHASE_ENDS=$(($(date +%s) + limit)) GPU_CLOCKS_FROM=$(cat "$BUILD/clocks.csv" 2>/dev/null | wc -l) \
    timeout --kill-after=10 "$limit" benchmarks/gpu.sh "=$phase" > "$BUILD/logs/$phase.log" 2>&1 &
  RUNNING=$!
  wait "$RUNNING"  # a signal ends this, unlike a command in the foreground
  status=$?
  RUNNING=
  case $status in 0) name=passed ;; 3) name=skipped ;; 124 | 137) name='timed out' ;; *) name=failed ;; esac
  tail -n "$([ $name = passed ] && echo 3 || echo 25)" "$BUILD/logs/$phase.log"
  report add "$FILE" --commit "$COMMIT" --phase "$phase" --status "$name" --seconds $((SECONDS - started)) --log "$BUILD/logs/$phase.log" --lines "$BUILD/$phase"/*.jsonl
  # After every phase, because this call may be ended before the last one.
  if [ -n "${OUT:-}" ]; then tar -C "$BUILD" -czf "$RESULTS/gpu-logs.tar.gz" logs $(cd "$BUILD" && ls -d sanitize-*.log configure.log build.log ./*/*.jsonl ./*/*.csv clocks.csv 2>/dev/null) 2>/dev/null; fi
  [ $name = passed ] || [ $name = skipped ]
}

case ${1:-} in
  records | pack | pack_product | aside | restore | size) "phase_$1"; exit ;;
  =*) rm -rf "${BUILD:?}/${1#=}"; mkdir -p "$BUILD/${1#=}"; "phase_${1#=}"; exit ;;
esac

CLOCKS= RUNNING=
finish() {
  local status=$?
  trap - EXIT
  for process in $CLOCKS $RUNNING; do kill "$process" 2>/dev/null; done
  cp "$FILE" "$BUILD/results-${COMMIT:0:21}.json" 2>/dev/null
  echo
  report table "$FILE"
  echo "$FILE"
  exit $status
}
trap finish EXIT
trap 'exit 143' TERM INT

if [ -d node_modules ] && [ "$(cat "$RECORDS/commit" 2>/dev/null)" != "$COMMIT" ]; then phase_records; fi
[ -s "$RECORDS/golden.txt" ] && export CAPSTAN_GOLDEN_RECORDS=$PWD/$RECORDS/golden.txt
report machine "$FILE" --commit "$COMMIT"
report merge "$FILE" benchmarks/results/gpu/gpu-"${COMMIT:0:21}".json "$BUILD/results-${COMMIT:0:21}.json"
# Records the clocks of the GPU, and keeps its driver loaded between processes.
if [ "$DEVICE" != host ]; then
  nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader,nounits -l 1 > "$BUILD/clocks.csv" 2>/dev/null &
  CLOCKS=$!
fi
FIRST=(build limits primitives repeats steps ablations timeline counters kernels)
SECOND=(build ops model serve bench)
THIRD=(build sanitize soak)
case ${1:-} in
  first) set -- "${FIRST[@]}" ;;
  second) set -- "${SECOND[@]}" ;;
  third) set -- "${THIRD[@]}" ;;
  '')
    # Phases without a result, then failed ones.
    set -- build primitives
    for status in '' 'failed|timed out|skipped'; do
      for phase in "${FIRST[@]:1}" "${SECOND[@]:1}" "${THIRD[@]:1}"; do [[ $phase != primitives && $(report status "$FILE" --commit "$COMMIT" --phase "$phase") =~ ^($status)$ ]] && set -- "$@" "$phase"; done
    done
    ;;
esac
FAILED=0
for phase in "$@"; do
  # Less time is not worth the start of a phase.
  if [ $((SECONDS + 15)) -gt "$SECONDS_LEFT_FOR" ]; then
    echo "==== $phase: not enough time, run the script again"
    FAILED=1
    continue
  fi
  run_phase "$phase" && continue
  FAILED=1
  case $phase in build | primitives) echo "==== stopped: $phase explains what would follow"; break ;; esac
done
exit $FAILED
