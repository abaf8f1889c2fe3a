#include "native/engine/adapter_loader.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "native/backend/panel_reader.h"
#include "native/base/error.h"
#include "native/engine/disk_identity.h"
#include "native/engine/model_runner.h"

namespace capstan {
namespace {

// The most bytes that a backend adds to the packed factors of a matrix.
constexpr int64_t kMatrixSlack = 2048;

// Returns the most bytes that the packed tensors of one rank take, and those of one layer while they are sorted.
int64_t needed_bytes(const ModelSpec& spec, const AdapterSource& source, const TensorTable& tensors) {
  const auto padded = [](int64_t size) { return (size + kPanelFeatures - 1) / kPanelFeatures * kPanelFeatures; };
  int64_t elements = 0, num_matrices = 0, largest = 0;
  std::map<int, int64_t> sorted;  // by layer: the factors B of all experts
  for (const AdapterModule& module : source.modules) {
    const FileTensor &a = tensors.at(module.a.name), &b = tensors.at(module.b.name);
    const int64_t experts = module.holds_experts() ? spec.moe.num_experts : 1;
    elements += experts * (padded(a.rows / experts) * a.cols + padded(b.rows) * (b.cols / experts + 1));
    num_matrices += experts;
    if (!module.holds_experts()) continue;
    largest = std::max(largest, b.rows * b.cols);
    sorted[module.layer] += b.rows * b.cols;
  }
  int64_t most_sorted = 0;
  for (const auto& [layer, size] : sorted)
    most_sorted = std::max(most_sorted, size);
  return (elements + most_sorted + largest) * static_cast<int64_t>(sizeof(float)) + num_matrices * kMatrixSlack;
}

void check_memory(int64_t needed, int64_t available) {
  if (needed > available)
    throw Error(ErrorCode::kOutOfMemory, "the adapter needs up to " + std::to_string(needed >> 20) + " MiB, and " +
                                             std::to_string(available >> 20) + " MiB of memory are available");
}

}  // namespace

AdapterLoader make_adapter_loader(ModelSpec spec, std::vector<ShardPlan> plans, const ModelRunner& runner, int max_rank,
                                  int num_sharing, bool has_content_keys) {
  return [spec = std::move(spec), plans = std::move(plans), &runner, max_rank, num_sharing,
          has_content_keys](const AdapterSource& source) {
    const CheckpointFiles files(source.files);
    const TensorTable tensors = check_adapter(spec, source, files, max_rank);
    const std::vector<Rank>& ranks = runner.ranks();
    const int64_t needed = needed_bytes(spec, source, tensors) * num_sharing;
    for (const Rank& rank : ranks)
      check_memory(needed, rank.backend->available_bytes());
    auto adapter = std::make_shared<Adapter>();
    // The weights are read through the same descriptors, so a file that replaces one of these changes nothing.
    std::vector<disk::OpenFile> open_files;
    if (has_content_keys)
      for (const CheckpointFiles::File& file : files.files())
        open_files.push_back({file.path, file.fd});
    const std::vector<std::string> states = disk::content_states(open_files);
    if (has_content_keys) adapter->content_key = adapter_content_key(source, open_files);
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      adapter->ranks.push_back(
          load_adapter_weights(spec, plans[rank], source, tensors, ranks[rank].weights, *ranks[rank].backend));
    disk::check_unchanged(open_files, states, "adapter");
    return std::shared_ptr<const Adapter>(std::move(adapter));
  };
}

}  // namespace capstan
