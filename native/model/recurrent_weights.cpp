#include "native/model/recurrent_weights.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "native/base/error.h"

namespace capstan {

namespace {

// Sizes of the whole model.
struct Sizes {
  int64_t values, keys, heads, groups, head_dim, state_size, channels;
  int64_t heads_per_group() const { return heads / groups; }

  explicit Sizes(const RecurrentShape& shape)
      : values(int64_t{shape.num_heads} * shape.head_dim),
        keys(int64_t{shape.num_groups} * shape.state_size),
        heads(shape.num_heads),
        groups(shape.num_groups),
        head_dim(shape.head_dim),
        state_size(shape.state_size),
        channels(shape.conv_channels) {}
};

struct Range {
  int64_t begin = 0, count = 0;
};

// What a rank holds, as rows of a tensor with only these rows.
struct Ranges {
  Range values, keys, heads, channels;

  explicit Ranges(const RecurrentShard& shard) {
    const Sizes sizes(shard.shape);
    values = {shard.first_head * sizes.head_dim, sizes.values};
    keys = {shard.first_group * sizes.state_size, sizes.keys};
    heads = {shard.first_head, sizes.heads};
    channels = {shard.first_channel, sizes.channels};
  }
};

// Rows of a tensor, as an offset and a range behind it.
RecurrentColumns rows_of(const char* tensor, int64_t offset, Range range) {
  return {tensor, offset + range.begin, range.count};
}

// Qwen3-Next stores the rows of one group together: q, k, v and z in one tensor, b and a in another. In its GGUF files
// only b and a are so.
std::vector<RecurrentColumns> delta_net_columns(const RecurrentShard& shard, const Sizes& sizes, const HasTensor& has) {
  const Ranges ranges(shard);
  std::vector<RecurrentColumns> columns;
  const auto add_grouped = [&](const char* tensor, int64_t group_rows, int64_t begin, int64_t count) {
    for (int group = shard.first_group; group < shard.first_group + shard.shape.num_groups; ++group)
      columns.push_back(rows_of(tensor, group * group_rows, {begin, count}));
  };
  if (has("in_proj_qkvz")) {
    const int64_t values = sizes.heads_per_group() * sizes.head_dim, keys = sizes.state_size;
    const int64_t qkvz = 2 * keys + 2 * values;
    add_grouped("in_proj_qkvz", qkvz, 2 * keys, values);
    add_grouped("in_proj_qkvz", qkvz, keys, keys);
    add_grouped("in_proj_qkvz", qkvz, 0, keys);
    add_grouped("in_proj_qkvz", qkvz, 2 * keys + values, values);
  } else {
    columns.push_back(rows_of("in_proj_qkv", 2 * sizes.keys, ranges.values));
    columns.push_back(rows_of("in_proj_qkv", sizes.keys, ranges.keys));
    columns.push_back(rows_of("in_proj_qkv", 0, ranges.keys));
    columns.push_back(rows_of("in_proj_z", 0, ranges.values));
  }
  if (has("in_proj_ba")) {
    const int64_t heads = sizes.heads_per_group();
    add_grouped("in_proj_ba", 2 * heads, heads, heads);
    add_grouped("in_proj_ba", 2 * heads, 0, heads);
  } else {
    columns.push_back(rows_of("in_proj_a", 0, ranges.heads));
    columns.push_back(rows_of("in_proj_b", 0, ranges.heads));
  }
  return columns;
}

// The channels in the order of the columns of in_proj.
std::vector<RecurrentColumns> conv_channels(Mixer mixer, const Ranges& ranges, const Sizes& sizes) {
  if (mixer == Mixer::kShortConv) return {rows_of("conv", 0, ranges.channels)};
  const bool is_delta = mixer == Mixer::kDeltaNet;  // whose channels are q, k and v; of Mamba 2 x, B and C
  return {rows_of("conv", is_delta ? 2 * sizes.keys : 0, ranges.values),
          rows_of("conv", is_delta ? sizes.keys : sizes.values, ranges.keys),
          rows_of("conv", is_delta ? 0 : sizes.values + sizes.keys, ranges.keys)};
}

MatrixSource source_of(const std::vector<RecurrentColumns>& columns, const Slicer& slicer, const std::string& prefix) {
  MatrixSource source;
  for (const auto& [tensor, begin, count] : columns) {
    source.slices.push_back(slicer.rows_of(prefix + tensor + ".weight", begin, count));
    slicer.add_bias(source, prefix + tensor, begin, count);
  }
  return source;
}

[[noreturn]] void refuse_split(int world_size, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              "tensorParallelSize " + std::to_string(world_size) + " does not fit this model: " + what);
}

}  // namespace

RecurrentShard make_recurrent_shard(const ModelSpec& spec, int rank, int world_size) {
  const RecurrentShape& shape = spec.recurrent;
  RecurrentShard shard{shape, 0, 0, 0};
  if (world_size == 1) return shard;
  const int64_t total = shape.output_size();
  const int heads_per_group = shape.num_heads / std::max(shape.num_groups, 1);
  if (shape.heads_alternate && heads_per_group % world_size != 0)
    refuse_split(world_size, "its recurrent layers have " + std::to_string(heads_per_group) +
                                 " heads in each group, which a GGUF file of Qwen3.5 stores apart");
  if (!shape.heads_alternate && shape.num_groups % world_size != 0)
    refuse_split(world_size, "its recurrent layers have " + std::to_string(shape.num_groups) +
                                 " groups of heads, and a rank holds whole groups");
  if (row_parallel_parts(total) % world_size != 0)
    refuse_split(world_size, "the output projection of its recurrent layers has " + std::to_string(total) +
                                 " columns, which form " + std::to_string(row_parallel_parts(total)) + " equal parts");
  shard.shape.num_heads /= world_size;
  shard.first_head = rank * shard.shape.num_heads;
  if (shape.heads_alternate) {  // each rank has all groups
    shard.shape.conv_channels -= total - shard.shape.output_size();
  } else {
    shard.shape.num_groups /= world_size;
    shard.shape.conv_channels /= world_size;
    shard.first_group = rank * shard.shape.num_groups;
  }
  shard.first_channel = rank * shard.shape.output_size();
  return shard;
}

void check_recurrent_tensors(const ModelSpec& spec, Mixer mixer, const TensorTable& tensors,
                             const std::string& prefix) {
  const Sizes sizes(spec.recurrent);
  const auto matrix = [&](const char* name, int64_t rows, int64_t cols) {
    require_shape(tensors, prefix + name + ".weight", rows, cols);
    if (tensors.contains(prefix + name + ".bias")) require_shape(tensors, prefix + name + ".bias", 1, rows);
  };
  const auto vector = [&](const char* name, int64_t size) { require_shape(tensors, prefix + name, 1, size); };
  matrix("conv", sizes.channels, spec.recurrent.conv_taps);
  matrix("o_proj", spec.hidden_size, spec.recurrent.output_size());
  const auto projections = recurrent_projections(spec, mixer);
  const auto projection = [&](const char* name) { matrix(name, projections.at(name), spec.hidden_size); };
  if (mixer == Mixer::kShortConv) return projection("in_proj");

  vector("a_log", sizes.heads);
  vector("dt_bias", sizes.heads);
  if (mixer == Mixer::kMamba2) {
    projection("in_proj");
    vector("skip", sizes.heads);
    return vector("mixer_norm.weight", sizes.values);
  }
  vector("mixer_norm.weight", sizes.head_dim);
  // Tensors that hold the rows of a group together have the heads of a group together.
  const bool may_be_grouped = !spec.recurrent.heads_alternate;
  if (may_be_grouped && tensors.contains(prefix + "in_proj_qkvz.weight")) {
    projection("in_proj_qkvz");
  } else {
    projection("in_proj_qkv");
    projection("in_proj_z");
  }
  if (may_be_grouped && tensors.contains(prefix + "in_proj_ba.weight")) return projection("in_proj_ba");
  projection("in_proj_a");
  projection("in_proj_b");
}

std::vector<RecurrentColumns> recurrent_columns(const ModelSpec& spec, Mixer mixer, const RecurrentShard& shard,
                                                const HasTensor& has) {
  const Sizes sizes(spec.recurrent);
  const Ranges ranges(shard);
  if (mixer == Mixer::kDeltaNet) return delta_net_columns(shard, sizes, has);
  const auto in_proj = [](int64_t offset, Range range) { return rows_of("in_proj", offset, range); };
  if (mixer == Mixer::kShortConv)
    return {in_proj(0, ranges.channels), in_proj(sizes.channels, ranges.channels),
            in_proj(2 * sizes.channels, ranges.channels)};
  // The rows are the gate, x, B, C and the time steps.
  return {in_proj(sizes.values, ranges.values), in_proj(2 * sizes.values, ranges.keys),
          in_proj(2 * sizes.values + sizes.keys, ranges.keys), in_proj(0, ranges.values),
          in_proj(2 * sizes.values + 2 * sizes.keys, ranges.heads)};
}

std::map<std::string, int64_t> recurrent_projections(const ModelSpec& spec, Mixer mixer) {
  const Sizes sizes(spec.recurrent);
  if (mixer == Mixer::kShortConv) return {{"in_proj", 3 * sizes.channels}};
  if (mixer == Mixer::kMamba2) return {{"in_proj", 2 * sizes.values + 2 * sizes.keys + sizes.heads}};
  return {{"in_proj_qkvz", 2 * sizes.keys + 2 * sizes.values},
          {"in_proj_qkv", 2 * sizes.keys + sizes.values},
          {"in_proj_z", sizes.values},
          {"in_proj_ba", 2 * sizes.heads},
          {"in_proj_a", sizes.heads},
          {"in_proj_b", sizes.heads}};
}

RecurrentWeights load_recurrent_weights(const ModelSpec& spec, Mixer mixer, const RecurrentShard& shard,
                                        const Slicer& slicer, const std::string& prefix, const LoadMatrix& load_matrix,
                                        Backend& backend, const LoadProgress& progress) {
  const Sizes sizes(spec.recurrent);
  const Ranges ranges(shard);
  const HasTensor has = [&](const std::string& name) { return slicer.has(prefix + name + ".weight"); };

  RecurrentWeights weights;
  weights.in_proj = load_matrix(source_of(recurrent_columns(spec, mixer, shard, has), slicer, prefix));
  weights.conv = backend.load_convolution(source_of(conv_channels(mixer, ranges, sizes), slicer, prefix), progress);
  if (mixer == Mixer::kShortConv) return weights;
  const auto vector = [&](const char* name, Range range) {
    return backend.load_vector(slicer.cols_of(prefix + name, range.begin, range.count), 0.0f, progress);
  };
  weights.a_log = vector("a_log", ranges.heads);
  weights.dt_bias = vector("dt_bias", ranges.heads);
  weights.norm = vector("mixer_norm.weight", mixer == Mixer::kMamba2 ? ranges.values : Range{0, sizes.head_dim});
  if (mixer == Mixer::kMamba2) weights.skip = vector("skip", ranges.heads);
  return weights;
}

}  // namespace capstan
