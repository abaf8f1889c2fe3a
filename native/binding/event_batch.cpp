#include "native/binding/event_batch.h"

#include <algorithm>
#include <string>

#include "native/binding/records.h"

namespace capstan {
namespace {

constexpr size_t kHeadWords = 6;

bool has_details(const Event& event) {
  return !event.logprobs.empty() || !event.prompt_logprobs.empty() || event.finish;
}

// Returns the length in JavaScript of valid UTF-8: characters of four bytes have two units there.
int32_t utf16_units(const std::string& text) {
  const auto starts_character = [](char byte) { return (static_cast<uint8_t>(byte) & 0xc0) != 0x80; };
  const auto has_four_bytes = [](char byte) { return static_cast<uint8_t>(byte) >= 0xf0; };
  return static_cast<int32_t>(std::ranges::count_if(text, starts_character) +
                              std::ranges::count_if(text, has_four_bytes));
}

Napi::Int32Array to_words(Napi::Env env, const std::vector<Event>& events) {
  size_t size = 0;
  for (const Event& event : events)
    size += kHeadWords + event.token_ids.size();
  Napi::Int32Array array = Napi::Int32Array::New(env, size);
  int32_t* to = array.Data();
  for (const Event& event : events) {
    const uint64_t id = event.request_id;
    *to++ = static_cast<int32_t>(static_cast<uint32_t>(id));
    *to++ = static_cast<int32_t>(static_cast<uint32_t>(id >> 32));
    *to++ = event.choice_idx;
    *to++ = utf16_units(event.text_delta);
    *to++ = static_cast<int32_t>(event.token_ids.size());
    *to++ = has_details(event) ? 1 : 0;
    to = std::ranges::copy(event.token_ids, to).out;
  }
  return array;
}

}  // namespace

std::vector<napi_value> from_events(Napi::Env env, const std::vector<Event>& events) {
  std::string text;
  Napi::Array details = Napi::Array::New(env);
  for (const Event& event : events) {
    text += event.text_delta;
    if (has_details(event)) details.Set(details.Length(), from_event_details(env, event));
  }
  return {to_words(env, events), Napi::String::New(env, text), details};
}

}  // namespace capstan
