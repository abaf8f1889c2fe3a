# Sourced by benchmarks/gpu.sh: its phases. A phase writes its measurements to $BUILD/PHASE/*.jsonl.

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

# Builds with nvcc: folder, architecture, options of cmake, and after -- options of cmake --build.
build_cuda() {
  local folder=$1 arch=$2 options=()
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  [ $# -gt 0 ] && shift
  # Discard a CMake cache from another folder.
  grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD/test/native/gpu" "$folder/CMakeCache.txt" 2>/dev/null || rm -rf "$folder"
  CAPSTAN_CUDA_ARCHS=$arch cmake -S test/native/gpu -B "$folder" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_FLAGS=-lineinfo "${options[@]}" > "$BUILD/configure.log" || { tail -20 "$BUILD/configure.log"; return 1; }
  # -k builds as much as possible after an error.
  cmake --build "$folder" --parallel "$(jobs)" "$@" -- -k > "$BUILD/build.log" 2>&1 || { grep -E 'error' "$BUILD/build.log" | head -20; tail -5 "$BUILD/build.log"; return 1; }
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
  # The engine tests need no nvcc, so both builds run in parallel.
  make -C test/native -j"$(jobs)" -k -s WERROR= gpu & local make_job=$!
  build_cuda "$BUILD/cmake" "$arch" || status=1
  wait "$make_job" || status=1
  return $status
}

# Prints the seconds until the phase ends.
time_left() {
  local left=$((${GPU_PHASE_ENDS:-$(($(date +%s) + 3600))} - $(date +%s) - 8))
  echo $((left > 1 ? left : 1))
}
# Prints the time limit of a command in seconds: $1, or less if the phase ends earlier.
time_limit() {
  local left most=$1
  left=$(time_left)
  # The emulated kernels are slow.
  [ "$DEVICE" = host ] && most=${GPU_TEST_SECONDS:-$((most * 10))}
  echo $((left < most ? left : most))
}

# Runs a program with limited waits, which name the wait that does not end. Without it prints how to build it.
limited() {
  local program=$1
  shift
  if [ "$DEVICE" = host ]; then env -u CAPSTAN_HOST_HANGS "$KERNELS/$program" "$@"; return; fi
  if [ -x "$KERNELS/${program}_limited" ]; then "$KERNELS/${program}_limited" "$@"; return; fi
  echo '  not built; build with cmake -DCAPSTAN_LIMITED_SPINS=ON'
  return 1
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
    limited "${program##*/}" --jobs 1 --seconds "$(time_limit 30)" "$test" 2>&1 | grep '^  ' | head -5
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

torch() { # seconds, file, arguments
  PYTHONUNBUFFERED=1 timeout --kill-after=5 "$(time_limit "$1")" python3 benchmarks/gpu/torch_figures.py "${TORCH[@]}" "${@:3}" >> "$2" || echo "PyTorch: ${*:3} did not finish"
}
has_torch() { python3 -c 'import torch' 2>/dev/null; }
# Prints a measurement of the phase `limits`, or 0.
limit_of() { sed -nE "s/.*\"name\": ?\"$1\".*\"$2\": ?([0-9.]+).*/\\1/p" "$BUILD"/limits/*.jsonl 2>/dev/null | grep . || echo 0; }

phase_limits() {
  local status=0
  timeout --kill-after=5 "$(time_limit 40)" "$KERNELS/gpu_kernels" "${TINY[@]}" limits > "$BUILD/limits/kernels.jsonl" || { echo "  limits: exited with status $?"; status=1; }
  if has_torch; then torch 40 "$BUILD/limits/torch.jsonl" limits; else echo 'PyTorch is not installed: no peak for the shares of steps'; fi
  mean_clocks limits
  return $status
}

mean_clocks() { # phase
  tail -n +$((${GPU_CLOCKS_FROM:-0} + 1)) "$BUILD/clocks.csv" 2>/dev/null |
    awk -F', *' '$1 > 0 { n++; sm += $1; mem += $2; watts += $3; if ($1 > top) top = $1; if ($4 > hot) hot = $4 }
         END { if (n) printf "{\"name\":\"clocks\",\"sm_mhz\":%.0f,\"sm_mhz_most\":%d,\"memory_mhz\":%.0f,\"watts\":%.0f,\"celsius_most\":%d}\n", sm / n, top, mem / n, watts / n, hot }' > "$BUILD/$1/clocks.jsonl"
}

# A case that hangs ends the process, and runs again with limited waits. The others follow in a new process.
phase_repeats() {
  local status=0 after='' code count=200 lines=$BUILD/repeats/repeats.jsonl
  [ "$DEVICE" = host ] && count=${GPU_REPEATS:-5}
  local arguments
  while :; do
    arguments=("${TINY[@]}" "repeats=$count" references=benchmarks/gpu/references.tsv "seconds=$(time_limit 10)")
    timeout --kill-after=5 "$(time_left)" "$KERNELS/gpu_kernels" "${arguments[@]}" ${after:+"after=$after"} >> "$lines"
    code=$?
    [ $code = 0 ] || status=1
    [ $code = 2 ] || break
    after=$(sed -nE 's/.*"name":"([^"]*)".*"fault":.*/\1/p' "$lines" | tail -1)
    [ -n "$after" ] || break
    if tail -1 "$lines" | grep -q '"fault":"hung"'; then
      echo "  $after with limited waits:"
      limited gpu_kernels "${arguments[@]}" "only=$after" 2>&1 > /dev/null | grep '^  ' | head -5 | tee "$BUILD/repeats/wait.log"
      # The place of the wait, for the table.
      grep -oE '(cuda|test)/[a-z_/]+\.(cu|h):[0-9]+' "$BUILD/repeats/wait.log" | head -1 | sed "s|.*|{\"name\":\"$after\",\"waits_at\":\"&\"}|" >> "$BUILD/repeats/waits.jsonl"
    fi
  done
  return $status
}

# Steps of the phases `steps` and `ablations`.
steps() { # file, arguments
  timeout --kill-after=5 "$(time_limit 60)" "$NATIVE/gpu_steps" --shape "$SHAPE" --read-gb-per-s "$(limit_of read gb_per_s)" --tflop-per-s "$(limit_of peak tflop_per_s)" "${@:2}" "${HOST_STEPS[@]}" >> "$1"
}
HOST_STEPS=()
[ "$DEVICE" = host ] && HOST_STEPS=(--steps 3)
REAL=(--batches 1,8,64,65,256 --contexts 1024 --lengths 1024)

phase_steps() {
  local status=0 out=$BUILD/steps/steps.jsonl
  # Keys and values come from a prefill. If that fails, measure without.
  steps "$out" "${REAL[@]}" --only decode --fill-seconds 10 || steps "$out" "${REAL[@]}" --only decode --fill-seconds 0 || { echo "  decodes: exited with status $?"; status=1; }
  steps "$out" "${REAL[@]}" --only prefill || { echo "  prefills: exited with status $?"; status=1; }
  mean_clocks steps
  return $status
}

phase_ablations() {
  local status=0 feature layers=28 load
  # Each of them loads the weights.
  load=$(sed -nE 's/.*"name":"load","seconds":([0-9]+).*/\1/p' "$BUILD/steps/steps.jsonl" 2>/dev/null | head -1)
  if [ "${load:-0}" -gt 8 ]; then
    layers=7
    echo "loading takes $load s, so the ablations have 7 layers"
  fi
  for feature in none early graphs wgmma gemv fused_heads k_splits wgmma_attention; do
    CAPSTAN_CUDA_WITHOUT=$([ $feature = none ] || echo $feature) steps "$BUILD/ablations/steps.jsonl" "${REAL[@]}" --layers $layers --label "without $feature:" --fill-seconds 0 --steps 15 || { echo "  without $feature: exited with status $?"; status=1; }
  done
  return $status
}

# The stamps of the timeline lengthen every boundary. Four layers suffice.
phase_timeline() {
  local status=0 batch file
  for batch in 1 64 256 prefill; do
    local arguments=(--only decode --batches "$batch")
    [ $batch = prefill ] && arguments=(--only prefill)
    file=$BUILD/timeline/stamps-$batch
    CAPSTAN_CUDA_TIMELINE=$file steps "$BUILD/timeline/steps.jsonl" "${REAL[@]}" "${arguments[@]}" --layers 4 --label "4 layers with stamps:" --fill-seconds 0 --steps 15 || { echo "  $batch: exited with status $?"; status=1; }
    [ ! -s "$file" ] || sed "s/^{/{\"step\":\"$batch\",/" "$file" >> "$BUILD/timeline/timeline.jsonl"
    [ "$DEVICE" = host ] && [ $batch = 1 ] && { echo 'the emulation has one shape of steps'; break; }
  done
  return $status
}

phase_counters() {
  local name status=3
  command -v ncu > /dev/null || { echo 'ncu is not installed'; return 3; }
  local names=('gemv gate_up x1' 'gemv down x1' 'gemm gate_up x64' 'wgmma gate_up x1024' 'wgmma down x256' 'attention 64x1024 decode' 'wgmma attention 1x1024 prefill' 'gemv head x1' 'sample greedy x64')
  [ "$DEVICE" = host ] && names=('gemv gate_up x1')
  for name in "${names[@]}"; do
    timeout --kill-after=5 "$(time_limit 15)" ncu --clock-control none --profile-from-start off --section SpeedOfLight --section ComputeWorkloadAnalysis \
      --section MemoryWorkloadAnalysis --section MemoryWorkloadAnalysis_Tables --section WarpStateStats --section Occupancy --section LaunchStats --page raw --csv \
      "$KERNELS/gpu_kernels" "${TINY[@]}" "once=$name" > "$BUILD/counters/${name// /-}.csv" 2>&1
    python3 benchmarks/gpu/counters.py "$name" "$BUILD/counters/${name// /-}.csv" >> "$BUILD/counters/counters.jsonl" && { status=0; continue; }
    # Without permission, or on a runtime that ncu does not support, every case would fail.
    [ $status = 0 ] || return 3
  done
  return $status
}

phase_kernels() {
  local status=0 group read
  read=$(limit_of read gb_per_s)
  # Each group runs in a separate process, so that an error or a hang does not affect the others.
  for group in gemv wgmma gemm attention wgmma_attention sample codes experts recurrent lora layer_inputs; do
    timeout --kill-after=5 "$(time_limit 30)" "$KERNELS/gpu_kernels" "${TINY[@]}" "read=$read" "$group" >> "$BUILD/kernels/kernels.jsonl" || { echo "  $group: exited with status $?"; status=1; }
  done
  if has_torch; then torch 60 "$BUILD/kernels/torch.jsonl" matmul attention; else echo 'PyTorch is not installed: no comparison'; fi
  return $status
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
  local status=0 out=$BUILD/bench/steps.jsonl
  steps "$out" --contexts 8192 --batches 1,8,64,256 --only decode || { echo "  decodes: exited with status $?"; status=1; }
  steps "$out" --lengths 8192 --only prefill || { echo "  prefills: exited with status $?"; status=1; }
  steps "$out" --contexts 1024 --batches 1,8,64 --only decode --deterministic yes --label deterministic --fill-seconds 5 || { echo "  deterministic decodes: exited with status $?"; status=1; }
  for bits in int8 int4; do
    steps "$out" --contexts 1024 --batches 1,64 --only decode --quantization $bits --label $bits --fill-seconds 5 || { echo "  decodes with $bits: exited with status $?"; status=1; }
  done
  if has_torch; then torch 110 "$BUILD/bench/torch.jsonl" model; fi
  mean_clocks bench
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
  python3 benchmarks/gpu/serve.py --node "$node" --product "$product" --device cuda "${TINY[@]/#/--}" > "$BUILD/serve/serve.jsonl"
}

# Prints the time limit of a phase in seconds. On the CPU a whole call must fit the same time.
seconds_of() {
  case $1 in
    build) echo 240 ;; limits) echo 60 ;; primitives) echo 120 ;; repeats) echo 90 ;; steps) echo 80 ;; ablations) echo 130 ;; timeline) echo 50 ;; counters) echo 80 ;;
    kernels) echo 150 ;; ops | model | serve) echo 200 ;; sanitize) echo 240 ;; bench) echo 300 ;; soak) echo $((${GPU_SOAK_SECONDS:-60} + 110)) ;; *) echo 200 ;;
  esac
}
