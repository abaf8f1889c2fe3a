#include "native/binding/profile_record.h"

#include <functional>
#include <vector>

namespace capstan {
namespace {

// Waiting for requests is not part of a step.
constexpr int kFirstPart = static_cast<int>(StepPart::kIdle) + 1;

template <typename Enum>
Napi::Array names(Napi::Env env, int begin, int end, const char* (*name_of)(Enum)) {
  Napi::Array array = Napi::Array::New(env, static_cast<size_t>(end - begin));
  for (int i = begin; i < end; ++i)
    array.Set(static_cast<uint32_t>(i - begin), name_of(static_cast<Enum>(i)));
  return array;
}

Napi::Float64Array numbers(Napi::Env env, const std::vector<double>& values) {
  Napi::Float64Array array = Napi::Float64Array::New(env, values.size());
  for (size_t i = 0; i < values.size(); ++i)
    array[i] = values[i];
  return array;
}

double us_of(int64_t ns) {
  return static_cast<double>(ns) / 1000;
}

}  // namespace

Napi::Object from_profile(Napi::Env env, const StepProfileTotals& totals) {
  const auto of_kinds = [&](const std::function<double(const StepKindTotals&)>& value) {
    std::vector<double> values;
    for (const StepKindTotals& kind : totals.kinds)
      values.push_back(value(kind));
    return numbers(env, values);
  };
  const auto of_parts = [&](const std::function<double(const StepPartTotals&)>& value) {
    std::vector<double> values;
    for (const StepKindTotals& kind : totals.kinds)
      for (size_t part = kFirstPart; part < kind.parts.size(); ++part)
        values.push_back(value(kind.parts[part]));
    return numbers(env, values);
  };
  Napi::Object object = Napi::Object::New(env);
  object.Set("kinds", names(env, 0, kNumStepKinds, step_kind_name));
  object.Set("parts", names(env, kFirstPart, kNumStepParts, step_part_name));
  object.Set("math", names(env, 0, kNumMathKinds, math_kind_name));
  object.Set("numSteps", of_kinds([](const auto& kind) { return static_cast<double>(kind.num_steps); }));
  object.Set("numTokens", of_kinds([](const auto& kind) { return static_cast<double>(kind.num_tokens); }));
  object.Set("stepUs", of_kinds([](const auto& kind) { return us_of(kind.ns); }));
  object.Set("partUs", of_parts([](const auto& part) { return us_of(part.ns); }));
  object.Set("waitUs", of_parts([](const auto& part) { return us_of(part.wait_ns); }));
  object.Set("bytes", of_parts([](const auto& part) { return part.work.bytes; }));
  Napi::Array ops = Napi::Array::New(env, kNumMathKinds);
  for (size_t math = 0; math < kNumMathKinds; ++math)
    ops.Set(static_cast<uint32_t>(math), of_parts([math](const auto& part) { return part.work.ops[math]; }));
  object.Set("ops", ops);
  object.Set("idleUs", us_of(totals.idle_ns));
  return object;
}

}  // namespace capstan
