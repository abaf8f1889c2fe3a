#!/usr/bin/env bash
# Faults put into the CUDA backend, each of which the tests on the host runtime must notice: a fault that passes is a hole in the tests. Those of instructions as they
# are written are noticed by running what nvcc makes of the kernels (cuda_host/ptx.cpp), and left out where there is no nvcc.
#
#     test/native/gpu/mutations.sh [NAME…]
set -uo pipefail
cd "$(dirname "$0")/../../.."
ROOT=$PWD
OUT=$ROOT/build/mutations
CXX=${CXX:-g++}
FLAGS=(-std=gnu++20 -O1 -ffp-contract=off -w -Wno-psabi)
PLAIN=(test/native/main.cpp test/native/cuda_host/cuda_host.cpp test/native/cuda_host/async.cpp test/native/cuda_host/device_memory.cpp test/native/cuda_host/ptx.cpp test/native/cuda_host/runtime.cpp native/backend/backend.cpp native/backend/panel_reader.cpp native/backend/cpu/sample.cpp native/backend/cpu/kernels_portable.cpp)

# name | file | what becomes what, as sed says it | tests that must fail, behind `FILE by PTX:` on what nvcc makes of this one
MUTATIONS=(
  'a dropped barrier|cuda/kernels/gemm.cu|0,/  __syncthreads();/s///|kernel_gemm'
  'a chunk of activations that is not waited for|cuda/kernels/gemm.cu|s/wait_for_copies<kStages - 2>();/wait_for_copies<kStages - 1>();/|kernel_gemm'
  'a chunk copied to where others still read|cuda/kernels/gemm.cu|s/kStages ? 0 : slot + 1;$/kStages - 1 ? 0 : slot + 1;/|kernel_gemm'
  'parts of a product added in a row|cuda/kernels/gemm.cu|s/for (; (part >> level \& 1) != 0; ++level)/for (; level == 0 \&\& part > 0; level += 3)/|kernel_gemm'
  'the part of another block|cuda/kernels/gemm.cu|s/const int64_t first_k = blockIdx.z \* split.padded_part/const int64_t first_k = 0/|kernel_gemm'
  'the first weights of the part before|cuda/kernels/gemm.cu|s/load_step(following, i, ahead/load_step(weights, i, ahead/|kernel_gemm'
  'heads that forget the bias of a product in parts|cuda/kernels/rows.cu|s/if (args.bias != nullptr) row/if (false) row/|kernel_qkv'
  'a product that does not wait for the kernel in front|cuda/kernels/gemm.cu|s/^  wait_for_previous();//|kernel_gemm'
  'activations on their way before the kernel in front has ended|cuda/kernels/gemm.cu|s/^  wait_for_previous();//;s/^  const Kept<N> kept;/  wait_for_previous();\n  const Kept<N> kept;/|kernel_gemm'
  'a norm that does not wait for the kernel in front|cuda/kernels/rows.cu|/ norm_kernel(/,/^}/s/  wait_for_previous();//|kernel_gemm'
  'heads that do not wait for the kernel in front|cuda/kernels/rows.cu|/ qkv_kernel(/,/^}/s/  wait_for_previous();//|kernel_gemm'
  'a sum that does not wait for the kernel in front|cuda/kernels/partials.cu|s/^  wait_for_previous();//|kernel_gemm'
  'a dropped barrier of norms|cuda/kernels/rows.cu|0,/  __syncthreads();/s///|kernel_norm'
  'a wrong swizzle of operands|cuda/layout.h|s#c / 16 \* 4 + c % 16 / 8 \* 2#c / 16 * 2 + c % 16 / 8 * 4#|kernel_gemm'
  'a wrong swizzle of weights|cuda/layout.h|s#c / 8 \* 4 + r / 8 \* 2#c / 8 * 2 + r / 8 * 4#|kernel_gemm'
  'an off-by-one block of keys|cuda/kernels/attention.cu|s/blocks\[tile \* kTileKeys/blocks[(tile + 1) * kTileKeys/|kernel_attention'
  'a key too many|cuda/kernels/attention.cu|s/key <= position/key <= position + 1/|kernel_attention'
  'a window too wide|cuda/kernels/attention.cu|s/key > position - args.window/key >= position - args.window/|kernel_attention'
  'unwritten values that count|cuda/kernels/attention.cu|s/written\[w\] = left >= 2 ? 0xffffffffu : left == 1 ? 0xffffu : 0;/written[w] = 0xffffffffu;/|kernel_attention'
  'a padded row that writes|cuda/kernels/rows.h|s/if (slot < 0) return;/if (slot < -1) return;/|kernel_qkv'
  'chunks that forget their maximum|cuda/kernels/attention.cu|s/max\[r\] = join.max;/max[r] = max[r];/|kernel_attention'
  'tiles added up before they are there|cuda/kernels/attention.cu|s/^    __syncthreads();//|kernel_attention'
  'an early attention that does not wait|cuda/kernels/attention.cu|s/^  wait_for_previous();//|kernel_attention'
  'parts added in another order|cuda/kernels/epilogue.h|s/if (parts == 4) return low;/if (parts == 4) return at[0] + at[stride] + at[2 * stride];/|kernel_partials'
  'a dropped barrier of norms behind sums|cuda/kernels/partials.cu|0,/  __syncthreads();/s///|kernel_add_norm'
  'hidden states that the last norm changes|cuda/kernels/partials.cu|s/if (norm.rows == nullptr) args.sum.hidden/args.sum.hidden/|kernel_add_norm'
  'hidden states of a rank that does not have them|cuda/kernels/partials.cu|s#owners\[token / args.tokens_per_owner\]#owners[0]#|kernel_add_norm'
  'a dropped barrier of fused products|cuda/kernels/gemv.cu|0,/^  __syncthreads();/s///|kernel_gemv'
  'a turn of sums written while it is read|cuda/kernels/gemv.cu|s/turn \^= 1/turn = 0/|kernel_gemv'
  'weights of the tile before|cuda/kernels/gemv.cu|s/load_step(following, i, ahead/load_step(weights, i, ahead/|kernel_gemv'
  'heads that no block has to itself|cuda/kernels/gemv.cu|s/atomicAdd(args.rows_done + head, count) + count/count/|kernel_gemv'
  'heads whose count is left behind|cuda/kernels/gemv.cu|s/if (is_complete) args.rows_done/if (false) args.rows_done/|kernel_gemv'
  'another swizzle of shared memory|cuda/wgmma_layout.h|s/uint64_t{1} << 62/uint64_t{2} << 62/|kernel_wgmma'
  'a step of K too far|cuda/wgmma_layout.h|s/steps \* 32 >> 4/steps * 48 >> 4/|kernel_wgmma'
  'a phase taken for the one before|cuda/kernels/gemm_wgmma.cu|s/place.parity ^ 1/place.parity/|kernel_gemm_wgmma'
  'a stage given back while it is read|cuda/kernels/gemm_wgmma.cu|s/wgmma_wait<1>();/wgmma_wait<2>();/|kernel_gemm_wgmma'
  'a box one token too far|cuda/kernels/gemm_wgmma.cu|s/token_block \* kTokens, full/token_block * kTokens + 1, full/|kernel_gemm_wgmma'
  'weights beyond K that count|cuda/kernels/gemm_wgmma.cu|s/step < steps ? from/true ? from/|kernel_gemm_wgmma'
  'a product that nobody waits for|cuda/kernels/gemm_wgmma.cu|s/    wgmma_wait<0>();//|kernel_gemm_wgmma'
  'the tile of another warp|cuda/kernels/gemm_wgmma.cu|s/kBlockTiles + warp,/kBlockTiles + (warp ^ 1),/|kernel_gemm_wgmma'
  'numbers turned before all are there|cuda/kernels/tile_end.h|s/^      __syncwarp();//|kernel_gemm_wgmma'
  'sums with other tokens than their own|cuda/kernels/tile_end.h|s/before\[turn\] = next\[turn\]/before[turn] = before[turn]/|kernel_gemm_wgmma'
  'a later part of K that takes the place of the first|cuda/kernels/tile_end.h|s/return is_later ||/return/|kernel_gemm_wgmma'
  'a flag that stays raised|cuda/device.h|s/^    \*flag = 0;//|kernel_gemm_wgmma'
  'a part of K that says nothing of its end|cuda/kernels/gemm_wgmma.cu|s/raise_flag(flag);/{}/|kernel_gemm_wgmma'
  'a whole tile where rows begin anywhere|cuda/kernels/tile_end.h|s/args.out_stride % 4 == 0/true/|kernel_gemm_wgmma'
  'a kernel that does not wait for the one in front|cuda/kernels/gemv.cu|s/^  wait_for_previous();//|kernel_gemv'
  'activations copied before the kernel in front has ended|cuda/kernels/gemv.cu|s/^  let_next_begin();/  if constexpr (!kIsNormed) copy_into(product, acts);/;s/^    copy_into(product, acts);/;/|kernel_gemv'
  'the scale of another key|cuda/kernels/attention.cu|s/offset + (first + j) \* 8 + lane \/ 4\]/offset + (first + j) * 8 + lane % 4]/|kernel_attention'
  'values without their scales|cuda/kernels/attention.cu|s/fp8_scale<T>(exponents\[w \* 8 + 1\])/fp8_scale<T>(exponents[w * 8])/|kernel_attention'
  'ties of 8 bits that go up|cuda/fp8.h|s/0x7ffff + (bits >> 20 \& 1)/0x80000/|kernel_fp8'
  'a broken head that looks whole|cuda/fp8.h|s/const bool is_broken = .*/const bool is_broken = false;/|kernel_fp8'
  'keys that products do not see yet|cuda/kernels/attention_wgmma.cu|s/^    show_to_products();//|kernel_attention_wgmma'
  'copies that nobody waits for|cuda/kernels/attention_wgmma.cu|s/    wait_for_copies<kCopiesAhead>();//|kernel_attention_wgmma'
  'a stage of keys that is not waited for|cuda/kernels/attention_wgmma.cu|s/    if (tile < last) await_stage();/    if (tile < last) awaited.advance(kAttentionStages);/|kernel_attention_wgmma'
  'weights written while they are multiplied|cuda/kernels/attention_wgmma.cu|/wgmma_wait<1>();/{n;s/settle(scores);/pack_weights();/}|kernel_attention_wgmma'
  'keys in the order of the cache|cuda/attention_layout.h|s#const int row = key / 2 \* 8 + warp \* 2 + key % 2;#const int row = warp * 8 + key;#|kernel_attention_wgmma'
  'values with another swizzle|cuda/attention_layout.h|s#(dim \* kSwizzledRow + word \* 16)))};#(dim * kSwizzledRow + (word ^ 1) * 16)))};#|kernel_attention_wgmma'
  'a later key that many rows see|cuda/kernels/attention_wgmma.cu|s/if (key > position ||/if (key > position + 1 ||/|kernel_attention_wgmma'
  'a tile taken for one that all rows see|cuda/kernels/attention_wgmma.cu|s/first_key + kTileKeys - 1 <= rows.first_position/first_key + kTileKeys - 1 <= rows.last_position/|kernel_attention_wgmma'
  'an earlier key than the window of many rows|cuda/kernels/attention_wgmma.cu|s/key <= position - window/key < position - window/|kernel_attention_wgmma'
  'unwritten values that many rows weigh|cuda/kernels/attention_wgmma.cu|s/if (key >= num_written) words\[w\] = 0;/if (false) words[w] = 0;/|kernel_attention_wgmma'
  'sums that keep their old maximum|cuda/kernels/attention_wgmma.cu|s/out\[i\] \*= softmax.factor/out[i] *= 1 + 0 * softmax.factor/|kernel_attention_wgmma'
  'a digit too few|cuda/kernels/sample_threshold.h|s/is_done || shift == 0/is_done || shift <= 10/|kernel_samples'
  'sums of masses without their carries|cuda/kernels/sample_threshold.h|s/ > ~low ? 1 : 0;/ > ~low ? 0 : 0;/|kernel_samples'
  'a bound that fewer values reach|cuda/kernels/sample_threshold.h|s/value_of(find_threshold<false>(0, static_cast<unsigned long long>(target)/value_of(find_threshold<false>(0, static_cast<unsigned long long>((target + 1) \/ 2)/|kernel_samples'
  'candidates beyond the list that are lost|cuda/kernels/sample_threshold.h|s/shared.num_listed <= kListed ? shared.num_listed : kUnlisted/shared.num_listed <= kListed ? shared.num_listed : kListed/|kernel_samples'
  'values before the first boundary that nobody reads|cuda/kernels/sample_row.h|s/const int single = thread < head ?/const int single = thread < 0 ?/|kernel_samples'
  'a tail of top-p that is cut too early|cuda/kernels/sample.cu|s/survey.sum)) + 0.01f, best/survey.sum)) - 4.0f, best/|kernel_samples'
  'operands of an instruction in another order|cuda/device.h|s/{%8, %9}, {%0/{%9, %8}, {%0/|test/native/gpu/ops.cu by PTX:kernel_mma'
  'halves of a pair the other way round|cuda/device.h|s/: "=r"(bits) : "f"(high), "f"(low)/: "=r"(bits) : "f"(low), "f"(high)/|test/native/gpu/ops.cu by PTX:kernel_conversions'
  'copies whose instruction waits for too few|cuda/device.h|s/asm volatile("cp.async.wait_group %0;" ::"n"(kPending)/asm volatile("cp.async.wait_group %0;" ::"n"(kPending + 1)/|cuda/kernels/gemm.cu by PTX:kernel_gemm_over'
  'a store that is wanted where it is not|cuda/device.h|s/setp.ne.u32 wanted, %5, 0/setp.eq.u32 wanted, %5, 0/|cuda/kernels/gemm_wgmma.cu by PTX:kernel_gemm_wgmma_over'
  'accesses of four that begin anywhere|cuda/kernels/tile_end.h|s/args.out_stride % 4 == 0/true/|cuda/kernels/gemm_wgmma.cu by PTX:kernel_gemm_wgmma_over'
  'noise that could win and is passed over|cuda/kernels/sample.cu|s/ \* 1.01f;/ * 0.5f;/|kernel_samples'
)

mkdir -p "$OUT/plain"
compile() { # source object [include first]
  "$CXX" "${FLAGS[@]}" ${3:+-I"$3"} -I"$ROOT" -I"$ROOT/test/native/cuda_host" -x c++ -MMD -MF "${2%.o}.d" -c -o "$2" "$1"
}
SOURCES=(cuda/*.cu cuda/kernels/*.cu test/native/gpu/*.cu)
build() { # folder of objects, tree of sources, files to compile; others are taken from the unchanged build
  local folder=$1 tree=$2 file jobs=0
  shift 2
  for file in "$@"; do
    compile "$tree/$file" "$folder/${file//\//_}.o" "$tree" &
    [ $((++jobs % $(nproc))) = 0 ] && wait
  done
  wait
}
build "$OUT/plain" "$ROOT" "${SOURCES[@]}" "${PLAIN[@]}"
link() { # program, folder of changed objects
  local file name objects=()
  for file in "${SOURCES[@]}" "${PLAIN[@]}"; do
    name=${file//\//_}.o
    if [ -e "$2/$name" ]; then objects+=("$2/$name"); else objects+=("$OUT/plain/$name"); fi
  done
  "$CXX" -pthread -o "$1" "${objects[@]}"
}
link "$OUT/plain/tests" "$OUT/plain" && "$OUT/plain/tests" --jobs "$(nproc)" kernel_ > "$OUT/plain/log" 2>&1 || { tail "$OUT/plain/log"; echo 'the tests fail without a fault'; exit 1; }

try_by_ptx() { # tree, file that is compiled, tests that must fail
  mkdir -p "$1/ptx"
  cp -r "$PTX"/* "$1/ptx/"
  nvcc -std=c++20 -O3 -I"$1" -I. -arch=compute_90a -ptx -o "$1/ptx/${2%.cu}.ptx" "$1/$2" 2> "$1/log" || return 2
  (CAPSTAN_TEST_PTX=$1/ptx timeout 300 "$OUT/plain/tests" --first-failure "$3") > "$1/log" 2>&1
}
PTX=build/test-native/release/ptx
command -v nvcc > /dev/null && { make -C test/native -j"$(nproc)" -s ptx_files || exit 1; }

try_mutation() { # the mutation's number; says what came of it, and fails unless it was noticed
  local mutation=${MUTATIONS[$1]} tree=$OUT/mutant-$1 name file filter change rest source changed
  name=${mutation%%|*} rest=${mutation#*|}
  file=${rest%%|*} filter=${rest##*|}
  change=${rest#*|} change=${change%|*}
  mkdir -p "$tree/objects"
  cp -r --parents cuda test/native/gpu "$tree"
  sed -i "$change" "$tree/$file"
  if cmp -s "$file" "$tree/$file"; then
    echo "NOT FOUND  $name: $file no longer holds what is to be changed"
    return 1
  fi
  if [[ $filter == *' by PTX:'* ]]; then
    if ! command -v nvcc > /dev/null; then
      echo "left out   $name: needs nvcc"
      return 0
    fi
    try_by_ptx "$tree" "${filter%% by PTX:*}" "${filter##*:}"
    case $? in 0) echo "UNNOTICED  $name"; return 1 ;; 2) tail -5 "$tree/log"; echo "NOT BUILT  $name"; return 1 ;; esac
    echo "noticed    $name"
    rm -rf "$tree"
    return 0
  fi
  changed=()
  for source in "${SOURCES[@]}"; do
    if grep -qF "$ROOT/$file" "$OUT/plain/${source//\//_}.d"; then changed+=("$source"); fi
  done
  build "$tree/objects" "$tree" "${changed[@]}" 2> "$tree/log"
  if [ "$(find "$tree/objects" -name '*.o' | wc -l)" != ${#changed[@]} ] || ! link "$tree/tests" "$tree/objects" 2>> "$tree/log"; then
    tail -5 "$tree/log"
    echo "NOT BUILT  $name"
    return 1
  elif (timeout 300 "$tree/tests" --first-failure "$filter") > "$tree/log" 2>&1; then
    echo "UNNOTICED  $name"
    return 1
  fi
  echo "noticed    $name"
  rm -rf "$tree"
}

rm -rf "$OUT"/mutant-*
failed=0 running=0
for number in "${!MUTATIONS[@]}"; do
  if [ $# -gt 0 ] && [[ " $* " != *" ${MUTATIONS[$number]%%|*} "* ]]; then continue; fi
  if [ $running = "$(nproc)" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  try_mutation "$number" &
  running=$((running + 1))
done
while [ $running -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
exit $failed
