#!/usr/bin/env bash
# Rehearses benchmarks/gpu.sh on the CPU: the calls `first`, `second` and `third` with tiny shapes, each within its time, and `first` with
# planted faults, whose kernel and line the table must name: a primitive that hangs, a kernel that hangs, and one wrong bit in one run.
#
#     test/native/gpu/rehearsal.sh [first | second | third | faults]…      default: all
set -uo pipefail
cd "$(dirname "$0")/../../.."
OUT_DIR=$PWD/build/gpu-rehearsal
RELEASE=$PWD/build/test-native/release
CXX=${CXX:-g++}
FLAGS=(-std=gnu++20 -O1 -ffp-contract=off -w -Wno-psabi)
mkdir -p "$OUT_DIR"
export GPU_DEVICE=host

fail() {
  echo "rehearsal: $1"
  tail -40 "$OUT_DIR/$2.log"
  exit 1
}

expect() { # name of the log, pattern
  grep -qE -- "$2" "$OUT_DIR/$1.log" || fail "expected a line that matches $2" "$1"
}

# Runs a call with the given limit in seconds, and with a fake ncu, whose output has the form of ncu's.
call() { # name of the log, arguments
  local log=$1 begin=$SECONDS status
  shift
  GPU_BUILD=$OUT_DIR/$log GPU_RESULTS=$OUT_DIR/$log/results PATH=$OUT_DIR/fake:$PATH benchmarks/gpu.sh "$@" > "$OUT_DIR/$log.log" 2>&1
  status=$?
  echo "rehearsal: $* ended after $((SECONDS - begin)) s with status $status"
  tail -1 "$OUT_DIR/$log.log" | grep -q '\.json$' || fail 'expected the table last' "$log"
  return $status
}

mkdir -p "$OUT_DIR/fake"
cat > "$OUT_DIR/fake/ncu" << 'NCU'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do case $1 in --clock-control | --profile-from-start | --section | --page) shift 2 ;; *) shift ;; esac; done
echo '==PROF== Connected to process 1'
"$@" || exit 1
cat << 'CSV'
"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active","smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio","l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum","launch__registers_per_thread"
"","","us","%","%","inst","inst","","register/thread"
"0","gemv_kernel<Bf16, 1, 0>(GemvArgs)","12.50","81.25","3.50","6.00","2.00","128","96"
CSV
NCU
chmod +x "$OUT_DIR/fake/ncu"

# Builds $RELEASE/PROGRAM with changed sources into the folder of the fault: name, program, file, sed expression, file to compile.
plant() {
  local name=$1 program=$2 file=$3 change=$4 compiled=$5 tree=$OUT_DIR/$1.tree object objects=()
  rm -rf "$tree"
  mkdir -p "$tree/bin"
  cp -r --parents cuda test/native/gpu "$tree"
  sed -i "$change" "$tree/$file"
  ! cmp -s "$file" "$tree/$file" || { echo "rehearsal: the expression of '$name' does not change $file"; exit 1; }
  ln -s "$RELEASE"/* "$tree/bin/"
  rm "$tree/bin/$program"
  for object in $(make -C test/native -s "${program}_objects"); do
    [ "$object" = "$RELEASE/${compiled%.cu}.o" ] && object=$tree/changed.o
    objects+=("$object")
  done
  # Relative, so that messages have the names of the source files.
  (cd "$tree" && "$CXX" "${FLAGS[@]}" -I. -I"$OLDPWD" -I"$OLDPWD/test/native/cuda_host" -x c++ -c -o changed.o "$compiled") || exit 1
  "$CXX" -pthread -o "$tree/bin/$program" "${objects[@]}" || exit 1
}

# A device gets packed programs, so that a call has time to build only a part.
build() { make -C test/native -j"$(nproc)" -s gpu cuda_host || exit 1; }

rehearse_first() {
  build
  "$RELEASE/gpu_kernels" references | diff - benchmarks/gpu/references.tsv || { echo 'rehearsal: run build/test-native/release/gpu_kernels references > benchmarks/gpu/references.tsv'; exit 1; }
  call first first || fail 'the first call failed' first
  expect first '^between empty kernels'
  expect first '^repeats: ([0-9]+) of \1 cases have the same bits in 5 runs'
  expect first '^without early'
  expect first '^timeline of 1 '
  expect first '^gemv gate_up x1 .* 81 .*long_scoreboard 75%, barrier 25%'
}

rehearse_second() { build; call second second || fail 'the second call failed' second; }
rehearse_third() { build; call third third || fail 'the third call failed' third; }

# The first call ends before its time, although a primitive and kernels hang, and does not run a hung test again without limits.
rehearse_faults() {
  build
  export CAPSTAN_HOST_HANGS=1 GPU_TEST_SECONDS=10

  plant wrong-bit gpu_kernels cuda/kernels/rows.cu \
    's/to_bits<T>(normed(args, norm, from\[k\], k));/static_cast<uint16_t>(to_bits<T>(normed(args, norm, from[k], k)) ^ [\&] { static int runs = 0; return row == 1 \&\& k == 7 \&\& ++runs == 3 ? 1 : 0; }());/' cuda/kernels/rows.cu
  GPU_PROGRAMS=$OUT_DIR/wrong-bit.tree/bin call wrong-bit repeats && fail 'expected a failure' wrong-bit
  expect wrong-bit 'norm x3: norm_kernel \(cuda/kernels/rows.cu:[0-9]+\): other bits in repeat 2, output 0, word [0-9]+ of '

  plant hang gpu_kernels cuda/kernels/gemm_wgmma_kernel.h 's/mbarrier_arrive_expect_tx(full, /&16 + /' cuda/kernels/gemm_wgmma.cu
  GPU_PROGRAMS=$OUT_DIR/hang.tree/bin call hang repeats && fail 'expected a failure' hang
  expect hang 'wgmma qkv x65: gemm_wgmma_kernel \(cuda/kernels/gemm_wgmma_kernel.h:[0-9]+\): hung, waits at cuda/kernels/gemm_wgmma_kernel.h:[0-9]+'
  # The cases after the hung ones run in new processes.
  expect hang '^repeats: '
  grep -q '"name":"sample top_k' "$OUT_DIR"/hang/repeats/repeats.jsonl || fail 'expected the cases after those that hang' hang

  plant primitive gpu_ops test/native/gpu/primitives.cu 's/  if (block + 1 < static_cast<int32_t>(gridDim.x)) signal_flag(flags + block);//' test/native/gpu/primitives.cu
  GPU_PROGRAMS=$OUT_DIR/primitive.tree/bin call primitive primitives repeats && fail 'expected a failure' primitive
  expect primitive 'FAILED primitive_flags_and_numbers: did not finish within'
  expect primitive 'waits: .*no earlier block has set the flag at test/native/gpu/primitives.cu:[0-9]+'
  expect primitive 'stopped: primitives explains'
  grep -q '^==== repeats' "$OUT_DIR/primitive.log" && fail 'expected no phase after the failed primitive' primitive
  return 0
}

for part in "${@:-first second third faults}"; do
  for one in $part; do "rehearse_$one" || exit 1; done
done
echo 'rehearsal: passed'
