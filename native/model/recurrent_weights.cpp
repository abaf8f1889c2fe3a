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

// The slices of one matrix or convolution, in the order of its columns.
class RowSource {
 public:
  RowSource(const Slicer& slicer, const std::string& prefix) : slicer_(slicer), prefix_(prefix) {}

  bool has(const char* name) const { return slicer_.has(prefix_ + name + ".weight"); }
  // Appends rows of `name`.weight from `offset` + range.begin on, and of its bias if there is one.
  void add(const std::string& name, int64_t offset, Range range) {
    const int64_t begin = offset + range.begin;
    source.slices.push_back(slicer_.rows_of(prefix_ + name + ".weight", begin, range.count));
    slicer_.add_bias(source, prefix_ + name, begin, range.count);
  }

  MatrixSource source;

 private:
  const Slicer& slicer_;
  const std::string& prefix_;
};

// Qwen3-Next stores the rows of one group together: q, k, v and z in one tensor, b and a in another. In its GGUF files
// only b and a are so.
void add_delta_net_columns(RowSource& rows, const RecurrentShard& shard, const Sizes& sizes) {
  const Ranges ranges(shard);
  const auto add_grouped = [&](const char* name, int64_t group_rows, int64_t begin, int64_t count) {
    for (int group = shard.first_group; group < shard.first_group + shard.shape.num_groups; ++group)
      rows.add(name, group * group_rows, {begin, count});
  };
  if (rows.has("in_proj_qkvz")) {
    const int64_t values = sizes.heads_per_group() * sizes.head_dim, keys = sizes.state_size;
    const int64_t qkvz = 2 * keys + 2 * values;
    add_grouped("in_proj_qkvz", qkvz, 2 * keys, values);
    add_grouped("in_proj_qkvz", qkvz, keys, keys);
    add_grouped("in_proj_qkvz", qkvz, 0, keys);
    add_grouped("in_proj_qkvz", qkvz, 2 * keys + values, values);
  } else {
    rows.add("in_proj_qkv", 2 * sizes.keys, ranges.values);
    rows.add("in_proj_qkv", sizes.keys, ranges.keys);
    rows.add("in_proj_qkv", 0, ranges.keys);
    rows.add("in_proj_z", 0, ranges.values);
  }
  if (rows.has("in_proj_ba")) {
    const int64_t heads = sizes.heads_per_group();
    add_grouped("in_proj_ba", 2 * heads, heads, heads);
    add_grouped("in_proj_ba", 2 * heads, 0, heads);
  } else {
    rows.add("in_proj_a", 0, ranges.heads);
    rows.add("in_proj_b", 0, ranges.heads);
  }
}

// The rows of in_proj are the gate, x, B, C and the time steps.
void add_mamba_columns(RowSource& rows, const Ranges& ranges, const Sizes& sizes) {
  rows.add("in_proj", sizes.values, ranges.values);
  rows.add("in_proj", 2 * sizes.values, ranges.keys);
  rows.add("in_proj", 2 * sizes.values + sizes.keys, ranges.keys);
  rows.add("in_proj", 0, ranges.values);
  rows.add("in_proj", 2 * sizes.values + 2 * sizes.keys, ranges.heads);
}

void add_short_conv_columns(RowSource& rows, const Ranges& ranges, const Sizes& sizes) {
  for (const int64_t part : {0, 1, 2})
    rows.add("in_proj", part * sizes.channels, ranges.channels);
}

// The channels in the order of the columns of in_proj.
void add_conv_channels(RowSource& rows, Mixer mixer, const Ranges& ranges, const Sizes& sizes) {
  if (mixer == Mixer::kShortConv) return rows.add("conv", 0, ranges.channels);
  const bool is_delta = mixer == Mixer::kDeltaNet;  // whose channels are q, k and v; of Mamba 2 x, B and C
  rows.add("conv", is_delta ? 2 * sizes.keys : 0, ranges.values);
  rows.add("conv", is_delta ? sizes.keys : sizes.values, ranges.keys);
  rows.add("conv", is_delta ? 0 : sizes.values + sizes.keys, ranges.keys);
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
  if (mixer == Mixer::kShortConv) return matrix("in_proj", 3 * sizes.channels, spec.hidden_size);

  vector("a_log", sizes.heads);
  vector("dt_bias", sizes.heads);
  if (mixer == Mixer::kMamba2) {
    matrix("in_proj", 2 * sizes.values + 2 * sizes.keys + sizes.heads, spec.hidden_size);
    vector("skip", sizes.heads);
    return vector("mixer_norm.weight", sizes.values);
  }
  vector("mixer_norm.weight", sizes.head_dim);
  // Tensors that hold the rows of a group together have the heads of a group together.
  const bool may_be_grouped = !spec.recurrent.heads_alternate;
  if (may_be_grouped && tensors.contains(prefix + "in_proj_qkvz.weight")) {
    matrix("in_proj_qkvz", 2 * sizes.keys + 2 * sizes.values, spec.hidden_size);
  } else {
    matrix("in_proj_qkv", 2 * sizes.keys + sizes.values, spec.hidden_size);
    matrix("in_proj_z", sizes.values, spec.hidden_size);
  }
  if (may_be_grouped && tensors.contains(prefix + "in_proj_ba.weight"))
    return matrix("in_proj_ba", 2 * sizes.heads, spec.hidden_size);
  matrix("in_proj_a", sizes.heads, spec.hidden_size);
  matrix("in_proj_b", sizes.heads, spec.hidden_size);
}

RecurrentWeights load_recurrent_weights(const ModelSpec& spec, Mixer mixer, const RecurrentShard& shard,
                                        const Slicer& slicer, const std::string& prefix, const LoadMatrix& load_matrix,
                                        Backend& backend, const LoadProgress& progress) {
  const Sizes sizes(spec.recurrent);
  const Ranges ranges(shard);
  RowSource columns(slicer, prefix), channels(slicer, prefix);
  if (mixer == Mixer::kShortConv)
    add_short_conv_columns(columns, ranges, sizes);
  else if (mixer == Mixer::kMamba2)
    add_mamba_columns(columns, ranges, sizes);
  else
    add_delta_net_columns(columns, shard, sizes);
  add_conv_channels(channels, mixer, ranges, sizes);

  RecurrentWeights weights;
  weights.in_proj = load_matrix(std::move(columns.source));
  weights.conv = backend.load_convolution(channels.source, progress);
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
