#pragma once
// Reads the fields of JavaScript records. A field of the wrong type throws a JavaScript error with code
// invalid_argument that names the field.
#include <napi.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "native/binding/records.h"

namespace capstan {

[[noreturn]] inline void refuse(const Napi::Object& object, const char* name, const char* expected) {
  throw make_error(object.Env(), ErrorCode::kInvalidArgument, std::string(name) + ": expected " + expected);
}

inline double number(const Napi::Object& object, const char* name) {
  const Napi::Value value = object.Get(name);
  if (!value.IsNumber()) refuse(object, name, "a number");
  return value.As<Napi::Number>().DoubleValue();
}

inline int64_t integer(const Napi::Object& object, const char* name) {
  const double value = number(object, name);
  if (!(std::abs(value) <= 9007199254740991.0) || value != std::floor(value))
    refuse(object, name, "an integer within ±2^53");
  return static_cast<int64_t>(value);
}

inline int int32(const Napi::Object& object, const char* name) {
  const int64_t value = integer(object, name);
  if (value < INT32_MIN || value > INT32_MAX) refuse(object, name, "a 32-bit integer");
  return static_cast<int>(value);
}

inline bool boolean(const Napi::Object& object, const char* name) {
  const Napi::Value value = object.Get(name);
  if (!value.IsBoolean()) refuse(object, name, "true or false");
  return value.As<Napi::Boolean>().Value();
}

inline std::string text(const Napi::Object& object, const char* name) {
  const Napi::Value value = object.Get(name);
  if (!value.IsString()) refuse(object, name, "a string");
  return value.As<Napi::String>().Utf8Value();
}

inline Napi::Object record(const Napi::Object& object, const char* name) {
  const Napi::Value value = object.Get(name);
  if (!value.IsObject()) refuse(object, name, "an object");
  return value.As<Napi::Object>();
}

inline Napi::Array array(const Napi::Object& object, const char* name) {
  const Napi::Value value = object.Get(name);
  if (!value.IsArray()) refuse(object, name, "an array");
  return value.As<Napi::Array>();
}

inline std::vector<std::string> texts(const Napi::Object& object, const char* name) {
  const Napi::Array values = array(object, name);
  std::vector<std::string> out;
  for (uint32_t i = 0; i < values.Length(); ++i) {
    const Napi::Value value = values[i];
    if (!value.IsString()) refuse(object, name, "an array of strings");
    out.push_back(value.As<Napi::String>().Utf8Value());
  }
  return out;
}

inline std::vector<Napi::Object> objects(const Napi::Object& object, const char* name) {
  const Napi::Array values = array(object, name);
  std::vector<Napi::Object> out;
  for (uint32_t i = 0; i < values.Length(); ++i) {
    const Napi::Value value = values[i];
    if (!value.IsObject()) refuse(object, name, "an array of objects");
    out.push_back(value.As<Napi::Object>());
  }
  return out;
}

// Copies a typed array of exactly this type. `object` and `name` say in errors which field it comes from.
template <typename T>
std::vector<T> elements_of(const Napi::Value& value, const Napi::Object& object, const char* name,
                           napi_typedarray_type type, const char* expected) {
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != type) refuse(object, name, expected);
  const auto typed = value.As<Napi::TypedArrayOf<T>>();
  return {typed.Data(), typed.Data() + typed.ElementLength()};
}

template <typename T>
std::vector<T> elements(const Napi::Object& object, const char* name, napi_typedarray_type type, const char* expected) {
  return elements_of<T>(object.Get(name), object, name, type, expected);
}

inline std::vector<int32_t> ids(const Napi::Object& object, const char* name) {
  return elements<int32_t>(object, name, napi_int32_array, "an Int32Array");
}

// A word, and what it stands for.
template <class T>
using Words = std::initializer_list<std::pair<const char*, T>>;

template <class T>
T one_of(const Napi::Object& object, const char* name, Words<T> words) {
  const std::string value = text(object, name);
  std::string expected;
  size_t num_left = words.size();
  for (const auto& [word, meaning] : words) {
    if (value == word) return meaning;
    expected += word;
    if (--num_left > 0) expected += num_left == 1 ? " or " : ", ";
  }
  refuse(object, name, expected.c_str());
}

}  // namespace capstan
