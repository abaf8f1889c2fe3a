// Interprets the PTX that nvcc generates for the kernels, with the threads, barriers, copies and products of cuda_host.
// Unlike the sources compiled by g++, it tests the inline assembly of cuda/device.h and cuda/hopper.h, what the
// compiler moves or removes around it, the `__CUDACC__` branches, the alignment of vector accesses, and reads of
// unwritten registers (registers start as NaN). Semantics: "PTX ISA", NVIDIA. Instructions that the kernels do not use
// are rejected.
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "cuda/hopper.h"

namespace capstan::cuda_host {
namespace {

struct Thread;
struct Instruction;
using Handler = void (*)(Thread&, const Instruction&);

// Operands are indices into the thread's 8-byte registers, which also hold the constants.
struct Instruction {
  Handler run = nullptr;
  const int32_t* operands = nullptr;
  int num_operands = 0;
  int32_t guard = -1;  // index of the predicate
  bool is_negated = false;
  int64_t offset = 0;  // of an address
  int target = 0;      // a branch's target instruction; otherwise handler-specific
  int count = 1;       // vector elements
  const struct Function* callee = nullptr;
  std::string where, text;
};

struct Buffer {  // local memory of a function
  int32_t place;
  size_t offset;
};

struct Function {
  std::string name;
  std::vector<int32_t> parameters;  // registers that hold their addresses
  std::vector<size_t> parameter_bytes;
  std::vector<int32_t> results;
  std::vector<uint64_t> registers;  // initial values
  std::vector<Buffer> buffers;
  size_t memory_bytes = 0;
  std::vector<Instruction> code;
  std::vector<std::unique_ptr<int32_t[]>> operands;
  bool is_defined = false;
};

struct Thread {
  uint64_t* registers;
  size_t next = 0;
};

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw std::runtime_error("PTX " + where + ": " + what);
}

template <class T>
T get(const Thread& thread, int32_t place) {
  T value;
  std::memcpy(&value, &thread.registers[place], sizeof value);
  return value;
}
template <class T>
void put(Thread& thread, int32_t place, T value) {
  if constexpr (std::is_integral_v<T>) {
    thread.registers[place] = static_cast<uint64_t>(static_cast<int64_t>(value));
    if constexpr (std::is_unsigned_v<T>) thread.registers[place] = value;
  } else {
    thread.registers[place] = 0;
    std::memcpy(&thread.registers[place], &value, sizeof value);
  }
}
template <class T>
T operand(const Thread& thread, const Instruction& at, int i) {
  return get<T>(thread, at.operands[i]);
}

// ---- memory

unsigned char* address(const Thread& thread, const Instruction& at, int i, bool is_shared, size_t bytes) {
  unsigned char* memory;
  if (is_shared) {
    const int64_t begin = operand<uint32_t>(thread, at, i) + at.offset;
    if (begin < 0 || static_cast<size_t>(begin) + bytes > place.shared_bytes)
      refuse(at.where, "outside shared memory: " + at.text);
    memory = place.shared + begin;
  } else {
    memory = reinterpret_cast<unsigned char*>(operand<uint64_t>(thread, at, i) + static_cast<uint64_t>(at.offset));
  }
  if (reinterpret_cast<uintptr_t>(memory) % bytes != 0)
    refuse(at.where, "expected an address that is a multiple of " + std::to_string(bytes) + ": " + at.text);
  return memory;
}

template <class T, bool kIsShared>
void load(Thread& thread, const Instruction& at) {
  const auto* from = address(thread, at, at.count, kIsShared, sizeof(T) * static_cast<size_t>(at.count));
  for (int i = 0; i < at.count; ++i) {
    T value;
    std::memcpy(&value, from + sizeof(T) * static_cast<size_t>(i), sizeof value);
    put(thread, at.operands[i], value);
  }
}
template <class T, bool kIsShared>
void store(Thread& thread, const Instruction& at) {
  auto* to = address(thread, at, 0, kIsShared, sizeof(T) * static_cast<size_t>(at.count));
  for (int i = 0; i < at.count; ++i) {
    const T value = operand<T>(thread, at, i + 1);
    std::memcpy(to + sizeof(T) * static_cast<size_t>(i), &value, sizeof value);
  }
}

unsigned char* shared_place(const Thread& thread, const Instruction& at, int i) {
  return place.shared + operand<uint32_t>(thread, at, i);
}

// ---- arithmetic

// Calls `make` with a value of the type that the instruction ends with.
template <class Make>
Handler of_integer(std::string_view type, Make make) {
  if (type == "s32") return make(int32_t{});
  if (type == "u32" || type == "b32") return make(uint32_t{});
  if (type == "s64") return make(int64_t{});
  if (type == "u64" || type == "b64") return make(uint64_t{});
  if (type == "s16") return make(int16_t{});
  if (type == "u16" || type == "b16") return make(uint16_t{});
  if (type == "s8") return make(int8_t{});
  if (type == "u8" || type == "b8") return make(uint8_t{});
  return nullptr;
}
template <class Make>
Handler of_number(std::string_view type, Make make) {
  if (type == "f32") return make(float{});
  if (type == "f64") return make(double{});
  return of_integer(type, make);
}

template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
template <class T>
using Twice = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                 std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;

#define CAPSTAN_HANDLER +[]([[maybe_unused]] Thread& thread, [[maybe_unused]] const Instruction& at)

template <class T, class Compute>
Handler binary(Compute) {
  return CAPSTAN_HANDLER {
    put(thread, at.operands[0], static_cast<T>(Compute{}(operand<T>(thread, at, 1), operand<T>(thread, at, 2))));
  };
}
template <class T, class Compute>
Handler unary(Compute) {
  return CAPSTAN_HANDLER {
    put(thread, at.operands[0], static_cast<T>(Compute{}(operand<T>(thread, at, 1))));
  };
}

template <class T>
bool is_unordered(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(a) || std::isnan(b);
  return false;
}

template <class T>
Handler comparison(std::string_view how) {
#define CAPSTAN_COMPARE(name, expression)                                   \
  if (how == name) return CAPSTAN_HANDLER {                                 \
      const T a = operand<T>(thread, at, 1), b = operand<T>(thread, at, 2); \
      put(thread, at.operands[0], static_cast<uint32_t>(expression));       \
    };
  CAPSTAN_COMPARE("eq", a == b)
  CAPSTAN_COMPARE("ne", a != b && !is_unordered(a, b))
  CAPSTAN_COMPARE("lt", a < b)
  CAPSTAN_COMPARE("le", a <= b)
  CAPSTAN_COMPARE("gt", a > b)
  CAPSTAN_COMPARE("ge", a >= b)
  CAPSTAN_COMPARE("equ", a == b || is_unordered(a, b))
  CAPSTAN_COMPARE("neu", a != b)
  CAPSTAN_COMPARE("ltu", a < b || is_unordered(a, b))
  CAPSTAN_COMPARE("leu", a <= b || is_unordered(a, b))
  CAPSTAN_COMPARE("gtu", a > b || is_unordered(a, b))
  CAPSTAN_COMPARE("geu", a >= b || is_unordered(a, b))
  CAPSTAN_COMPARE("num", !is_unordered(a, b))
  CAPSTAN_COMPARE("nan", is_unordered(a, b))
  return nullptr;
#undef CAPSTAN_COMPARE
}

template <class To, class From>
Handler conversion(bool is_saturated) {
  if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return CAPSTAN_HANDLER {  // rounds toward zero and saturates
      const From value = operand<From>(thread, at, 1);
      const auto low = static_cast<double>(std::numeric_limits<To>::min()),
                 high = static_cast<double>(std::numeric_limits<To>::max());
      put(thread, at.operands[0],
          std::isnan(value)                    ? To{0}
          : static_cast<double>(value) <= low  ? std::numeric_limits<To>::min()
          : static_cast<double>(value) >= high ? std::numeric_limits<To>::max()
                                               : static_cast<To>(value));
    };
  }
  if constexpr (std::is_same_v<To, float> && std::is_same_v<From, float>) {
    if (is_saturated) return CAPSTAN_HANDLER {
        const float value = operand<float>(thread, at, 1);
        put(thread, at.operands[0], value > 0 ? std::min(value, 1.0f) : 0.0f);
      };
  }
  return CAPSTAN_HANDLER {
    put(thread, at.operands[0], static_cast<To>(operand<From>(thread, at, 1)));
  };
}

template <class T>
void convert_pair(Thread& thread, const Instruction& at) {
  put(thread, at.operands[0], cuda::to_bits_pair<T>(operand<float>(thread, at, 2), operand<float>(thread, at, 1)));
}
template <class T>
void fma_pair(Thread& thread, const Instruction& at) {
  uint32_t result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const auto half = [&](int i) {
      return static_cast<double>(cuda::to_float<T>(static_cast<uint16_t>(operand<uint32_t>(thread, at, i) >> shift)));
    };
    // NOTE: rounds twice when a sum takes more bits than an f32 has. Those of the kernels do not.
    result |= cuda::to_bits_pair<T>(static_cast<float>(half(1) * half(2) + half(3)), 0.0f) << shift;
  }
  put(thread, at.operands[0], result);
}

template <class T>
void multiply_tiles(Thread& thread, const Instruction& at) {
  float c[4];
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i)
    a[i] = operand<uint32_t>(thread, at, 4 + i), c[i] = operand<float>(thread, at, 10 + i);
  for (int i = 0; i < 2; ++i)
    b[i] = operand<uint32_t>(thread, at, 8 + i);
  cuda::mma_m16n8k16<T>(c, a, b);
  for (int i = 0; i < 4; ++i)
    put(thread, at.operands[i], c[i]);
}
// `target` is the number of columns. Operands: acc, a, the descriptor, and the constant scales and transpositions 1, 1,
// 1, 0.
template <class T>
void multiply_wide(Thread& thread, const Instruction& at) {
  const int count = at.target / 2;
  if (at.num_operands != count + 9) refuse(at.where, "unexpected operands of wgmma");
  for (int i = 0; i < 4; ++i)
    if (operand<int32_t>(thread, at, count + 5 + i) != (i < 3 ? 1 : 0)) refuse(at.where, "unexpected scales of wgmma");
  std::vector<float*> acc;
  for (int i = 0; i < count; ++i)
    acc.push_back(reinterpret_cast<float*>(&thread.registers[at.operands[i]]));
  std::array<const uint32_t*, 4> a;
  for (int i = 0; i < 4; ++i)
    a[static_cast<size_t>(i)] = reinterpret_cast<const uint32_t*>(&thread.registers[at.operands[count + i]]);
  cuda_host::wgmma(std::move(acc), a, operand<uint64_t>(thread, at, count + 4),
                   [](uint16_t bits) { return cuda::to_float<T>(bits); });
}

template <unsigned dim3::* kMember, dim3 ThreadPlace::* kOf>
void special(Thread& thread, const Instruction& at) {
  put(thread, at.operands[0], (place.*kOf).*kMember);
}

void run_function(const Function& function, const void* const* parameters, void* const* results);

void call(Thread& thread, const Instruction& at) {
  const Function& callee = *at.callee;
  void* places[32];
  for (int i = 0; i < at.num_operands; ++i)
    places[i] = reinterpret_cast<void*>(operand<uint64_t>(thread, at, i));
  run_function(callee, places + callee.results.size(), places);
}

// ---- instructions

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(by, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

#define CAPSTAN_BINARY(expression)                         \
  [](auto tag) -> Handler {                                \
    using T = decltype(tag);                               \
    return binary<T>([](T a, T b) { return expression; }); \
  }
#define CAPSTAN_UNARY(expression)                    \
  [](auto tag) -> Handler {                          \
    using T = decltype(tag);                         \
    return unary<T>([](T a) { return expression; }); \
  }

// Integers wrap around.
template <class T>
T added(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  else
    return a + b;
}
template <class T>
T subtracted(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) - static_cast<std::make_unsigned_t<T>>(b));
  else
    return a - b;
}
template <class T>
T multiplied(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}
// min and max of floats return the operand that is not NaN.
template <class T>
T smaller(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    return std::fmin(a, b);
  else
    return std::min(a, b);
}
template <class T>
T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    return std::fmax(a, b);
  else
    return std::max(a, b);
}

Handler arithmetic(const std::vector<std::string_view>& words) {
  const std::string_view name = words[0], type = words.back();
  const auto has = [&](std::string_view word) { return std::ranges::find(words, word) != words.end(); };
  if (name == "add") return of_number(type, CAPSTAN_BINARY(added(a, b)));
  if (name == "sub") return of_number(type, CAPSTAN_BINARY(subtracted(a, b)));
  if (name == "min") return of_number(type, CAPSTAN_BINARY(smaller(a, b)));
  if (name == "max") return of_number(type, CAPSTAN_BINARY(larger(a, b)));
  if (name == "mul" && has("wide")) {
    const auto make = [](auto tag) -> Handler {
      using T = decltype(tag);
      if constexpr (sizeof(T) == 2 || sizeof(T) == 4) {
        return CAPSTAN_HANDLER {
          using W = Twice<T>;
          put(thread, at.operands[0],
              static_cast<W>(static_cast<W>(operand<T>(thread, at, 1)) * static_cast<W>(operand<T>(thread, at, 2))));
        };
      }
      return nullptr;
    };
    return of_integer(type, make);
  }
  if (name == "mul" && has("hi"))
    return of_integer(
        type, CAPSTAN_BINARY(static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b) >> sizeof(T) * 8)));
  if (name == "mul") return of_number(type, CAPSTAN_BINARY(multiplied(a, b)));
  if (name == "mad" && has("lo"))
    return of_integer(type, [](auto tag) -> Handler {
      using T = decltype(tag);
      return CAPSTAN_HANDLER {
        put(thread, at.operands[0],
            added<T>(multiplied<T>(operand<T>(thread, at, 1), operand<T>(thread, at, 2)), operand<T>(thread, at, 3)));
      };
    });
  if (name == "fma" && type == "bf16x2") return fma_pair<cuda::Bf16>;
  if (name == "fma" && type == "f16x2") return fma_pair<cuda::F16>;
  if (name == "fma" && has("rm")) return CAPSTAN_HANDLER {
      const int before = std::fegetround();
      std::fesetround(FE_DOWNWARD);
      volatile float a = operand<float>(thread, at, 1), b = operand<float>(thread, at, 2),
                     c = operand<float>(thread, at, 3);
      const float result = std::fma(a, b, c);
      std::fesetround(before);
      put(thread, at.operands[0], result);
    };
  if (name == "fma" && has("rn")) {
    if (type == "f32") return CAPSTAN_HANDLER {
        put(thread, at.operands[0],
            std::fma(operand<float>(thread, at, 1), operand<float>(thread, at, 2), operand<float>(thread, at, 3)));
      };
    if (type == "f64") return CAPSTAN_HANDLER {
        put(thread, at.operands[0],
            std::fma(operand<double>(thread, at, 1), operand<double>(thread, at, 2), operand<double>(thread, at, 3)));
      };
  }
  // Division by zero is undefined.
  if (name == "div" && (type == "f32" || type == "f64"))
    return type == "f32" ? binary<float>([](float a, float b) { return a / b; })
                         : binary<double>([](double a, double b) { return a / b; });
  if (name == "div") return of_integer(type, CAPSTAN_BINARY(b == 0 ? static_cast<T>(-1) : static_cast<T>(a / b)));
  if (name == "rem") return of_integer(type, CAPSTAN_BINARY(b == 0 ? a : static_cast<T>(a % b)));
  if (name == "rcp" && type == "f64")
    return unary<double>(
        [](double a) { return std::bit_cast<double>(std::bit_cast<uint64_t>(1 / a) & ~uint64_t{0xffffffff}); });
  if (name == "rcp") return unary<float>([](float a) { return 1 / a; });
  if (name == "sqrt" && type == "f32") return unary<float>([](float a) { return std::sqrt(a); });
  if (name == "ex2")
    return unary<float>([](float a) {
      const float power = std::exp2(a);
      return power < std::numeric_limits<float>::min() ? 0.0f : power;
    });
  if (name == "neg" && type == "f32") return unary<float>([](float a) { return -a; });
  if (name == "neg" && type == "f64") return unary<double>([](double a) { return -a; });
  if (name == "neg") return of_integer(type, CAPSTAN_UNARY(subtracted<T>(0, a)));
  if (name == "abs" && type == "f32") return unary<float>([](float a) { return std::fabs(a); });
  if (name == "copysign" && type == "f32")
    return binary<float>([](float sign, float value) { return std::copysign(value, sign); });
  if (type == "pred") {
    if (name == "and") return binary<uint32_t>([](uint32_t a, uint32_t b) { return a != 0 && b != 0 ? 1 : 0; });
    if (name == "or") return binary<uint32_t>([](uint32_t a, uint32_t b) { return a != 0 || b != 0 ? 1 : 0; });
    if (name == "xor") return binary<uint32_t>([](uint32_t a, uint32_t b) { return (a != 0) != (b != 0) ? 1 : 0; });
    if (name == "not") return unary<uint32_t>([](uint32_t a) { return a == 0 ? 1 : 0; });
    if (name == "mov") return unary<uint32_t>([](uint32_t a) { return a != 0 ? 1 : 0; });
  }
  if (name == "and") return of_integer(type, CAPSTAN_BINARY(static_cast<T>(a & b)));
  if (name == "or") return of_integer(type, CAPSTAN_BINARY(static_cast<T>(a | b)));
  if (name == "xor") return of_integer(type, CAPSTAN_BINARY(static_cast<T>(a ^ b)));
  if (name == "not") return of_integer(type, CAPSTAN_UNARY(static_cast<T>(~a)));
  // Shifts by more bits than the type has leave 0, or the sign.
  if (name == "shl")
    return of_integer(type, [](auto tag) -> Handler {
      using T = decltype(tag);
      return CAPSTAN_HANDLER {
        const uint32_t by = operand<uint32_t>(thread, at, 2);
        put(thread, at.operands[0],
            by >= sizeof(T) * 8 ? T{0} : static_cast<T>(static_cast<uint64_t>(operand<T>(thread, at, 1)) << by));
      };
    });
  if (name == "shr")
    return of_integer(type, [](auto tag) -> Handler {
      using T = decltype(tag);
      return CAPSTAN_HANDLER {
        const T value = operand<T>(thread, at, 1);
        const uint32_t by = operand<uint32_t>(thread, at, 2);
        put(thread, at.operands[0],
            by >= sizeof(T) * 8 ? static_cast<T>(value < T{0} ? -1 : 0) : static_cast<T>(value >> by));
      };
    });
  if (name == "popc") return unary<uint32_t>([](uint32_t a) { return std::popcount(a); });
  if (name == "brev" && type == "b32")
    return unary<uint32_t>([](uint32_t a) {
      uint32_t turned = 0;
      for (int i = 0; i < 32; ++i)
        turned |= (a >> i & 1) << (31 - i);
      return turned;
    });
  if (name == "bfind" && has("shiftamt") && type == "u32")
    return unary<uint32_t>([](uint32_t a) { return a == 0 ? ~0u : static_cast<uint32_t>(std::countl_zero(a)); });
  if (name == "bfi")
    return of_integer(type, [](auto tag) -> Handler {
      using T = decltype(tag);
      return CAPSTAN_HANDLER {
        const unsigned from = operand<uint32_t>(thread, at, 3) & 0xff, count = operand<uint32_t>(thread, at, 4) & 0xff;
        T bits = operand<T>(thread, at, 2);
        for (unsigned i = 0; i < count && from + i < sizeof(T) * 8; ++i) {
          const T bit = static_cast<T>(T{1} << (from + i));
          bits = static_cast<T>((operand<T>(thread, at, 1) >> i & 1) != 0 ? bits | bit : bits & ~bit);
        }
        put(thread, at.operands[0], bits);
      };
    });
  if (name == "prmt" && words.size() == 2) return CAPSTAN_HANDLER {
      const uint64_t bytes = operand<uint32_t>(thread, at, 1) | uint64_t{operand<uint32_t>(thread, at, 2)} << 32;
      const uint32_t choice = operand<uint32_t>(thread, at, 3);
      uint32_t result = 0;
      for (int i = 0; i < 4; ++i) {
        const uint32_t nibble = choice >> i * 4 & 15, byte = static_cast<uint32_t>(bytes >> (nibble & 7) * 8 & 0xff);
        result |= ((nibble & 8) == 0 ? byte : (byte & 0x80) != 0 ? 0xffu : 0u) << i * 8;
      }
      put(thread, at.operands[0], result);
    };
  if (name == "selp") return CAPSTAN_HANDLER {
      thread.registers[at.operands[0]] = thread.registers[at.operands[operand<uint32_t>(thread, at, 3) != 0 ? 1 : 2]];
    };
  if (name == "setp" && words.size() == 3)
    return of_number(type, [&](auto tag) -> Handler {
      using T = decltype(tag);
      return comparison<T>(words[1]);
    });
  if (name == "cvt" && type == "f32" && words[words.size() - 2] == "bf16x2") return convert_pair<cuda::Bf16>;
  if (name == "cvt" && type == "f32" && words[words.size() - 2] == "f16x2") return convert_pair<cuda::F16>;
  if (name == "cvt" && type == "f16" && words[words.size() - 2] == "f32") return CAPSTAN_HANDLER {
      put(thread, at.operands[0], cuda::to_float<cuda::F16>(operand<uint16_t>(thread, at, 1)));
    };
  if (name == "cvt") {
    const std::string_view to = words[words.size() - 2];
    const bool is_saturated = has("sat"), is_towards_zero = has("rzi");
    if (to.starts_with("f") != type.starts_with("f") && to.starts_with("f") == is_towards_zero) return nullptr;
    return of_number(type, [&](auto from) -> Handler {
      return of_number(to,
                       [&](auto into) -> Handler { return conversion<decltype(into), decltype(from)>(is_saturated); });
    });
  }
  return nullptr;
}

// Control flow, memory, and cooperation between threads.

void load_acquire(Thread& thread, const Instruction& at) {
  int32_t flag;
  std::memcpy(&flag, address(thread, at, 1, false, sizeof flag), sizeof flag);
  wait_and_clear_flag(flag, at.where.c_str(), 0);
  put(thread, at.operands[0], flag);
}

template <bool kIsShared>
void atomic_add(Thread& thread, const Instruction& at) {
  unsigned char* memory = address(thread, at, 1, kIsShared, 4);
  uint32_t before;
  std::memcpy(&before, memory, 4);
  const uint32_t after = before + operand<uint32_t>(thread, at, 2);
  std::memcpy(memory, &after, 4);
  put(thread, at.operands[0], before);
}

void copy_register(Thread& thread, const Instruction& at) {
  thread.registers[at.operands[0]] = thread.registers[at.operands[1]];
}
void generic_to_shared(Thread& thread, const Instruction& at) {
  put(thread, at.operands[0], uint64_t{cuda_host::shared_address(operand<const void*>(thread, at, 1))});
}
void shared_to_generic(Thread& thread, const Instruction& at) {
  put(thread, at.operands[0], reinterpret_cast<uint64_t>(place.shared) + operand<uint64_t>(thread, at, 1));
}

void run_barrier(Thread& thread, const Instruction& at) {
  if (operand<int32_t>(thread, at, 0) != 0) refuse(at.where, "expected barrier 0");
  sync_threads(at.where.c_str());
}
void run_warp_barrier(Thread&, const Instruction& at) {
  warp_collective(at.where.c_str(), nullptr, [](void* const*) {});
}

void run_shuffle(Thread& thread, const Instruction& at, uint32_t from) {
  if (operand<uint32_t>(thread, at, 4) != 31 || operand<int32_t>(thread, at, 5) != -1)
    refuse(at.where, "expected all lanes of the warp");
  put(thread, at.operands[0], shuffle(at.where.c_str(), operand<uint32_t>(thread, at, 2), from));
  put(thread, at.operands[1], 1u);
}
void run_shuffle_bfly(Thread& thread, const Instruction& at) {
  run_shuffle(thread, at, place.thread.x % 32 ^ operand<uint32_t>(thread, at, 3));
}
void run_shuffle_idx(Thread& thread, const Instruction& at) {
  run_shuffle(thread, at, operand<uint32_t>(thread, at, 3) % 32);
}

void run_wgmma_fence(Thread&, const Instruction&) {
  wgmma_fence();
}
void run_wgmma_commit_group(Thread&, const Instruction&) {
  wgmma_commit_group();
}
void run_wgmma_wait_group(Thread& thread, const Instruction& at) {
  wgmma_wait_group(operand<int32_t>(thread, at, 0));
}

void run_cp_async(Thread& thread, const Instruction& at) {
  if (operand<int32_t>(thread, at, 2) != 16) refuse(at.where, "expected a copy of 16 bytes");
  cp_async(shared_place(thread, at, 0), operand<const void*>(thread, at, 1));
}
void run_cp_async_commit_group(Thread&, const Instruction&) {
  cp_async_commit_group();
}
void run_cp_async_wait_group(Thread& thread, const Instruction& at) {
  cuda_host::cp_async_wait_group(operand<int32_t>(thread, at, 0));
}
void run_cp_async_bulk(Thread& thread, const Instruction& at) {
  cuda_host::cp_async_bulk(shared_place(thread, at, 0), operand<const void*>(thread, at, 1),
                           operand<int32_t>(thread, at, 2), shared_place(thread, at, 3));
}
void run_tma_load_2d(Thread& thread, const Instruction& at) {
  if (operand<uint64_t>(thread, at, 1) % 64 != 0) refuse(at.where, "expected a tensor map at a multiple of 64 bytes");
  cuda_host::tma_load_2d(shared_place(thread, at, 0), *operand<const TensorMap*>(thread, at, 1),
                         operand<int32_t>(thread, at, 2), operand<int32_t>(thread, at, 3), shared_place(thread, at, 4));
}
void run_fence_proxy_async(Thread&, const Instruction&) {
  cuda_host::fence_proxy_async();
}

void run_mbarrier_init(Thread& thread, const Instruction& at) {
  cuda_host::mbarrier_init(shared_place(thread, at, 0), operand<int32_t>(thread, at, 1));
}
void run_mbarrier_arrive(Thread& thread, const Instruction& at) {
  cuda_host::mbarrier_arrive(shared_place(thread, at, 1), 0);
}
void run_mbarrier_arrive_expect_tx(Thread& thread, const Instruction& at) {
  cuda_host::mbarrier_arrive(shared_place(thread, at, 1), operand<int32_t>(thread, at, 2));
}
void run_mbarrier_try_wait(Thread& thread, const Instruction& at) {
  cuda_host::mbarrier_wait(at.where.c_str(), 0, shared_place(thread, at, 1), operand<int32_t>(thread, at, 2));
  put(thread, at.operands[0], 1u);
}

void run_griddepcontrol_wait(Thread&, const Instruction&) {
  griddepcontrol_wait();
}

void branch(Thread& thread, const Instruction& at) {
  thread.next = static_cast<size_t>(at.target);
}
void return_from_function(Thread& thread, const Instruction&) {
  thread.next = SIZE_MAX;
}
void trap(Thread&, const Instruction& at) {
  refuse(at.where, "a trap");
}
// Without effect in the emulation.
void ignore(Thread&, const Instruction&) {}

const std::unordered_map<std::string_view, Handler>& handlers_by_opcode() {
  static const std::unordered_map<std::string_view, Handler> handlers = {
      {"bar.sync", run_barrier},
      {"bar.warp.sync", run_warp_barrier},
      {"shfl.sync.bfly.b32", run_shuffle_bfly},
      {"shfl.sync.idx.b32", run_shuffle_idx},
      {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", multiply_tiles<cuda::Bf16>},
      {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", multiply_tiles<cuda::F16>},
      {"wgmma.fence.sync.aligned", run_wgmma_fence},
      {"wgmma.commit_group.sync.aligned", run_wgmma_commit_group},
      {"wgmma.wait_group.sync.aligned", run_wgmma_wait_group},
      {"cp.async.cg.shared.global", run_cp_async},
      {"cp.async.commit_group", run_cp_async_commit_group},
      {"cp.async.wait_group", run_cp_async_wait_group},
      {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", run_cp_async_bulk},
      {"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes", run_tma_load_2d},
      {"fence.proxy.async.shared::cta", run_fence_proxy_async},
      {"mbarrier.init.shared::cta.b64", run_mbarrier_init},
      {"mbarrier.arrive.shared::cta.b64", run_mbarrier_arrive},
      {"mbarrier.arrive.expect_tx.shared::cta.b64", run_mbarrier_arrive_expect_tx},
      {"mbarrier.try_wait.parity.shared::cta.b64", run_mbarrier_try_wait},
      {"griddepcontrol.wait", run_griddepcontrol_wait},
      {"griddepcontrol.launch_dependents", ignore},
      {"membar.gl", ignore},
      {"fence.mbarrier_init.release.cluster", ignore},
      {"prefetch.tensormap", ignore},
  };
  return handlers;
}

Handler wgmma_handler(const std::string& opcode, Instruction& at) {
  at.target = std::stoi(opcode.substr(opcode.find("m64n") + 4));
  const std::string shape = "m64n" + std::to_string(at.target) + "k16.f32.";
  if (opcode.ends_with(shape + "bf16.bf16")) return multiply_wide<cuda::Bf16>;
  if (opcode.ends_with(shape + "f16.f16")) return multiply_wide<cuda::F16>;
  return nullptr;
}

Handler other(const std::string& opcode, const std::vector<std::string_view>& words, Instruction& at) {
  const std::string_view name = words[0], type = words.back();
  const auto has = [&](std::string_view word) { return std::ranges::find(words, word) != words.end(); };
  at.count = has("v4") ? 4 : has("v2") ? 2 : 1;
  if (const auto found = handlers_by_opcode().find(opcode); found != handlers_by_opcode().end()) return found->second;
  if (name == "ld" && has("acquire")) return load_acquire;
  if (name == "ld")
    return of_number(type, [&](auto tag) -> Handler {
      return has("shared") ? load<decltype(tag), true> : load<decltype(tag), false>;
    });
  if (name == "st")
    return of_number(type, [&](auto tag) -> Handler {
      return has("shared") ? store<decltype(tag), true> : store<decltype(tag), false>;
    });
  if (name == "atom" && has("add") && type == "u32") return has("shared") ? atomic_add<true> : atomic_add<false>;
  if (name == "cvta") {
    if (!has("shared")) return copy_register;
    return has("to") ? generic_to_shared : shared_to_generic;
  }
  if (opcode.starts_with("wgmma.mma_async.sync.aligned.m64n")) return wgmma_handler(opcode, at);
  if (name == "setmaxnreg") return ignore;
  if (name == "bra") return branch;
  if (name == "ret") return return_from_function;
  if (name == "trap") return trap;
  if (name == "call") return call;
  return nullptr;
}

// ---- reading

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0)
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
    text.remove_suffix(1);
  return text;
}

// Splits at commas, also within brackets, and drops the brackets: the registers of a vector and an address are ordinary
// operands.
std::vector<std::string> operands_of(std::string_view text) {
  std::vector<std::string> operands;
  std::string one;
  for (const char c : text) {
    if (c == ',' || c == '|')
      operands.push_back(std::exchange(one, {}));
    else if (std::string_view("{}()").find(c) == std::string_view::npos &&
             std::isspace(static_cast<unsigned char>(c)) == 0)
      one += c;
  }
  if (!one.empty() || !operands.empty()) operands.push_back(one);
  std::erase_if(operands, [](const std::string& operand) { return operand.empty(); });
  return operands;
}

size_t size_of(std::string_view type) {
  if (type == ".pred") return 4;
  return static_cast<size_t>(std::stoi(std::string(type.substr(2)))) / 8;
}

// Removes compiler-specific names of anonymous namespaces.
std::string common_name(std::string name) {
  static constexpr std::string_view kAnonymous = "_GLOBAL__N_";
  for (size_t at = name.find(kAnonymous); at != std::string::npos; at = name.find(kAnonymous, at + 1)) {
    size_t digits = at;
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1])) != 0)
      --digits;
    const auto length = static_cast<size_t>(std::stoi(name.substr(digits, at - digits)));
    name.replace(digits, at - digits + length, "12_GLOBAL__N_1");
  }
  if (const size_t map = name.find("14CUtensorMap_st"); map != std::string::npos)
    name.replace(map, 16, "NS_9cuda_host9TensorMapE");
  return name;
}

class Module {
 public:
  void read(const std::filesystem::path& path) {
    file_ = path.filename().string();
    std::ifstream stream(path);
    std::stringstream whole;
    whole << stream.rdbuf();
    text_ = whole.str();
    if (text_.empty()) refuse(file_, "the file is empty or missing");
    at_ = 0;
    line_ = 1;
    functions_.clear();
    while (skip_space(), at_ < text_.size()) {
      if (text_.compare(at_, 8, ".version") == 0 || text_.compare(at_, 7, ".target") == 0 ||
          text_.compare(at_, 13, ".address_size") == 0) {
        take_until("\n");
        continue;
      }
      const std::string head(trimmed(take_until(";{")));
      if (text_[at_++] == '{')
        read_function(head);
      else if (head.find(".func") != std::string::npos)
        function_of(head.substr(head.find(".func")));
      else if (!head.starts_with(".extern .shared"))
        refuse(here(), "unexpected: " + head);
    }
    for (const auto& [name, function] : functions_)
      if (!function->is_defined) refuse(file_, "undefined function: " + name);
  }

  const Function* kernel(const std::string& name) const {
    const auto found = kernels_.find(name);
    return found == kernels_.end() ? nullptr : found->second;
  }

 private:
  struct Label {
    std::string name;
    size_t instruction, operand_of;
  };

  std::string here() const { return file_ + ":" + std::to_string(line_); }
  void skip_space() {
    for (; at_ < text_.size(); ++at_) {
      if (text_.compare(at_, 2, "//") == 0) at_ = std::min(text_.find('\n', at_), text_.size());
      if (at_ < text_.size() && text_[at_] == '\n') ++line_;
      if (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) == 0) return;
    }
  }
  std::string_view take_until(const char* ends) {
    const size_t begin = at_;
    at_ = text_.find_first_of(ends, at_);
    if (at_ == std::string::npos) refuse(here(), "the file ends too early");
    line_ += static_cast<size_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(begin),
                                            text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
    return std::string_view(text_).substr(begin, at_ - begin);
  }

  // Parses `.func (results) name(parameters)` and `.entry name(parameters) …`.
  Function& function_of(std::string head) {
    std::vector<std::pair<std::string, size_t>> results;
    head = head.substr(head.find(' ') + 1);
    head = std::string(trimmed(head));
    if (head.starts_with("(")) {
      results = parameters_of(head.substr(1, head.find(')') - 1));
      head = std::string(trimmed(std::string_view(head).substr(head.find(')') + 1)));
    }
    const std::string name(trimmed(head.substr(0, head.find_first_of("( \n"))));
    auto& function = functions_[name];
    if (!function) {
      all_.push_back(std::make_unique<Function>());
      function = all_.back().get();
      function->name = name;
    }
    heads_[name] = {results, head.find('(') == std::string::npos
                                 ? std::vector<std::pair<std::string, size_t>>{}
                                 : parameters_of(head.substr(head.find('(') + 1, head.find(')') - head.find('(') - 1))};
    return *function;
  }
  static std::vector<std::pair<std::string, size_t>> parameters_of(std::string_view text) {
    std::vector<std::pair<std::string, size_t>> parameters;
    for (const std::string_view part : split(text, ',')) {
      std::vector<std::string_view> words;
      for (const std::string_view word : split(part, ' '))
        for (const std::string_view piece : split(word, '\t'))
          if (!trimmed(piece).empty()) words.push_back(trimmed(piece));
      if (words.empty()) continue;
      std::string name(words.back());
      size_t bytes = size_of(words[words.size() - 2]);
      if (const size_t bracket = name.find('['); bracket != std::string::npos) {
        bytes *= static_cast<size_t>(std::stoi(name.substr(bracket + 1)));
        name.resize(bracket);
      }
      parameters.emplace_back(name, bytes);
    }
    return parameters;
  }

  void read_function(const std::string& head) {
    const size_t kind = std::min(head.find(".entry"), head.find(".func"));
    if (kind == std::string::npos) refuse(here(), "expected a function, got " + head);
    Function& function = function_of(head.substr(kind));
    function.is_defined = true;
    current_ = &function;
    scopes_ = {{}};
    constants_.clear();
    labels_.clear();
    jumps_.clear();
    const auto& [results, parameters] = heads_.at(function.name);
    for (const auto& [name, bytes] : parameters) {
      function.parameters.push_back(declare(name));
      function.parameter_bytes.push_back(bytes);
    }
    for (const auto& [name, _] : results)
      function.results.push_back(declare(name));
    while (!scopes_.empty()) {
      skip_space();
      if (text_[at_] == '{') {
        ++at_;
        scopes_.emplace_back();
      } else if (text_[at_] == '}') {
        ++at_;
        scopes_.pop_back();
      } else if (text_[at_] == '$') {
        labels_[std::string(take_until(":"))] = function.code.size();
        ++at_;
      } else {
        const std::string where = here();
        read_statement(std::string(trimmed(take_until(";"))), where);
        ++at_;
      }
    }
    for (const auto& [instruction, label] : jumps_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) refuse(function.code[instruction].where, "no such label: " + label);
      function.code[instruction].target = static_cast<int>(found->second);
    }
    if (head.find(".entry") != std::string::npos && !kernels_.emplace(common_name(function.name), &function).second)
      refuse(here(), "two kernels of this name: " + function.name);
  }

  int32_t declare(const std::string& name) {
    const auto place = static_cast<int32_t>(current_->registers.size());
    current_->registers.push_back(~uint64_t{0});
    scopes_.back()[name] = place;
    return place;
  }
  int32_t constant(uint64_t value) {
    const auto [found, is_new] = constants_.emplace(value, static_cast<int32_t>(current_->registers.size()));
    if (is_new) current_->registers.push_back(value);
    return found->second;
  }

  int32_t place_of(const std::string& name, const std::string& where) {
    for (size_t i = scopes_.size(); i-- > 0;)
      if (const auto found = scopes_[i].find(name); found != scopes_[i].end()) return found->second;
    if (name == "_ZN7capstan4cuda6sharedE") return constant(0);
    if (name == "_") return declare("_");
    if (name.starts_with("0f") || name.starts_with("0d")) return constant(std::stoull(name.substr(2), nullptr, 16));
    if (std::isdigit(static_cast<unsigned char>(name[0])) != 0) return constant(std::stoull(name, nullptr, 0));
    if (name[0] == '-') return constant(static_cast<uint64_t>(std::stoll(name, nullptr, 0)));
    refuse(where, "unknown: " + name);
  }

  void read_declaration(const std::string& text, const std::string& where) {
    std::vector<std::string> words;
    for (std::stringstream stream(text); !stream.eof();)
      if (std::string word; stream >> word) words.push_back(word);
    if (words[0] == ".pragma") return;
    if (words[0] == ".reg") {
      for (const std::string& name : operands_of(text.substr(text.find(words[1]) + words[1].size()))) {
        const size_t bracket = name.find('<');
        if (bracket == std::string::npos) {
          declare(name);
          continue;
        }
        const int count = std::stoi(name.substr(bracket + 1));
        for (int i = 0; i < count; ++i)
          declare(name.substr(0, bracket) + std::to_string(i));
      }
      return;
    }
    if (words[0] == ".param" || words[0] == ".local") {
      const auto [name, bytes] = parameters_of(text)[0];
      current_->memory_bytes = (current_->memory_bytes + 15) / 16 * 16;
      current_->buffers.push_back({declare(name), current_->memory_bytes});
      current_->memory_bytes += bytes;
      return;
    }
    refuse(where, "unexpected: " + text);
  }

  void read_statement(const std::string& text, const std::string& where) {
    if (text[0] == '.') return read_declaration(text, where);
    Instruction at;
    at.where = where;
    at.text = text;
    std::string_view rest = text;
    if (rest[0] == '@') {
      at.is_negated = rest[1] == '!';
      const size_t end = rest.find_first_of(" \t");
      at.guard = place_of(std::string(rest.substr(at.is_negated ? 2 : 1, end - (at.is_negated ? 2 : 1))), where);
      rest = trimmed(rest.substr(end));
    }
    const size_t end = std::min(rest.find_first_of(" \t\n"), rest.size());
    const std::string opcode(rest.substr(0, end));
    std::vector<std::string> operands = operands_of(rest.substr(end));
    const std::vector<std::string_view> words = split(opcode, '.');
    std::vector<int32_t> places;
    if (words[0] == "bra") {
      jumps_.emplace_back(current_->code.size(), operands.at(0));
      operands.clear();
    }
    if (words[0] == "call") {
      // A call is `(results), name, (parameters)`.
      for (size_t i = 0; i < operands.size() && at.callee == nullptr; ++i)
        if (const auto found = functions_.find(operands[i]); found != functions_.end()) {
          at.callee = found->second;
          operands.erase(operands.begin() + static_cast<std::ptrdiff_t>(i));
        }
      if (at.callee == nullptr) refuse(where, "a call of an unknown function: " + text);
    }
    for (std::string operand : operands) {
      const bool is_address = operand.find('[') != std::string::npos;
      std::erase_if(operand, [](char c) { return c == '[' || c == ']'; });
      if (is_address)
        if (const size_t plus = operand.find('+'); plus != std::string::npos) {
          at.offset = std::stoll(operand.substr(plus + 1));
          operand.resize(plus);
        }
      if (operand[0] == '%' && operand.find('.') != std::string::npos) {
        at.run = special_of(operand, opcode);
        if (at.run == nullptr) refuse(where, "unknown: " + text);
        continue;
      }
      places.push_back(place_of(operand, where));
    }
    if (at.run == nullptr)
      at.run = words[0] == "mov" && words.back() != "pred" ? move_of(text, words, places) : arithmetic(words);
    if (at.run == nullptr) at.run = other(opcode, words, at);
    if (at.run == nullptr) refuse(where, "unsupported instruction: " + text);
    at.num_operands = static_cast<int>(places.size());
    current_->operands.push_back(std::make_unique<int32_t[]>(places.size()));
    std::ranges::copy(places, current_->operands.back().get());
    at.operands = current_->operands.back().get();
    current_->code.push_back(std::move(at));
  }

  static Handler special_of(std::string_view name, std::string_view opcode) {
    if (opcode != "mov.u32") return nullptr;
    if (name == "%tid.x") return special<&dim3::x, &ThreadPlace::thread>;
    if (name == "%ctaid.x") return special<&dim3::x, &ThreadPlace::block>;
    if (name == "%ctaid.y") return special<&dim3::y, &ThreadPlace::block>;
    if (name == "%ctaid.z") return special<&dim3::z, &ThreadPlace::block>;
    if (name == "%ntid.x") return special<&dim3::x, &ThreadPlace::block_dim>;
    if (name == "%nctaid.x") return special<&dim3::x, &ThreadPlace::grid_dim>;
    if (name == "%nctaid.y") return special<&dim3::y, &ThreadPlace::grid_dim>;
    if (name == "%nctaid.z") return special<&dim3::z, &ThreadPlace::grid_dim>;
    return nullptr;
  }

  static Handler move_of(const std::string& text, const std::vector<std::string_view>& words,
                         const std::vector<int32_t>& places) {
    if (places.size() == 2) return CAPSTAN_HANDLER {
        thread.registers[at.operands[0]] = thread.registers[at.operands[1]];
      };
    if (places.size() != 3 || words.back() != "b64") return nullptr;
    // Packs two halves into a register, or unpacks it.
    if (text.find('{') > text.find(',')) return CAPSTAN_HANDLER {
        put(thread, at.operands[0],
            operand<uint32_t>(thread, at, 1) | uint64_t{operand<uint32_t>(thread, at, 2)} << 32);
      };
    return CAPSTAN_HANDLER {
      const uint64_t whole = operand<uint64_t>(thread, at, 2);
      put(thread, at.operands[0], static_cast<uint32_t>(whole));
      put(thread, at.operands[1], static_cast<uint32_t>(whole >> 32));
    };
  }

  std::string file_, text_;
  size_t at_ = 0, line_ = 1;
  Function* current_ = nullptr;
  std::vector<std::unordered_map<std::string, int32_t>> scopes_;
  std::map<uint64_t, int32_t> constants_;
  std::unordered_map<std::string, size_t> labels_;
  std::vector<std::pair<size_t, std::string>> jumps_;
  std::map<std::string, Function*> functions_;  // of the current file
  std::map<std::string,
           std::pair<std::vector<std::pair<std::string, size_t>>, std::vector<std::pair<std::string, size_t>>>>
      heads_;
  std::vector<std::unique_ptr<Function>> all_;
  std::map<std::string, const Function*> kernels_;
};

void run_function(const Function& function, const void* const* parameters, void* const* results) {
  std::vector<uint64_t> registers = function.registers;
  std::vector<unsigned char> memory(function.memory_bytes + 16, 0xff);
  const uint64_t own = (reinterpret_cast<uint64_t>(memory.data()) + 15) / 16 * 16;
  for (const Buffer& buffer : function.buffers)
    registers[static_cast<size_t>(buffer.place)] = own + buffer.offset;
  for (size_t i = 0; i < function.parameters.size(); ++i)
    registers[static_cast<size_t>(function.parameters[i])] = reinterpret_cast<uint64_t>(parameters[i]);
  for (size_t i = 0; i < function.results.size(); ++i)
    registers[static_cast<size_t>(function.results[i])] = reinterpret_cast<uint64_t>(results[i]);
  Thread thread{registers.data()};
  const Instruction* const code = function.code.data();
  const size_t count = function.code.size();
  while (thread.next < count) {
    const Instruction& at = code[thread.next++];
    if (at.guard >= 0 && (get<uint32_t>(thread, at.guard) != 0) == at.is_negated) continue;
    at.run(thread, at);
  }
}

// ---- kernels of this program

// Maps addresses to names of this program's functions, including local ones.
std::unordered_map<uintptr_t, std::string> own_symbols() {
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  std::stringstream whole;
  whole << stream.rdbuf();
  const std::string file = whole.str();
  uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uintptr_t*>(out) = info->dlpi_addr;
        return 1;
      },
      &base);
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file.data() + header->e_shoff);
  std::unordered_map<uintptr_t, std::string> names;
  for (int s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const char* strings = file.data() + sections[sections[s].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(file.data() + sections[s].sh_offset);
    for (size_t i = 0; i < sections[s].sh_size / sizeof(Elf64_Sym); ++i)
      if (ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC)
        names.emplace(base + symbols[i].st_value, strings + symbols[i].st_name);
  }
  return names;
}

struct Program {
  Module kernels;
  std::unordered_map<uintptr_t, std::string> names = own_symbols();

  explicit Program(const char* folder) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
      if (entry.path().extension() == ".ptx") kernels.read(entry.path());
  }
};

const Program* program() {
  static const char* const folder = std::getenv("CAPSTAN_TEST_PTX");
  if (folder == nullptr) return nullptr;
  static const Program& loaded = *new Program(folder);
  return &loaded;
}

}  // namespace

std::function<void()> compiled_kernel(const void* kernel, std::vector<KernelArgument> arguments) {
  const Program* loaded = program();
  if (loaded == nullptr) return {};
  const auto name = loaded->names.find(reinterpret_cast<uintptr_t>(kernel));
  if (name == loaded->names.end()) refuse("", "unknown kernel address");
  const Function* function = loaded->kernels.kernel(common_name(name->second));
  if (function == nullptr) refuse("", "no such kernel: " + name->second);
  if (function->parameters.size() != arguments.size()) refuse(function->name, "wrong number of parameters");
  // Arguments start at multiples of 64 bytes, as in a launch.
  auto memory = std::make_shared<std::vector<unsigned char>>();
  std::vector<size_t> offsets;
  size_t bytes = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    offsets.push_back(bytes);
    bytes += (std::max(arguments[i].bytes, function->parameter_bytes[i]) + 63) / 64 * 64;
  }
  memory->resize(bytes + 64, 0xff);
  auto* const begin = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(memory->data()) + 63) / 64 * 64);
  std::vector<const void*> places;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::memcpy(begin + offsets[i], arguments[i].value, arguments[i].bytes);
    places.push_back(begin + offsets[i]);
  }
  return [function, memory, places = std::move(places)] { run_function(*function, places.data(), nullptr); };
}

}  // namespace capstan::cuda_host
