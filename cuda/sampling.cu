#include "cuda/sampling.h"

#include <algorithm>
#include <bit>

#include "native/base/check.h"

namespace capstan::cuda {

DeviceSampler::DeviceSampler(int64_t vocab_size, int64_t logits_stride, int64_t num_token_ids, int max_rows,
                             int max_results, cudaStream_t stream)
    : vocab_size_(vocab_size),
      logits_stride_(logits_stride),
      num_token_ids_(num_token_ids),
      max_results_(max_results),
      scores_(static_cast<size_t>(max_rows * sample_scratch_floats(vocab_size)) * sizeof(float), "the scores"),
      outputs_(static_cast<size_t>(max_rows) * sizeof(SampleOutput), "the samples"),
      drawn_ids_(static_cast<size_t>(max_results) * sizeof(int32_t), "the sampled ids"),
      staging_("the sampling parameters") {
  // Includes one mask per row.
  staging_.ensure_capacity(static_cast<size_t>(max_rows) * (sizeof(SampleItem) + static_cast<size_t>(vocab_size) / 8) +
                           64);
  check(cudaMemsetAsync(outputs_.as<void>(), 0, outputs_.bytes(), stream),
        // Whole outputs are copied to the host, including fields that were not requested.
        "the samples");
  for (Slot& slot : slots_)
    slot.outputs = PinnedBuffer(static_cast<size_t>(max_results) * sizeof(SampleOutput), "the samples");
}

DeviceSampler::Step& DeviceSampler::open_step() {
  if (steps_.empty() || steps_.back().number != num_begun_) {
    CAPSTAN_CHECK(steps_.empty() || num_begun_ - steps_.front().number < 2);  // the step's slot is free
    steps_.push_back({num_begun_, {}});
  }
  return steps_.back();
}

// The index of the first result of the step's next call.
int DeviceSampler::next_result() const {
  if (steps_.empty() || steps_.back().number != num_begun_ || steps_.back().calls.empty()) return 0;
  const Call& last = steps_.back().calls.back();
  return last.first + static_cast<int>(last.results.size());
}

void DeviceSampler::sample(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results,
                           cudaStream_t stream) {
  pack(rows);
  staging_.begin(host_items_.size() * sizeof(SampleItem) + host_words_.size() * sizeof(int32_t) + 64);
  const int32_t* words = staging_.add(host_words_.data(), host_words_.size());
  for (SampleItem& item : host_items_)
    item.words = words;
  const SampleItem* items = staging_.add(host_items_.data(), host_items_.size());
  staging_.send(stream);
  draw(logits, items, static_cast<int>(rows.size()), next_result(), stream);
  fetch(logits, rows, results, stream);
}

void DeviceSampler::place(std::span<const SampleRow> rows, std::span<SampleItem> items, cudaStream_t stream) {
  pack(rows);
  if (!host_words_.empty()) {
    staging_.begin(host_words_.size() * sizeof(int32_t) + 64);
    const int32_t* words = staging_.add(host_words_.data(), host_words_.size());
    for (SampleItem& item : host_items_)
      item.words = words;
    staging_.send(stream);
  }
  std::ranges::copy(host_items_, items.begin());
}

void DeviceSampler::draw(const float* logits, const SampleItem* items, int num_items, int first, cudaStream_t stream) {
  CAPSTAN_CHECK(static_cast<size_t>(num_items) * sizeof(SampleOutput) <= outputs_.bytes() &&
                first + num_items <= max_results_);
  SampleArgs args;
  args.logits = logits;
  args.vocab_size = vocab_size_;
  args.logits_stride = logits_stride_;
  args.num_token_ids = num_token_ids_;
  args.items = items;
  args.num_items = num_items;
  args.scores = scores_.as<float>();
  args.outputs = outputs_.as<SampleOutput>();
  args.drawn_ids = drawn_ids_.as<int32_t>() + first;
  launch_sample(args, stream);
}

void DeviceSampler::fetch(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results,
                          cudaStream_t stream) {
  CAPSTAN_CHECK(rows.size() == results.size());
  Call call;
  call.results = results;
  call.first = next_result();
  Step& step = open_step();
  Slot& slot = slots_[step.number % 2];
  check(cudaMemcpyAsync(slot.outputs.as<SampleOutput>() + call.first, outputs_.as<void>(),
                        rows.size() * sizeof(SampleOutput), cudaMemcpyDeviceToHost, stream),
        "reading the samples");
  for (size_t i = 0; i < rows.size(); ++i) {
    call.num_logprobs.push_back(rows[i].num_logprobs);
    if (rows[i].num_logprobs <= kMaxTopLogprobs) continue;
    if (spare_rows_.empty())
      spare_rows_.emplace_back(static_cast<size_t>(vocab_size_) * sizeof(float), "a row of logits");
    PinnedBuffer& row = call.logits.emplace_back(static_cast<int>(i), std::move(spare_rows_.back())).second;
    spare_rows_.pop_back();
    check(cudaMemcpyAsync(row.as<void>(), logits + rows[i].logits_row * logits_stride_, row.bytes(),
                          cudaMemcpyDeviceToHost, stream),
          "reading logits");
  }
  slot.done.record(stream);
  step.calls.push_back(std::move(call));
}

void DeviceSampler::collect() {
  ++num_collected_;
  if (steps_.empty() || steps_.front().number != num_collected_) return;
  const Slot& slot = slots_[num_collected_ % 2];
  slot.done.wait();
  for (Call& call : steps_.front().calls) {
    fill(call, slot.outputs.as<SampleOutput>() + call.first);
    for (auto& [row, logits] : call.logits)
      spare_rows_.push_back(std::move(logits));
  }
  steps_.pop_front();
  // Freeing pinned memory waits for the device, which is idle here.
  if (steps_.empty() && spare_rows_.size() > kSpareRows) spare_rows_.resize(kSpareRows);
}

void DeviceSampler::fill(const Call& call, const SampleOutput* outputs) const {
  for (size_t i = 0; i < call.results.size(); ++i) {
    const SampleOutput& output = outputs[i];
    SampleResult& result = call.results[i];
    result.has_numeric_error = output.num_top < 0;
    result.top.clear();
    if (result.has_numeric_error) continue;
    result.token_id = output.token_id;
    if (call.num_logprobs[i] < 0) continue;
    result.logprob = output.logprob;
    result.rank = output.rank;
    for (int top = 0; top < output.num_top; ++top)
      result.top.push_back({output.top_ids[top], output.top_logprobs[top]});
  }
  for (const auto& [i, logits] : call.logits) {
    SampleResult& result = call.results[static_cast<size_t>(i)];
    if (!result.has_numeric_error)
      read_top_logprobs(logits.as<float>(), call.num_logprobs[static_cast<size_t>(i)], result);
  }
}

// Fills host_items_ and host_words_ with the rows in the kernel's format.
void DeviceSampler::pack(std::span<const SampleRow> rows) {
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
        for (const auto& [id, times] : row.counts.completion_counts)
          host_words_.insert(host_words_.end(), {id, times});
        return static_cast<int32_t>(row.counts.completion_counts.size());
      });
    item.logit_bias = range([&] {
      for (const auto& [id, bias] : row.logit_bias)
        host_words_.insert(host_words_.end(), {id, std::bit_cast<int32_t>(bias)});
      return static_cast<int32_t>(row.logit_bias.size());
    });
    item.banned_ids = ids(row.banned_ids);
    item.allowed_mask = range([&] {
      for (const uint32_t word : row.allowed_mask)
        host_words_.push_back(static_cast<int32_t>(word));
      return static_cast<int32_t>(row.allowed_mask.size());
    });
    host_items_.push_back(item);
  }
}

// For more alternatives than the device sorts: reads them from the whole row of logits.
void DeviceSampler::read_top_logprobs(const float* logits, int num_logprobs, SampleResult& result) const {
  const float normalizer = logits[result.token_id] - result.logprob;
  std::vector<int32_t> order(static_cast<size_t>(vocab_size_));
  for (size_t id = 0; id < order.size(); ++id)
    order[id] = static_cast<int32_t>(id);
  const size_t count = std::min(order.size(), static_cast<size_t>(num_logprobs));
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    [&](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
  for (size_t i = 0; i < count; ++i)
    result.top.push_back({order[i], logits[order[i]] - normalizer});
}

}  // namespace capstan::cuda
