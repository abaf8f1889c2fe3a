#include "native/binding/grammar_binding.h"

#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "native/binding/parsed_grammars.h"
#include "native/binding/records.h"
#include "native/grammar/code_points.h"

namespace capstan {
namespace {

using grammar::CompiledGrammar;
using grammar::Expr;
using grammar::GrammarMatcher;
using SharedGrammar = std::shared_ptr<const CompiledGrammar>;

constexpr int kMaxDepth = 600;  // of an expression record; the schema front end stays well below
// Time limit for the masks that are computed ahead of a grammar's first use.
constexpr std::chrono::milliseconds kWarmUp{100};
constexpr napi_type_tag kGrammarTag = {0x6361707374616e47, 0x72616d6d61720001};

[[noreturn]] void refuse_source(Napi::Env env, const std::string& expected) {
  throw make_error(env, ErrorCode::kInvalidArgument, "grammar: expected " + expected);
}

std::string text_of(const Napi::Object& object, const char* name) {
  const Napi::Value value = object.Get(name);
  if (!value.IsString()) refuse_source(object.Env(), "a text");
  return value.As<Napi::String>().Utf8Value();
}

// Returns an integer from 0 to `most`, or `if_null` for null.
uint32_t count_of(const Napi::Value& value, uint32_t most, uint32_t if_null) {
  if (value.IsNull()) return if_null;
  const double number = value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : -1;
  if (!(number >= 0 && number <= most) || number != std::floor(number))
    refuse_source(value.Env(), "an integer from 0 to " + std::to_string(most));
  return static_cast<uint32_t>(number);
}

bool flag_of(const Napi::Object& object, const char* name) {
  return object.Get(name).ToBoolean().Value();
}

Expr to_expr(const Napi::Value& value, int depth);

std::vector<Expr> to_exprs(const Napi::Object& object, int depth) {
  const Napi::Value value = object.Get("items");
  if (!value.IsArray()) refuse_source(object.Env(), "items");
  const auto array = value.As<Napi::Array>();
  std::vector<Expr> items;
  for (uint32_t i = 0; i < array.Length(); ++i) {
    const Napi::HandleScope scope(object.Env());
    items.push_back(to_expr(array.Get(i), depth + 1));
  }
  return items;
}

std::vector<grammar::CodePointRange> to_ranges(const Napi::Value& value) {
  if (!value.IsArray()) refuse_source(value.Env(), "ranges");
  const auto array = value.As<Napi::Array>();
  std::vector<grammar::CodePointRange> ranges;
  for (uint32_t i = 0; i < array.Length(); ++i) {
    const Napi::HandleScope scope(value.Env());
    const Napi::Value range = array.Get(i);
    if (!range.IsArray()) refuse_source(value.Env(), "ranges of two code points");
    const auto ends = range.As<Napi::Array>();
    ranges.push_back(
        {count_of(ends.Get(0u), grammar::kMaxCodePoint, 0), count_of(ends.Get(1u), grammar::kMaxCodePoint, 0)});
  }
  return ranges;
}

grammar::UnicodeProperties to_properties(const Napi::Value& value) {
  grammar::UnicodeProperties properties;
  if (value.IsUndefined()) return properties;
  if (!value.IsObject()) refuse_source(value.Env(), "properties");
  const auto object = value.As<Napi::Object>();
  const Napi::Array names = object.GetPropertyNames();
  for (uint32_t i = 0; i < names.Length(); ++i) {
    const Napi::HandleScope scope(value.Env());
    const Napi::Value name = names.Get(i);
    properties.emplace(name.ToString().Utf8Value(), grammar::normalized(to_ranges(object.Get(name))));
  }
  return properties;
}

// Calls read(item) for each item of an array that may be missing.
template <typename Read>
void for_each_item(const Napi::Object& object, const char* name, const Read& read) {
  const Napi::Value value = object.Get(name);
  if (value.IsUndefined()) return;
  if (!value.IsArray()) refuse_source(object.Env(), name);
  const auto array = value.As<Napi::Array>();
  for (uint32_t i = 0; i < array.Length(); ++i) {
    const Napi::HandleScope scope(object.Env());
    read(array.Get(i));
  }
}

Expr to_regex(const Napi::Object& object) {
  grammar::RegexOptions options;
  options.is_search = flag_of(object, "isSearch");
  options.is_json_string = flag_of(object, "isJsonString");
  options.min_length = count_of(object.Get("minLength"), grammar::kMaxRepeat, 0);
  options.max_length = count_of(object.Get("maxLength"), grammar::kMaxRepeat, grammar::kUnbounded);
  options.label = text_of(object, "label");
  for_each_item(object, "also", [&](const Napi::Value& item) {
    if (!item.IsObject()) refuse_source(object.Env(), "patterns");
    const auto part = item.As<Napi::Object>();
    options.also.push_back({text_of(part, "pattern"), flag_of(part, "isSearch"), text_of(part, "label")});
  });
  for_each_item(object, "except", [&](const Napi::Value& item) {
    if (!item.IsString()) refuse_source(object.Env(), "texts");
    options.except.push_back(item.As<Napi::String>().Utf8Value());
  });
  return grammar::regex(text_of(object, "pattern"), std::move(options));
}

Expr to_expr(const Napi::Value& value, int depth) {
  if (!value.IsObject() || depth > kMaxDepth)
    refuse_source(value.Env(), "expressions of at most " + std::to_string(kMaxDepth) + " levels");
  const auto object = value.As<Napi::Object>();
  const std::string kind = text_of(object, "kind");
  if (kind == "literal") return grammar::literal(text_of(object, "text"));
  if (kind == "class") return grammar::code_point_class(to_ranges(object.Get("ranges")));
  if (kind == "sequence") return grammar::sequence(to_exprs(object, depth));
  if (kind == "choice") return grammar::choice(to_exprs(object, depth));
  if (kind == "rule") return grammar::rule_ref(text_of(object, "name"));
  if (kind == "until") return grammar::until(text_of(object, "text"));
  if (kind == "without") return grammar::without(text_of(object, "text"));
  if (kind == "regex") return to_regex(object);
  if (kind != "repeat") refuse_source(value.Env(), "an expression of a known kind");
  const uint32_t min = count_of(object.Get("min"), grammar::kMaxRepeat, 0);
  return grammar::repeat(to_expr(object.Get("item"), depth + 1), min,
                         count_of(object.Get("max"), grammar::kMaxRepeat, grammar::kUnbounded));
}

// Reads the record on the JavaScript thread. Returns a function that parses texts on the pool thread. Call it once.
GrammarSource to_source(const Napi::Value& value) {
  if (!value.IsObject()) refuse_source(value.Env(), "a source");
  const auto object = value.As<Napi::Object>();
  const std::string kind = text_of(object, "kind");
  if (kind == "gbnf") {
    const Napi::Value prefix = object.Get("prefix");
    std::optional<Expr> first;
    if (!prefix.IsUndefined()) first = to_expr(prefix, 0);
    return [text = text_of(object, "text"), first = std::move(first)]() mutable {
      grammar::Grammar grammar = grammar::parse_gbnf(text);
      if (!first) return grammar;
      // GBNF names contain no space, so this one is free.
      grammar.rules.push_back({"prefix root", grammar::sequence({std::move(*first), grammar::rule_ref(grammar.root)})});
      grammar.root = "prefix root";
      return grammar;
    };
  }
  if (kind == "parsed") {
    GrammarSource source = take_parsed_grammar(object.Get("handle").ToNumber().DoubleValue());
    if (!source) refuse_source(value.Env(), "a parsed grammar that is not compiled yet");
    return source;
  }
  grammar::Grammar grammar;
  if (kind == "regex") {
    grammar.rules.push_back({"root", grammar::regex(text_of(object, "pattern"), {}), true});
  } else if (kind == "rules") {
    grammar.root = text_of(object, "root");
    grammar.properties = to_properties(object.Get("properties"));
    const Napi::Value rules = object.Get("rules");
    if (!rules.IsArray()) refuse_source(value.Env(), "rules");
    const auto array = rules.As<Napi::Array>();
    for (uint32_t i = 0; i < array.Length(); ++i) {
      const Napi::HandleScope scope(value.Env());
      const Napi::Value rule = array.Get(i);
      if (!rule.IsObject()) refuse_source(value.Env(), "rules of a name and an expression");
      const auto record = rule.As<Napi::Object>();
      grammar.rules.push_back({text_of(record, "name"), to_expr(record.Get("expr"), 0), flag_of(record, "isPlain")});
    }
  } else {
    refuse_source(value.Env(), "a source of kind gbnf, regex or rules");
  }
  return [grammar = std::move(grammar)]() mutable { return std::move(grammar); };
}

// ---- matcher ----

std::string_view bytes_of(const Napi::Value& value) {
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != napi_uint8_array)
    refuse_source(value.Env(), "a Uint8Array");
  const auto bytes = value.As<Napi::Uint8Array>();
  return {reinterpret_cast<const char*>(bytes.Data()), bytes.ElementLength()};
}

Napi::Value list_bytes(Napi::Env env, const std::array<uint64_t, 4>& bits) {
  Napi::Array bytes = Napi::Array::New(env);
  for (uint32_t byte = 0; byte < 256; ++byte)
    if ((bits[byte / 64] >> (byte % 64) & 1) != 0) bytes.Set(bytes.Length(), byte);
  return bytes;
}

Napi::Object expose_matcher(Napi::Env env, const SharedGrammar& grammar) {
  const auto matcher = std::make_shared<GrammarMatcher>(grammar);
  Napi::Object object = Napi::Object::New(env);
  const auto add = [&](const char* name, auto call) { object.Set(name, Napi::Function::New(env, call, name)); };
  add("accept", [matcher](const Napi::CallbackInfo& info) -> Napi::Value {
    return Napi::Boolean::New(info.Env(), matcher->accept_bytes(bytes_of(info[0])));
  });
  add("canEnd", [matcher](const Napi::CallbackInfo& info) -> Napi::Value {
    return Napi::Boolean::New(info.Env(), matcher->can_end());
  });
  add("bytesToEnd", [matcher](const Napi::CallbackInfo& info) -> Napi::Value {
    return Napi::Number::New(info.Env(), static_cast<double>(matcher->bytes_to_end()));
  });
  add("nextBytes", [matcher](const Napi::CallbackInfo& info) { return list_bytes(info.Env(), matcher->next_bytes()); });
  add("closingBytes",
      [matcher](const Napi::CallbackInfo& info) { return list_bytes(info.Env(), matcher->closing_bytes()); });
  return object;
}

// The grammar of a handle; null after free().
using Handle = std::shared_ptr<SharedGrammar>;

int64_t size_bytes(const SharedGrammar& grammar) {
  return grammar ? static_cast<int64_t>(grammar->automaton().size_bytes()) : 0;
}

// Takes the grammar of a handle. Reports the size to V8, which then collects handles that were never freed in time.
SharedGrammar take_grammar(napi_env env, SharedGrammar& grammar) {
  Napi::MemoryManagement::AdjustExternalMemory(env, -size_bytes(grammar));
  return std::exchange(grammar, nullptr);
}

// The environment may be ending, so that no other thread can take the grammar.
void finalize_grammar(napi_env env, void* data, void*) {
  const std::unique_ptr<Handle> kept(static_cast<Handle*>(data));
  take_grammar(env, **kept);
}

// Drops a reference on a pool thread: the memory of a large grammar takes long to free.
class FreeWorker final : public Napi::AsyncWorker {
 public:
  FreeWorker(Napi::Env env, SharedGrammar grammar)
      : Napi::AsyncWorker(env, "capstan.grammar.free"), grammar_(std::move(grammar)) {}
  void Execute() override { grammar_.reset(); }

 private:
  SharedGrammar grammar_;
};

Napi::Object expose_grammar(Napi::Env env, SharedGrammar grammar) {
  Napi::Object object = Napi::Object::New(env);
  object.TypeTag(&kGrammarTag);
  object.Set("sizeBytes", static_cast<double>(size_bytes(grammar)));
  const auto handle = std::make_shared<SharedGrammar>(std::move(grammar));
  auto kept = std::make_unique<Handle>(handle);
  if (napi_wrap(env, object, kept.get(), finalize_grammar, nullptr, nullptr) == napi_ok) {
    kept.release();
    Napi::MemoryManagement::AdjustExternalMemory(env, size_bytes(*handle));
  }
  const auto add = [&](const char* name, auto call) { object.Set(name, Napi::Function::New(env, call, name)); };
  add("isInUse", [handle](const Napi::CallbackInfo& info) -> Napi::Value {
    return Napi::Boolean::New(info.Env(), handle->use_count() > 1);
  });
  add("free", [handle](const Napi::CallbackInfo& info) {
    if (SharedGrammar taken = take_grammar(info.Env(), *handle))
      (new FreeWorker(info.Env(), std::move(taken)))->Queue();
  });
  add("matcher", [handle](const Napi::CallbackInfo& info) -> Napi::Value {
    if (!*handle) refuse_source(info.Env(), "a grammar that was not freed");
    return expose_matcher(info.Env(), *handle);
  });
  return object;
}

class CompileWorker final : public Napi::AsyncWorker {
 public:
  CompileWorker(Napi::Env env, GrammarSource source, TokenTableSource tokens)
      : Napi::AsyncWorker(env, "capstan.grammar"),
        deferred_(Napi::Promise::Deferred::New(env)),
        source_(std::move(source)),
        tokens_(std::move(tokens)) {}
  Napi::Promise promise() const { return deferred_.Promise(); }

  void Execute() override {
    try {
      grammar_ = std::make_shared<const CompiledGrammar>(source_(), tokens_ ? tokens_() : nullptr);
      if (grammar_->tokens() != nullptr) grammar_->masks().warm_up(std::chrono::steady_clock::now() + kWarmUp);
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  void OnOK() override {
    const Napi::HandleScope scope(Env());
    if (error_)
      deferred_.Reject(to_js_error(Env(), error_).Value());
    else
      deferred_.Resolve(expose_grammar(Env(), std::move(grammar_)));
  }

 private:
  Napi::Promise::Deferred deferred_;
  GrammarSource source_;
  TokenTableSource tokens_;
  SharedGrammar grammar_;
  std::exception_ptr error_;
};

}  // namespace

Napi::Value compile_grammar(Napi::Env env, const Napi::Value& source, TokenTableSource tokens) {
  auto* worker = new CompileWorker(env, to_source(source), std::move(tokens));
  const Napi::Promise promise = worker->promise();
  worker->Queue();
  return promise;
}

Napi::Value parse_grammar_binding(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), keep_parsed_grammar(info.Env(), to_source(info[0])));
}

Napi::Value compile_grammar_binding(const Napi::CallbackInfo& info) {
  return compile_grammar(info.Env(), info[0], nullptr);
}

SharedGrammar to_compiled_grammar(const Napi::Value& handle) {
  if (handle.IsNull() || handle.IsUndefined()) return nullptr;
  void* kept = nullptr;
  const bool is_grammar = handle.IsObject() && handle.As<Napi::Object>().CheckTypeTag(&kGrammarTag) &&
                          napi_unwrap(handle.Env(), handle, &kept) == napi_ok;
  if (!is_grammar) refuse_source(handle.Env(), "a compiled grammar");
  const SharedGrammar& grammar = **static_cast<Handle*>(kept);
  if (!grammar) refuse_source(handle.Env(), "a grammar that was not freed");
  return grammar;
}

}  // namespace capstan
