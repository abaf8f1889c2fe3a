#!/usr/bin/env bash
# Mutation tests of the CUDA backend: applies one fault at a time, and the tests on the host emulation must fail. A fault that
# passes is a gap in the tests. Faults in inline assembly are tested on the PTX that nvcc generates (cuda_host/ptx.cpp), and
# skipped without nvcc.
#
#     test/native/gpu/mutations.sh [--sample | NAME…]      default: all
#
# `--sample` applies the first mutation of each changed file, without those on PTX.
set -uo pipefail
cd "$(dirname "$0")/../../.."
ROOT=$PWD
OUT=$ROOT/build/mutations
mkdir -p "$OUT"
CXX=${CXX:-g++}
FLAGS=(-std=gnu++20 -O1 -ffp-contract=off -w -Wno-psabi)

# name | file | sed expression | filter of the tests that must fail; `FILE by PTX:filter` runs them on the PTX of FILE
MUTATIONS=(
  'a missing barrier in gemm|cuda/kernels/gemm_kernel.h|0,/  __syncthreads();/s///|kernel_gemm'
  'a wait that lets one chunk of activations stay pending|cuda/kernels/gemm_kernel.h|s/cp_async_wait_group<kStages - 2>();/cp_async_wait_group<kStages - 1>();/|kernel_gemm'
  'a chunk copied over one that is still read|cuda/kernels/gemm_kernel.h|s/kStages ? 0 : slot + 1;$/kStages - 1 ? 0 : slot + 1;/|kernel_gemm'
  'parts of a product added in sequence|cuda/kernels/gemm_kernel.h|s/for (; (part >> level \& 1) != 0; ++level)/for (; level == 0 \&\& part > 0; level += 3)/|kernel_gemm'
  'the part of another block|cuda/kernels/gemm_kernel.h|s/const int64_t first_k = blockIdx.z \* split.padded_part/const int64_t first_k = 0/|kernel_gemm'
  'the first weights of the previous part|cuda/kernels/gemm_kernel.h|s/load(args.weights, next_weights, i)/load(args.weights, weights, i)/|kernel_gemm'
  'heads without the bias of a product in parts|cuda/kernels/rows.cu|s/if (args.bias != nullptr) row/if (false) row/|kernel_qkv'
  'gemm without griddepcontrol.wait|cuda/kernels/gemm_kernel.h|s/^  griddepcontrol_wait();//|kernel_gemm'
  'gemm that copies activations before griddepcontrol.wait|cuda/kernels/gemm_kernel.h|s/^  griddepcontrol_wait();//;s/^  const PartSums<N> part_sums;/  griddepcontrol_wait();\n  const PartSums<N> part_sums;/|kernel_gemm'
  'norm without griddepcontrol.wait|cuda/kernels/rows.cu|/ norm_kernel(/,/^}/s/  griddepcontrol_wait();//|kernel_gemm'
  'qkv without griddepcontrol.wait|cuda/kernels/rows.cu|/ qkv_kernel(/,/^}/s/  griddepcontrol_wait();//|kernel_gemm'
  'sums without griddepcontrol.wait|cuda/kernels/partials.cu|s/^  griddepcontrol_wait();//|kernel_gemm'
  'a missing barrier in norm|cuda/kernels/rows.h|s/^  __syncthreads();//|kernel_norm'
  'a missing barrier in the mean of a layer norm|cuda/kernels/rows.h|s/^    __syncthreads();//|kernel_norm'
  'deviations from 0|cuda/kernels/rows.h|s/const float centred = row\[k\] - norm.mean;/const float centred = row[k];/|kernel_norm'
  'an embedding without its scale|cuda/kernels/rows.cu|s/fmaf(value, args.scale, 0.0f)/value + 0.0f/|kernel_embedding_gathers'
  'scaled logits of another rank|cuda/kernels/rows.cu|s/if (id >= args.num_ids) return;/if (id >= args.num_ids + 1) return;/|kernel_logits'
  'a residual without its scale in gemv|cuda/kernels/epilogue.h|s/fmaf(value, args.residual_scale, \*out)/*out + value/|kernel_gemv'
  'a residual without its scale in gemm|cuda/kernels/gemm_kernel.h|s/fmaf(value, args.residual_scale, before/fmaf(value, 1.0f, before/|kernel_gemm_over'
  'a residual without its scale in gemm by wgmma|cuda/kernels/tile_epilogue.h|s/const float scale = args.residual_scale;/const float scale = 1;/|kernel_gemm_wgmma_over'
  'an update without the scale of the residual|cuda/kernels/lora.cu|s/fmaf(sum, args.residual_scale, out)/out + sum/|kernel_lora'
  'experts without the scale of the residual|cuda/kernels/expert_rows.cu|s/fmaf(sum, args.scale, \*to)/*to + sum/|kernel_expert_sums'
  'a product without gates that leaves out the second rows|cuda/kernels/gemm_kernel.h|s/for (int half = 0; half < 2; ++half)/for (int half = 0; half < 1; ++half)/|kernel_gemm_over'
  'features without gates at the places of gated ones|cuda/kernels/epilogue.h|s/+ row_in_tile : row;/+ row_in_tile : row \/ 2;/|kernel_gemm_over'
  'the first rows in place of the second ones without gates|cuda/kernels/tile_epilogue.h|s/acc\[i\] = acc\[i + 2\], acc\[i + 1\] = acc\[i + 3\];/{}/|kernel_gemm_wgmma_over'
  'xIELU without its square|cuda/kernels/epilogue.h|s/positive \* positive \* xielu.square/positive * xielu.square/|kernel_gemm_over'
  'an updated MLP without gates that reads its outputs as gates|cuda/kernels/lora.cu|s/: activate(args.activation, args.xielu, row\[feature\])/: activate(args.activation, args.xielu, gate[0])/|kernel_gates'
  'the factors of the first token|cuda/kernels/epilogue.h|s/args.factors\[token \* args.factor_stride + row\]/args.factors[row]/|kernel_gemm_over'
  'the factors of the first rows for the second ones|cuda/kernels/tile_epilogue.h|s/multiply_rows(acc, first + lane \/ 4)/multiply_rows(acc, tile * kTileRows + lane \/ 4)/|kernel_gemm_wgmma_over'
  'a scale of the layer that leaves out the old hidden state|cuda/kernels/partials.cu|s/args.factor \* fmaf(sum, args.scale, \*before)/fmaf(args.factor * sum, args.scale, *before)/|kernel_add_norm_norms'
  'an input of a layer with the columns of the first|cuda/kernels/rows.cu|s/first_col = item % args.num_layers \* args.size/first_col = 0/|kernel_layer_inputs'
  'an input of a layer for an id that was not drawn|cuda/kernels/rows.cu|s/id < 0 ? 0.0f : weight_value/id == kNoToken ? 0.0f : weight_value/|kernel_layer_inputs'
  'an input of a layer without the id that was drawn|cuda/kernels/rows.cu|s/const int32_t id = drawn_id(args.ids\[item \/ args.num_layers\], args.drawn_ids);/const int32_t id = args.ids[item \/ args.num_layers] < 0 ? kNoToken : args.ids[item \/ args.num_layers];/|kernel_layer_inputs'
  'values without their norm|cuda/kernels/rows.h|s/kHasAll \&\& args.has_v_norm/false/|kernel_qkv_writes'
  'keys and values of a product of queries|cuda/kernels.h|s/(has_kv ? 2 \* layout.num_kv_heads : 0)/2 * layout.num_kv_heads/|kernel_qkv_writes'
  'the shared expert with the norm of the experts|cuda/kernels/expert_rows.cu|s/row_norm(shared, size/row_norm(experts, size/|kernel_expert_sums'
  'the second part of the dimensions with the keys of the first|cuda/kernels/attention.cu|s/kParts + part \* D + d)/kParts + d)/|kernel_attention_over'
  'the first part of the dimensions at the places of the second|cuda/kernels/attention.cu|s/first_dims = head.part \* D \* 4/first_dims = 0/|kernel_attention_over'
  'ups that are not clamped|cuda/kernels/epilogue.h|s/fminf(fmaxf(up, -7.0f), 7.0f)/up/|kernel_gemm_over'
  'a sum that is added before its norm|cuda/kernels/partials.cu|s/sums\[k\] = has_norm ? sum : add_sum/sums[k] = add_sum/|kernel_add_norm_norms'
  'the heads of k with the squares of q|cuda/kernels/rows.h|s/(is_q ? 0 : args.num_heads);/0;/|kernel_qkv_writes'
  'a rotation that is always after the norm|cuda/kernels/rows.h|s/kHasAll \&\& args.rotates_before_norm;/false;/|kernel_qkv_writes'
  'a query with the scale of another position|cuda/kernels/rows.h|s/args.query_scales\[args.positions\[token\]\]/args.query_scales[token]/|kernel_qkv_writes'
  'scores without a soft cap|cuda/kernels/attention.cu|s/  if (args.soft_cap > 0) {/  if (false) {/|kernel_attention_over'
  'scores without a soft cap in attention by wgmma|cuda/kernels/attention_wgmma.cu|s/if (factor_of_tanh != 0)/if (false)/|kernel_attention_wgmma_over'
  'the sink of the first head|cuda/kernels/attention.h|s/args.sinks\[head\]/args.sinks[0]/|kernel_attention_over'
  'chunks merged without the sink|cuda/kernels/attention.cu|s/sum_with_sink(args, head, max, sum)/sum/|kernel_attention_over'
  'the sink of unscaled scores|cuda/kernels/attention_wgmma.cu|s/softmax.max\[r\] \* scale, sum/softmax.max[r], sum/|kernel_attention_wgmma_over'
  'keys after the end of the sequence|cuda/kernels/attention.h|s/return last < context ? last : context - 1;/return last;/|kernel_attention_over'
  'tiles of keys up to the own position|cuda/kernels/attention.cu|s/last = last_key(args, rows.last_position, context) \/ kTileKeys;/last = rows.last_position \/ kTileKeys;/|kernel_attention_over'
  'tiles of keys up to the own position in attention by wgmma|cuda/kernels/attention_wgmma.cu|s/const int last = last_key(args, rows.last_position, work.context) \/ kTileKeys;/const int last = rows.last_position \/ kTileKeys;/|kernel_attention_wgmma_over'
  'the biases of the first head|cuda/kernels/attention.cu|s/int64_t{rows.head\[r\]} \* args.bias_stride/int64_t{rows.head[0]} * 0/|kernel_attention_over'
  'biases that the scale multiplies|cuda/kernels/attention.cu|s/fmaf(biases\[key\], factor, /fmaf(biases[key], 1.0f, /|kernel_attention_over'
  'the embedding of a position without its offset|cuda/kernels/pooling.cu|s/args.positions\[token\] + args.position_offset/args.positions[token]/|kernel_add_embeddings'
  'the type of the first token|cuda/kernels/pooling.cu|s/args.token_types\[token\]/args.token_types[0]/|kernel_add_embeddings'
  'biases of the heads of the first rank|cuda/kernels/pooling.cu|s/ + args.head_begin + / + /|kernel_biases'
  'a norm of rows before their activation|cuda/kernels/pooling.cu|s/row\[k\] = activate(args.activation, row\[k\]);/row[k] = row[k];/|kernel_row_norm'
  'a norm of rows without its bias|cuda/kernels/pooling.cu|s/  norm.bias = args.bias;//|kernel_row_norm'
  'sums that forget the steps before|cuda/kernels/pooling.cu|s/float sum = args.before\[at\];/float sum = 0;/|kernel_pool_adds'
  'weights of a mean that begin at 1|cuda/kernels/pooling.cu|s/static_cast<float>(item.first_weight + row)/static_cast<float>(1 + row)/|kernel_pool_adds'
  'the largest value in place of NaN|cuda/kernels/pooling.cu|s/value > sum || value != value ?/value > sum ?/|kernel_pool_keeps_nan'
  'a result that is not divided|cuda/kernels/pooling.cu|s/sum \/ item.divisor;/sum;/|kernel_pool_adds'
  'a wrong order of operands|cuda/layout.h|s#c / 16 \* 4 + c % 16 / 8 \* 2#c / 16 * 2 + c % 16 / 8 * 4#|kernel_gemm'
  'a wrong order of weights|cuda/layout.h|s#c / 8 \* 4 + r / 8 \* 2#c / 8 * 2 + r / 8 * 4#|kernel_gemm'
  'the next block of keys|cuda/kernels/attention.cu|s/blocks\[tile \* kTileKeys/blocks[(tile + 1) * kTileKeys/|kernel_attention'
  'one key too many|cuda/kernels/attention.cu|s/context) - lowest);/context) - lowest + 1);/|kernel_attention'
  'a window that is one key too wide|cuda/kernels/attention.cu|s/position - args.window + 1;/position - args.window;/|kernel_attention'
  'values of unwritten slots that are not masked|cuda/kernels/attention.cu|s/written\[w\] = left >= 2 ? 0xffffffffu : left == 1 ? 0xffffu : 0;/written[w] = 0xffffffffu;/|kernel_attention'
  'a padding row that is written|cuda/kernels/rows.h|s/if (slot < 0) return;/if (slot < -1) return;/|kernel_qkv'
  'softmax states merged without the new maximum|cuda/kernels/softmax_state.h|s/max\[r\] = merge.max;/max[r] = max[r];/|kernel_attention'
  'softmax states merged before they are stored|cuda/kernels/attention.cu|s/^    __syncthreads();//|kernel_attention'
  'attention without griddepcontrol.wait|cuda/kernels/attention.cu|s/^  griddepcontrol_wait();//|kernel_attention'
  'parts added in another order|cuda/kernels/epilogue.h|s/if (parts == 4) return low;/if (parts == 4) return at[0] + at[stride] + at[2 * stride];/|kernel_partials'
  'a missing barrier in the fused sum and norm|cuda/kernels/rows.h|s/^  __syncthreads();//|kernel_add_norm'
  'hidden states changed by the last norm|cuda/kernels/partials.cu|s/if (norm.rows == nullptr) args.sum.hidden/args.sum.hidden/|kernel_add_norm'
  'hidden states from a rank that does not own them|cuda/kernels/partials.cu|s#owners\[token / args.tokens_per_owner\]#owners[0]#|kernel_add_norm'
  'a missing barrier in gemv|cuda/kernels/gemv.cu|0,/^  __syncthreads();/s///|kernel_gemv'
  'a buffer of sums overwritten while it is read|cuda/kernels/gemv.cu|s/buffer \^= 1/buffer = 0/|kernel_gemv'
  'weights of the previous tile|cuda/kernels/gemv.cu|s/load(product.weights, next_weights, i)/load(product.weights, weights, i)/|kernel_gemv'
  'a count of finished rows that is wrong for split heads|cuda/kernels/gemv.cu|s/atomicAdd(args.rows_done + head, count) + count/count/|kernel_gemv'
  'a count of finished rows that is not reset|cuda/kernels/gemv.cu|s/if (is_complete) args.rows_done/if (false) args.rows_done/|kernel_gemv'
  'a descriptor with the wrong swizzle|cuda/wgmma_layout.h|s/uint64_t{1} << 62/uint64_t{2} << 62/|kernel_wgmma'
  'a descriptor advanced too far in K|cuda/wgmma_layout.h|s/steps \* 32 >> 4/steps * 48 >> 4/|kernel_wgmma'
  'the parity of the previous phase|cuda/kernels/gemm_wgmma_kernel.h|s/place.parity ^ 1/place.parity/|kernel_gemm_wgmma'
  'a stage released while it is read|cuda/kernels/gemm_wgmma_kernel.h|s/wgmma_wait_group<kPending>();/wgmma_wait_group<kPending + 1>();/|kernel_gemm_wgmma'
  'a box that starts one token too late|cuda/kernels/gemm_wgmma_kernel.h|s/token_block \* kTokens, full/token_block * kTokens + 1, full/|kernel_gemm_wgmma'
  'weights after the end of K that are not zeroed|cuda/kernels/gemm_wgmma_kernel.h|s/step < steps ? from/true ? from/|kernel_gemm_wgmma'
  'a missing wait for the products|cuda/kernels/gemm_wgmma_kernel.h|s/    wgmma_wait_group<0>();//|kernel_gemm_wgmma'
  'the tile of another warp|cuda/kernels/gemm_wgmma_kernel.h|s/kBlockTiles + warp,/kBlockTiles + (warp ^ 1),/|kernel_gemm_wgmma'
  'a transposition without a warp barrier|cuda/kernels/tile_epilogue.h|s/^      __syncwarp();//|kernel_gemm_wgmma'
  'sums added to the old outputs of other tokens|cuda/kernels/tile_epilogue.h|s/before\[iteration\] = next\[iteration\]/before[iteration] = before[iteration]/|kernel_gemm_wgmma'
  'a later part of K that overwrites the first|cuda/kernels/tile_epilogue.h|s/return is_later_split ||/return/|kernel_gemm_wgmma'
  'a flag that is not reset|cuda/flags.h|s/^    \*flag = 0;//|kernel_gemm_wgmma'
  'a part of K that does not signal its end|cuda/kernels/gemm_wgmma_kernel.h|s/signal_flag(flag);/{}/|kernel_gemm_wgmma'
  'blocks numbered by their index|cuda/kernels/gemm_wgmma_kernel.h|s/job.k_splits == 1$/true/|kernel_gemm_wgmma'
  'a number of blocks that is not reset|cuda/flags.h|s/if (number == num_blocks - 1) \*next = 0;//|kernel_gemm_wgmma'
  'full-tile accesses to unaligned output rows|cuda/kernels/tile_epilogue.h|s/args.out_stride % 4 == 0/true/|kernel_gemm_wgmma'
  'gemv without griddepcontrol.wait|cuda/kernels/gemv.cu|s/^  griddepcontrol_wait();//|kernel_gemv'
  'gemv that copies activations before griddepcontrol.wait|cuda/kernels/gemv.cu|s/^  griddepcontrol_launch_dependents();/  if constexpr (!kIsNormed) copy_to_shared(product, acts);/;s/^    copy_to_shared(product, acts);/;/|kernel_gemv'
  'codes in 4 bits of the other instruction|cuda/kernels/weight_tiles.h|s/scaled((codes.y >> i/scaled((codes.x >> i/|kernel_gemm_of_codes'
  'codes in 4 bits with the scale of the other row|cuda/kernels/weight_tiles.h|s/kBias, i % 2);/kBias, 0);/|kernel_gemm_of_codes'
  'a scale that is rounded to bf16|cuda/kernels/weight_tiles.h|s/multiply_pairs<T>(number, rest\[row\])/0x80008000u/|kernel_gemm_of_codes'
  'codes in 8 bits of another column|cuda/kernels/weight_tiles.h|s/0x4341), row);/0x4241), row);/|kernel_gemm_of_codes'
  'bytes of codes in another order|cuda/kernels/weight_tiles.h|s/to_bits_pair<T>(values\[0\], values\[2\])/to_bits_pair<T>(values[0], values[1])/|kernel_gemm_of_codes'
  'the record of the first half of a K tile|cuda/kernels/weight_tiles.h|s/step \* kTileDepth + half \* 16)/step * kTileDepth)/|kernel_gemm_of_codes'
  'the factors of the first block|cuda/kernels/weight_tiles.h|s/const int block = all.num_blocks == 0 ? 0 : .*/const int block = 0;/|kernel_gemm_of_codes'
  'the offset in place of the scale|cuda/kernels/weight_tiles.h|s/static_cast<float>(record >> 8 \& 0xff)/static_cast<float>(record \& 0xff)/|kernel_gemm_of_codes'
  'codes without their sixth bit|cuda/kernels/weight_tiles.h|s/high >> word \* 2 \& 0x03030303u/high >> word * 2 \& 0x01010101u/|kernel_gemm_of_codes'
  'the lower half of a table|cuda/kernels/weight_tiles.h|s/return (low \& ~is_high) . (high \& is_high);/return low;/|kernel_gemm_of_codes'
  'a part with the groups of the first|cuda/kernels/weight_tiles.h|s/blocks, first_col + all.part_cols}/blocks, first_col}/|kernel_gemm_of_codes'
  'the codes of the previous stage by wgmma|cuda/kernels/gemm_wgmma_kernel.h|s/codes.load((steps - kStageSteps) \/ 2);/{}/|kernel_gemm_wgmma_of_codes'
  'the codes of another warp by wgmma|cuda/kernels/gemm_wgmma_kernel.h|s/codes(job.args.weights, int64_t{item.feature_block} \* kBlockTiles + warp/codes(job.args.weights, int64_t{item.feature_block} * kBlockTiles + (warp ^ 1)/|kernel_gemm_wgmma_of_codes'
  'a later part with the codes of the first by wgmma|cuda/kernels/gemm_wgmma_kernel.h|s/next_step = 0, source = source.next_part(matrix, part_steps);/next_step = 0;/|kernel_gemm_wgmma_of_codes'
  'a later K split that starts with the first codes|cuda/kernels/gemm_wgmma_kernel.h|s/next_step = first_k_tile % part_steps;/next_step = 0;/|kernel_gemm_wgmma_of_codes'
  'embeddings with the codes of row r for row r + 8|cuda/kernels/weight_tiles.h|s#>> (row % kTileRows / 8 \* 4) \& 15#\& 15#|kernel_embedding_of_codes'
  'the addend of a fused product missing|cuda/device.h|s/: "=r"(result) : "r"(a), "r"(b), "r"(c));/: "=r"(result) : "r"(a), "r"(b), "r"(0x80008000u));/|cuda/kernels/gemm.cu by PTX:kernel_gemm_of_codes'
  'the scale of another key|cuda/kernels/attention.cu|s/offset + (first + j) \* 8 + lane \/ 4\]/offset + (first + j) * 8 + lane % 4]/|kernel_attention'
  'values with the scale of their neighbor|cuda/kernels/attention.cu|s/fp8_scale<T>(exponents\[w \* 8 + 1\])/fp8_scale<T>(exponents[w * 8])/|kernel_attention'
  'ties rounded up in fp8|cuda/fp8.h|s/0x7ffff + (bits >> 20 \& 1)/0x80000/|kernel_fp8'
  'a non-finite head stored as finite|cuda/fp8.h|s/const bool is_non_finite = .*/const bool is_non_finite = false;/|kernel_fp8'
  'keys without fence.proxy.async|cuda/kernels/attention_wgmma.cu|s/^    fence_proxy_async();//|kernel_attention_wgmma'
  'a missing wait for cp.async|cuda/kernels/attention_wgmma.cu|s/    cp_async_wait_group<kCopiesInFlight<D>>();//|kernel_attention_wgmma'
  'a missing wait for a stage of keys|cuda/kernels/attention_wgmma.cu|s/    if (tile < last) await_stage();/    if (tile < last) awaited.advance(Ring<D>::kStages);/|kernel_attention_wgmma'
  'large heads without the dimensions from 128 on|cuda/kernels/attention.cu|s/dim += kWarpSize \* 4/dim += kWarpSize * 8/|kernel_attention'
  'values of the first dimensions at the places of the later ones|cuda/kernels/attention.cu|s/first + i < last_dims ? first + i : last_dims/i/|kernel_attention'
  'the dimensions of the other warpgroup|cuda/kernels/attention_wgmma.cu|s/swizzled_operand(shared_address(ring.values(slot)) + first_dim \* kSwizzledRow)/swizzled_operand(shared_address(ring.values(slot)))/|kernel_attention_wgmma'
  'weights overwritten while they are multiplied|cuda/kernels/attention_wgmma.cu|/wgmma_wait_group<1>();/{n;s/warpgroup_fence_operand(scores);/pack_weights();/}|kernel_attention_wgmma'
  'keys in the order of the cache|cuda/attention_layout.h|s#const int row = key / 2 \* 8 + warp \* 2 + key % 2;#const int row = warp * 8 + key;#|kernel_attention_wgmma'
  'values with another swizzle|cuda/attention_layout.h|s#(dim \* kSwizzledRow + word \* 16)))};#(dim * kSwizzledRow + (word ^ 1) * 16)))};#|kernel_attention_wgmma'
  'one key too many in attention by wgmma|cuda/kernels/attention_wgmma.cu|s/if (key > last_key(args, position, context) ||/if (key > last_key(args, position, context) + 1 ||/|kernel_attention_wgmma'
  'a partly visible tile treated as fully visible|cuda/kernels/attention_wgmma.cu|s/first_key + kTileKeys - 1 <= last_key(args, rows.first_position, context)/first_key + kTileKeys - 1 <= last_key(args, rows.last_position, context)/|kernel_attention_wgmma'
  'a window that is one key too wide in attention by wgmma|cuda/kernels/attention_wgmma.cu|s/key <= position - window/key < position - window/|kernel_attention_wgmma'
  'unwritten values that are not zeroed in attention by wgmma|cuda/kernels/attention_wgmma.cu|s/^      if (key >= num_written)$/      if (false)/|kernel_attention_wgmma'
  'sums that are not rescaled to the new maximum|cuda/kernels/attention_wgmma.cu|s/out\[i\] \*= softmax.factor/out[i] *= 1 + 0 * softmax.factor/|kernel_attention_wgmma'
  'a search that stops one digit early|cuda/kernels/sample_threshold.h|s/is_done || shift == 0/is_done || shift <= 10/|kernel_samples'
  'sums of masses without carries|cuda/kernels/sample_threshold.h|s/ > ~low ? 1 : 0;/ > ~low ? 0 : 0;/|kernel_samples'
  'a lower bound that too few values reach|cuda/kernels/sample_threshold.h|s/value_of(find_threshold<false>(0, static_cast<unsigned long long>(target)/value_of(find_threshold<false>(0, static_cast<unsigned long long>((target + 1) \/ 2)/|kernel_samples'
  'candidates dropped when the list is full|cuda/kernels/sample_threshold.h|s/shared.num_listed <= kListed ? shared.num_listed : kUnlisted/shared.num_listed <= kListed ? shared.num_listed : kListed/|kernel_samples'
  'skipped values before the first 16-byte boundary|cuda/kernels/sample_row.h|s/const int single = thread < head ?/const int single = thread < 0 ?/|kernel_samples'
  'a tail of top-p that is cut too early|cuda/kernels/sample.cu|s/summary.sum)) + 0.01f,/summary.sum)) - 4.0f,/|kernel_samples'
  'the second best expert of a tie|cuda/kernels/router.cu|s/(other_key == key \&\& other < best)/(other_key == key \&\& other > best)/|kernel_router'
  'a score that the selection bias changes|cuda/kernels/router.cu|s/const float weight = scores\[best\];/const float weight = keys[best];/|kernel_router'
  'a group with the sum of all its keys|cuda/kernels/router.cu|s/groups\[group\] = first + second;/groups[group] = first;/|kernel_router'
  'an expert that is chosen twice|cuda/kernels/router.cu|s/keys\[best\] = as_float(0x7fc00000u);/keys[best] = keys[best];/|kernel_router'
  'logits before the last warp has written them|cuda/kernels/router.cu|/^  __syncthreads();$/{N;s/.*\n  const int token/  const int token/}|kernel_router'
  'pairs placed before those of earlier lanes|cuda/kernels/expert_rows.cu|s/mask \& ((1u << lane) - 1)/mask \& ~((2u << lane) - 1)/|kernel_expert_rows'
  'padding rows that keep their old token|cuda/kernels/expert_rows.cu|s/if (row + lane < end) args.row_tokens/if (false) args.row_tokens/|kernel_expert_rows'
  'counts that are used before all threads have counted|cuda/kernels/expert_rows.cu|s/^  __syncthreads();//|kernel_expert_rows'
  'rows of padding that are normed|cuda/kernels/rows.cu|s/args.rows\[row\] < 0) return;/args.rows[row] < -1) return;/|kernel_norm'
  'the weights of the first expert|cuda/kernels/expert_gemm_kernel.h|s/args.experts\[expert\];/args.experts[0];/|kernel_expert_gemm'
  'a bias of every rank|cuda/kernels/expert_gemm_kernel.h|s/if (!args.adds_bias)/if (false)/|kernel_expert_gemm'
  'the shared expert with the weight of another token|cuda/kernels/expert_rows.cu|s/args.shared_weights\[token\]/args.shared_weights[0]/|kernel_expert_sums'
  'the sum of another share of the tokens|cuda/kernels/expert_rows.cu|s/token >= args.first/token > args.first/|kernel_expert_sums'
  'an update without its scale|cuda/kernels/lora.cu|s/args.world_size) \* lora->scales\[value\];/args.world_size);/|kernel_lora'
  'the values of another factor|cuda/kernels/lora.h|s/t\[range.first + j\]/t[j]/|kernel_lora'
  'an update of tokens that are not wanted|cuda/kernels/lora.cu|s/token < args.first_token ||/false ||/|kernel_lora'
  'activations that are used before they are copied|cuda/kernels/lora.cu|s/^  __syncthreads();//|kernel_lora'
  'only the first part of K|cuda/kernels/lora.cu|s/if (part < args.split.parts)$/if (part == 0)/|kernel_lora'
  'the first rows for the tokens from a later one on|cuda/kernels/lora.cu|s/(args.rows.tokens == nullptr ? args.first_token : 0)/0/|kernel_lora_updates_of_all'
  'rows that all have the first update|cuda/kernels/lora.cu|s/rows.adapters == nullptr ? row :/rows.adapters == nullptr ? 0 :/|kernel_lora_updates_of_all'
  'the factors of the first token after an update|cuda/kernels/lora.cu|s/args.factors\[token \* args.factor_stride + feature\]/args.factors[feature]/|kernel_gates'
  'the shared expert with the update of the first expert|cuda/kernels/lora.cu|s/is_shared ? args.num_experts :/is_shared ? 0 :/|kernel_expert_loras'
  'the row of an expert with the adapter of another token|cuda/kernels/lora.cu|s/args.token_adapters\[token\]/args.token_adapters[row % args.num_tokens]/|kernel_expert_loras'
  'the update of an embedding without the id that was drawn|cuda/kernels/rows.cu|s/drawn_id(args.ids\[args.rows.tokens\[row\]\], args.drawn_ids);/args.ids[args.rows.tokens[row]];/|kernel_lora_embeddings'
  'a router without the updates of adapters|cuda/kernels/router.cu|s/if (args.updates != nullptr \&\& first/if (false \&\& first/|kernel_router_chooses'
  'the update of a router without its scale|cuda/kernels/router.cu|s/t\[value\] = sum \* lora->scales\[value\];/t[value] = sum;/|kernel_router_chooses'
  'the update of the router for the shared gate|cuda/kernels/router.cu|s/is_gate ? args.gate_loras : args.router_loras/args.router_loras/|kernel_router_chooses'
  'a missing barrier in the updates of routers|cuda/kernels/router.cu|s/^    __syncthreads();  .*//|kernel_router_chooses'
  'experts without the updates of their results|cuda/kernels/expert_rows.cu|s/if constexpr (kIsUpdated) value += updates.at(slot, k);//|kernel_expert_sums'
  'the update of a result with the values of one rank|cuda/kernels/expert_rows.cu|s/rank < args.world_size ? args.results\[rank\]\[args.t_begin/rank < 1 ? args.results[rank][args.t_begin/|kernel_expert_sums'
  'the shared expert with the update of an expert|cuda/kernels/expert_rows.cu|s/updates.at(args.top_k, k)/updates.at(0, k)/|kernel_expert_sums'
  'updates of results that are used before they are summed|cuda/kernels/expert_rows.cu|s/^    __syncthreads();//|kernel_expert_sums'
  'gates in the place of ups|cuda/kernels/lora.cu|s/gate\[kTileRows \/ 2\])/gate[0])/|kernel_gates'
  'a missing barrier in the recurrence|cuda/kernels/recurrent.cu|s/^    __syncthreads();//|kernel_recurrent'
  'the key of the next token|cuda/kernels/recurrent.cu|s/const float\* const key = shared + buffer/const float* const key = shared + (buffer ^ 1)/|kernel_recurrent'
  'heads of another group|cuda/kernels/recurrent.cu|s/head % shape.num_groups : head \/ (shape.num_heads \/ shape.num_groups)/head \/ (shape.num_heads \/ shape.num_groups) : head % shape.num_groups/|kernel_recurrent'
  'an error without the decay|cuda/kernels/recurrent.cu|s/fmaf(-now_decay, column_sum/fmaf(-1.0f, column_sum/|kernel_recurrent'
  'the sum of half a column|cuda/kernels/recurrent.cu|s/bits < kRowThreads; bits/bits < kRowThreads \/ 2; bits/|kernel_recurrent'
  'the columns of the first block|cuda/kernels/recurrent.cu|s/static_cast<int>(blockIdx.x) \* kColumns/0 * kColumns/|kernel_recurrent'
  'a state that goes to the wrong slot|cuda/kernels/recurrent.cu|s/slot_of(args, write_slot) + state_at/slot_of(args, 0) + state_at/|kernel_recurrent'
  'zeros before the step|cuda/kernels/recurrent.cu|s/return read_slot < 0 ? 0.0f/return true ? 0.0f/|kernel_recurrent'
  'the inputs of the read slot overwritten first|cuda/kernels/recurrent.cu|s/if (slot == read_slot)$/if (false)/|kernel_recurrent'
  'slots after the first 32 rows|cuda/kernels/recurrent.cu|s/base += kWarpSize)/base += 4096)/|kernel_recurrent'
  'a gate of Mamba 2 after the norm|cuda/kernels/recurrent.cu|s/return is_mamba ? x\[i\] \* silu(gates\[i\]) : x\[i\];/return x[i];/|kernel_recurrent'
  'queries that are not scaled|cuda/kernels/recurrent.cu|s/i < shape.num_groups ? 1.0f : /true ? 1.0f : /|kernel_recurrent'
  'a missing skip|cuda/kernels/recurrent.cu|s/fmaf(args.skip\[head\], now_value, result)/result/|kernel_recurrent'
  'a missing barrier in the gated norm|cuda/kernels/recurrent.cu|s/^  __syncthreads();//|kernel_recurrent'
  'the gate of the first value|cuda/kernels/recurrent.cu|s/args.gate_stride + k\]/args.gate_stride]/|kernel_output_gate'
  'operands of mma in another order|cuda/device.h|s/{%8, %9}, {%0/{%9, %8}, {%0/|test/native/gpu/ops.cu by PTX:kernel_mma'
  'swapped halves of a pair|cuda/device.h|s/: "=r"(bits) : "f"(high), "f"(low)/: "=r"(bits) : "f"(low), "f"(high)/|test/native/gpu/ops.cu by PTX:kernel_conversions'
  'a cp.async wait that lets one group stay pending|cuda/device.h|s/asm volatile("cp.async.wait_group %0;" ::"n"(kPending)/asm volatile("cp.async.wait_group %0;" ::"n"(kPending + 1)/|cuda/kernels/gemm.cu by PTX:kernel_gemm_over'
  'an inverted store predicate|cuda/device.h|s/setp.ne.u32 wanted, %5, 0/setp.eq.u32 wanted, %5, 0/|cuda/kernels/gemm_wgmma.cu by PTX:kernel_gemm_wgmma_over'
  'vector accesses to unaligned output rows|cuda/kernels/tile_epilogue.h|s/args.out_stride % 4 == 0/true/|cuda/kernels/gemm_wgmma.cu by PTX:kernel_gemm_wgmma_over'
  'the noise of another id|cuda/kernels/sample.cu|s/id \& 2 ? c3 : c1/id \& 2 ? c1 : c3/|kernel_samples'
  'skipped Gumbel noise that could win|cuda/kernels/sample.cu|s/ \* 1.01f;/ * 0.5f;/|kernel_samples'
)

# The program of the kernel tests. A mutant takes the objects of all files that its fault does not change.
PLAIN=build/test-native/release
make -C test/native -j"$(nproc)" -s "$ROOT/$PLAIN/gpu_ops" || exit 1
read -ra OBJECTS < <(make -C test/native -s gpu_ops_objects)
"$PLAIN/gpu_ops" --jobs "$(nproc)" kernel_ > "$OUT/log" 2>&1 || { tail "$OUT/log"; echo 'the tests fail without a mutation'; exit 1; }

build() { # folder for objects, source tree, objects whose sources are compiled again
  local folder=$1 tree=$2 object source jobs=0
  shift 2
  for object in "$@"; do
    source=${object#"$ROOT/$PLAIN/"} source=${source%.o}.cu
    "$CXX" "${FLAGS[@]}" -I"$tree" -I"$ROOT" -I"$ROOT/test/native/cuda_host" -x c++ -c -o "$folder/${source//\//_}.o" "$tree/$source" &
    if [ $((++jobs % $(nproc))) = 0 ]; then wait; fi
  done
  wait
}
link() { # program, folder of changed objects
  local object name objects=()
  for object in "${OBJECTS[@]}"; do
    name=${object#"$ROOT/$PLAIN/"} name=${name%.o}.cu
    name=$2/${name//\//_}.o
    if [ -e "$name" ]; then objects+=("$name"); else objects+=("$object"); fi
  done
  "$CXX" -pthread -o "$1" "${objects[@]}"
}

try_by_ptx() { # source tree, file to compile to PTX, filter; returns 2 when nvcc fails, 3 when the tests fail without the fault
  # A test that fails without the fault would detect every fault.
  (CAPSTAN_TEST_PTX=$PTX timeout 300 "$PLAIN/gpu_ops" --first-failure "$3") > "$1/log" 2>&1 || return 3
  mkdir -p "$1/ptx"
  cp -r "$PTX"/* "$1/ptx/"
  nvcc -std=c++20 -O3 -I"$1" -I. -arch=compute_90a -ptx -o "$1/ptx/${2%.cu}.ptx" "$1/$2" 2> "$1/log" || return 2
  (CAPSTAN_TEST_PTX=$1/ptx timeout 300 "$PLAIN/gpu_ops" --first-failure "$3") > "$1/log" 2>&1
}
PTX=$PLAIN/ptx
[ "${1:-}" = --sample ] || ! command -v nvcc > /dev/null || { make -C test/native -j"$(nproc)" -s ptx_files || exit 1; }

try_mutation() { # index; prints the result and fails unless the tests detect the mutation
  local mutation=${MUTATIONS[$1]} tree=$OUT/mutant-$1 name file filter change rest object changed
  name=${mutation%%|*} rest=${mutation#*|}
  file=${rest%%|*} filter=${rest##*|}
  change=${rest#*|} change=${change%|*}
  if ! "$PLAIN/gpu_ops" --list | grep -F -- "${filter##*:}" > /dev/null; then
    echo "NO TEST    $name: no test matches ${filter##*:}"
    return 1
  fi
  mkdir -p "$tree/objects"
  cp -r --parents cuda test/native/gpu "$tree"
  sed -i "$change" "$tree/$file"
  if cmp -s "$file" "$tree/$file"; then
    echo "NOT FOUND  $name: the sed expression does not change $file"
    return 1
  fi
  if [[ $filter == *' by PTX:'* ]]; then
    if ! command -v nvcc > /dev/null; then
      echo "skipped    $name: needs nvcc"
      return 0
    fi
    try_by_ptx "$tree" "${filter%% by PTX:*}" "${filter##*:}"
    case $? in 0) echo "UNDETECTED $name"; return 1 ;; 2) tail -5 "$tree/log"; echo "NOT BUILT  $name"; return 1 ;; 3) tail -5 "$tree/log"; echo "NOT TRIED  $name: the tests fail without it"; return 1 ;; esac
    echo "detected   $name"
    rm -rf "$tree"
    return 0
  fi
  changed=()
  for object in "${OBJECTS[@]}"; do
    case $object in *"/$PLAIN/cuda/"* | *"/$PLAIN/test/native/gpu/"*) if grep -qF "$file" "${object%.o}.d"; then changed+=("$object"); fi ;; esac
  done
  build "$tree/objects" "$tree" "${changed[@]}" 2> "$tree/log"
  if [ "$(find "$tree/objects" -name '*.o' | wc -l)" != ${#changed[@]} ] || ! link "$tree/tests" "$tree/objects" 2>> "$tree/log"; then
    tail -5 "$tree/log"
    echo "NOT BUILT  $name"
    return 1
  elif (timeout 300 "$tree/tests" --first-failure "$filter") > "$tree/log" 2>&1; then
    echo "UNDETECTED $name"
    return 1
  fi
  echo "detected   $name"
  rm -rf "$tree"
}

declare -A sampled=()
is_wanted() { # index; further arguments: those of this script
  local mutation=${MUTATIONS[$1]} name rest file
  shift
  name=${mutation%%|*} rest=${mutation#*|}
  file=${rest%%|*}
  if [ "${1:-}" = --sample ]; then
    [[ $rest != *' by PTX:'* && -z "${sampled[$file]:-}" ]] || return 1
    sampled[$file]=$name
    return 0
  fi
  [ $# = 0 ] || [[ " $* " = *" $name "* ]]
}

rm -rf "$OUT"/mutant-*
failed=0 running=0 number_run=0
for number in "${!MUTATIONS[@]}"; do
  is_wanted "$number" "$@" || continue
  number_run=$((number_run + 1))
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
echo "$number_run of ${#MUTATIONS[@]} mutations"
exit $failed
