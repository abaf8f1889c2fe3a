#include "cuda/sampling.h"

#include <algorithm>
#include <bit>

#include "native/base/check.h"

namespace capstan::cuda {

DeviceSampler::DeviceSampler(int64_t vocab_size, int64_t num_token_ids, int max_rows)
    : vocab_size_(vocab_size),
      num_token_ids_(num_token_ids),
      scores_(static_cast<size_t>(max_rows * vocab_size) * sizeof(float), "the scores"),
      outputs_(static_cast<size_t>(max_rows) * sizeof(SampleOutput), "the samples"),
      staging_("what sampling needs"),
      read_outputs_(static_cast<size_t>(max_rows)) {}

void DeviceSampler::sample(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results, cudaStream_t stream) {
  CAPSTAN_CHECK(rows.size() == results.size() && rows.size() <= read_outputs_.size());
  host_items_.clear();
  host_words_.clear();
  const auto range = [&](auto&& write) {
    const auto begin = static_cast<int32_t>(host_words_.size());
    const int32_t count = write();
    return SampleItem::Range{begin, count};
  };
  const auto ids = [&](std::span<const int32_t> from) {
    return range([&] {
      host_words_.insert(host_words_.end(), from.begin(), from.end());
      return static_cast<int32_t>(from.size());
    });
  };
  for (const SampleRow& row : rows) {
    SampleItem item;
    item.logits_row = row.logits_row;
    item.target_id = row.target_id;
    item.wants_sample = row.wants_sample ? 1 : 0;
    item.num_logprobs = row.num_logprobs > kMaxTopLogprobs ? 0 : row.num_logprobs;
    item.temperature = row.temperature;
    item.top_k = row.top_k;
    item.top_p = row.top_p;
    item.min_p = row.min_p;
    item.presence_penalty = row.presence_penalty;
    item.frequency_penalty = row.frequency_penalty;
    item.repetition_penalty = row.repetition_penalty;
    item.seed_low = static_cast<uint32_t>(row.seed);
    item.seed_high = static_cast<uint32_t>(row.seed >> 32);
    item.position = row.position;
    item.choice_idx = row.choice_idx;
    if (row.repetition_penalty != 1.0f) item.prompt_ids = ids(row.counts.prompt_ids);
    if (row.repetition_penalty != 1.0f || row.presence_penalty != 0 || row.frequency_penalty != 0)
      item.completion_counts = range([&] {
        for (const auto& [id, times] : row.counts.completion_counts) host_words_.insert(host_words_.end(), {id, times});
        return static_cast<int32_t>(row.counts.completion_counts.size());
      });
    item.logit_bias = range([&] {
      for (const auto& [id, bias] : row.logit_bias) host_words_.insert(host_words_.end(), {id, std::bit_cast<int32_t>(bias)});
      return static_cast<int32_t>(row.logit_bias.size());
    });
    item.banned_ids = ids(row.banned_ids);
    item.allowed_mask = range([&] {
      for (const uint32_t word : row.allowed_mask) host_words_.push_back(static_cast<int32_t>(word));
      return static_cast<int32_t>(row.allowed_mask.size());
    });
    host_items_.push_back(item);
  }
  staging_.begin(host_items_.size() * sizeof(SampleItem) + host_words_.size() * sizeof(int32_t) + 64);
  SampleArgs args;
  args.logits = logits;
  args.vocab_size = vocab_size_;
  args.num_token_ids = num_token_ids_;
  args.items = staging_.add(host_items_.data(), host_items_.size());
  args.num_items = static_cast<int>(rows.size());
  args.words = staging_.add(host_words_.data(), host_words_.size());
  args.scores = scores_.as<float>();
  args.outputs = outputs_.as<SampleOutput>();
  staging_.send(stream);
  launch_sample(args, stream);
  check(cudaMemcpyAsync(read_outputs_.data(), outputs_.as<void>(), rows.size() * sizeof(SampleOutput), cudaMemcpyDeviceToHost, stream), "reading the samples");
  sampled_.record(stream);
  sampled_.wait();

  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleOutput& output = read_outputs_[i];
    SampleResult& result = results[i];
    result.has_numeric_error = output.num_top < 0;
    result.top.clear();
    if (result.has_numeric_error) continue;
    result.token_id = output.token_id;
    if (rows[i].num_logprobs < 0) continue;
    result.logprob = output.logprob;
    result.rank = output.rank;
    for (int top = 0; top < output.num_top; ++top) result.top.push_back({output.top_ids[top], output.top_logprobs[top]});
    if (rows[i].num_logprobs > kMaxTopLogprobs) read_top_logprobs(logits, rows[i], result, stream);
  }
}

// More alternatives than the device sorts: the whole row comes to the host.
void DeviceSampler::read_top_logprobs(const float* all, const SampleRow& row, SampleResult& result, cudaStream_t stream) {
  std::vector<float> logits(static_cast<size_t>(vocab_size_));
  check(cudaMemcpyAsync(logits.data(), all + row.logits_row * vocab_size_, logits.size() * sizeof(float), cudaMemcpyDeviceToHost, stream), "reading logits");
  check(cudaStreamSynchronize(stream), "reading logits");
  const float normalizer = logits[static_cast<size_t>(result.token_id)] - result.logprob;
  std::vector<int32_t> order(logits.size());
  for (size_t id = 0; id < order.size(); ++id) order[id] = static_cast<int32_t>(id);
  const size_t count = std::min(order.size(), static_cast<size_t>(row.num_logprobs));
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(), [&](int32_t a, int32_t b) {
    const float first = logits[static_cast<size_t>(a)], second = logits[static_cast<size_t>(b)];
    return first > second || (first == second && a < b);
  });
  for (size_t i = 0; i < count; ++i) result.top.push_back({order[i], logits[static_cast<size_t>(order[i])] - normalizer});
}

}  // namespace capstan::cuda
