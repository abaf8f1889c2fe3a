#include "native/binding/quantize_binding.h"

#include <cmath>
#include <exception>
#include <string>

#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/quant_matrix.h"
#include "native/backend/cpu/quantize_rows.h"
#include "native/base/machine.h"
#include "native/binding/records.h"

namespace capstan {
namespace {

constexpr double kMaxOffset = 9007199254740991;  // the largest safe integer
constexpr double kMaxElements = 1 << 28;         // of one call: its memory is bounded

double integer_of(const Napi::Object& object, const char* name, double least, double most) {
  const Napi::Value value = object.Get(name);
  const double number = value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : NAN;
  if (!(number >= least && number <= most) || number != std::floor(number))
    throw make_error(object.Env(), ErrorCode::kInvalidArgument,
                     std::string(name) + ": expected an integer from " + std::to_string(static_cast<int64_t>(least)) +
                         " to " + std::to_string(static_cast<int64_t>(most)));
  return number;
}

struct QuantizeRequest {
  FileTensor tensor;
  int64_t row_begin = 0, num_rows = 0;
  int bits = 0, group_size = 0;
};

QuantizeRequest to_quantize_request(const Napi::Object& object) {
  const auto refuse = [&](const std::string& message) {
    throw make_error(object.Env(), ErrorCode::kInvalidArgument, message);
  };
  QuantizeRequest request;
  FileTensor& tensor = request.tensor;
  tensor.name = object.Get("name").ToString().Utf8Value();
  tensor.fd = static_cast<int>(integer_of(object, "descriptor", 0, 1 << 30));
  tensor.offset = static_cast<uint64_t>(integer_of(object, "offset", 0, kMaxOffset));
  tensor.rows = static_cast<int64_t>(integer_of(object, "rows", 1, 1 << 30));
  tensor.cols = static_cast<int64_t>(integer_of(object, "cols", 1, 1 << 30));
  const std::string dtype = object.Get("dtype").ToString().Utf8Value();
  bool is_known = false;
  for (const DType known : {DType::kF32, DType::kF16, DType::kBf16})
    if (dtype == dtype_name(known)) {
      tensor.dtype = known;
      is_known = true;
    }
  if (!is_known) refuse("dtype: expected f32, f16 or bf16, got " + dtype);
  request.row_begin = static_cast<int64_t>(integer_of(object, "rowBegin", 0, static_cast<double>(tensor.rows) - 1));
  request.num_rows =
      static_cast<int64_t>(integer_of(object, "numRows", 1, static_cast<double>(tensor.rows - request.row_begin)));
  request.bits = static_cast<int>(integer_of(object, "bits", 4, 8));
  request.group_size = static_cast<int>(integer_of(object, "groupSize", kMinQuantGroup, kMaxQuantGroup));
  if (request.bits != 4 && request.bits != 8) refuse("bits: expected 4 or 8");
  if (request.group_size % kMinQuantGroup != 0 || tensor.cols % request.group_size != 0)
    refuse("groupSize: expected a multiple of 16 that divides the columns");
  if (static_cast<double>(request.num_rows) * static_cast<double>(tensor.cols) > kMaxElements)
    refuse("numRows: expected fewer rows at a time");
  return request;
}

class QuantizeWorker final : public Napi::AsyncWorker {
 public:
  QuantizeWorker(Napi::Env env, QuantizeRequest request)
      : Napi::AsyncWorker(env, "capstan.quantize"),
        deferred_(Napi::Promise::Deferred::New(env)),
        request_(std::move(request)) {}
  Napi::Promise promise() const { return deferred_.Promise(); }

  void Execute() override {
    try {
      Team team(std::vector<int>(usable_cpus().size(), -1), false);
      const TensorSlice slice{&request_.tensor, request_.row_begin, request_.num_rows, 0, request_.tensor.cols};
      result_ =
          quantize_rows(slice, request_.bits, request_.group_size, cpu_kernels(available_cpu_isas().front()), team);
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  void OnOK() override {
    const Napi::Env env = Env();
    if (error_ != nullptr) return deferred_.Reject(to_js_error(env, error_).Value());
    Napi::Object result = Napi::Object::New(env);
    result.Set("codes", bytes_of(env, result_.words.data(), result_.words.size() * sizeof(uint32_t)));
    result.Set("scales", bytes_of(env, result_.scales.data(), result_.scales.size() * sizeof(uint16_t)));
    deferred_.Resolve(result);
  }
  void OnError(const Napi::Error& error) override { deferred_.Reject(error.Value()); }

 private:
  static Napi::Value bytes_of(Napi::Env env, const void* data, size_t size) {
    return Napi::Buffer<uint8_t>::Copy(env, static_cast<const uint8_t*>(data), size);
  }

  Napi::Promise::Deferred deferred_;
  QuantizeRequest request_;
  QuantizedRows result_;
  std::exception_ptr error_;
};

}  // namespace

Napi::Value quantize_rows_binding(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsObject()) throw make_error(env, ErrorCode::kInvalidArgument, "rows: expected an object");
  auto* worker = new QuantizeWorker(env, to_quantize_request(info[0].As<Napi::Object>()));
  const Napi::Promise promise = worker->promise();
  worker->Queue();
  return promise;
}

Napi::Value default_group_size_binding(const Napi::CallbackInfo& info) {
  const auto bits = info[0].ToNumber().Int32Value();
  return Napi::Number::New(info.Env(), default_group_size(bits, info[1].ToNumber().Int64Value()));
}

}  // namespace capstan
