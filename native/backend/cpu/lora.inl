// The second product of low-rank adapters, over the Vec of the including file: rows of t times B. An output element is
// one chain of FMAs in the order of t, whatever the other rows are.
namespace {

using namespace capstan;

constexpr int kLoraRows = 4;          // rows with one adapter that share the reads of B
constexpr int64_t kLoraAhead = 2048;  // bytes that a product with all panels prefetches

// Readers of two rows of B.
struct F32Pairs {
  static constexpr int kBytes = 128;
  static void load(const char* from, Vec& even, Vec& odd) {
    even = vec_load(reinterpret_cast<const float*>(from));
    odd = vec_load(reinterpret_cast<const float*>(from) + 16);
  }
};

struct F16Pairs {
  static constexpr int kBytes = 64;
  static void load(const char* from, Vec& even, Vec& odd) {
    even = vec_load_f16(reinterpret_cast<const uint16_t*>(from));
    odd = vec_load_f16(reinterpret_cast<const uint16_t*>(from) + 16);
  }
};

struct Bf16Pairs {
  static constexpr int kBytes = 64;
  static void load(const char* from, Vec& even, Vec& odd) {
    vec_load_bf16_pairs(reinterpret_cast<const uint32_t*>(from), even, odd);
  }
};

// Returns in acc the product of R rows with one panel. The rows have one adapter. Prefetches the weights `ahead` bytes
// after those that it reads.
template <class Types, int R>
[[gnu::always_inline]] inline void multiply_lora(const LoraRow* rows, const LoraPanel& panel, int64_t ahead,
                                                 Vec (&acc)[R]) {
  constexpr bool kIsGated = Types::kIsGated;
  const char* weights = rows[0].update->weights + panel.offset;
  const float* t[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    acc[r] = vec_zero();
    t[r] = rows[r].t + (kIsGated ? 16 * int64_t{panel.first} : panel.first);
  }
  for (int i = 0; i < panel.count; i += 2, weights += Types::Pairs::kBytes) {
    prefetch(reinterpret_cast<const uint32_t*>(weights + ahead));
    Vec even, odd;
    Types::Pairs::load(weights, even, odd);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const float* x = t[r] + (kIsGated ? 16 * i : i);
      acc[r] = vec_fma(kIsGated ? vec_load(x) : vec_set(x[0]), even, acc[r]);
      acc[r] = vec_fma(kIsGated ? vec_load(x + 16) : vec_set(x[1]), odd, acc[r]);
    }
  }
}

template <class Types, int R>
[[gnu::noinline]] void add_lora_rows(const LoraRow* rows, int num_rows, int64_t panel, int panels, float* sums) {
  for (int p = 0; p < panels; ++p) {
    const LoraPanel& from = rows[0].update->panels[panel + p];
    if (from.count == 0) continue;
    Vec acc[R];
    // The next tile reads what follows these panels. Until then, the tiles of the projection use the cache.
    multiply_lora<Types, R>(rows, from, panels * from.count * int64_t{Types::Pairs::kBytes} / 2, acc);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* sum = sums + (p * num_rows + r) * 16;
      vec_store(sum, vec_add(vec_load(sum), acc[r]));
    }
  }
}

template <class P, bool kGated>
struct LoraTypes {
  using Pairs = P;
  static constexpr bool kIsGated = kGated;
};

// Calls use(LoraTypes) with the types of an update.
template <class Use>
void with_lora_types(const LoraPanels& update, Use use) {
  if (update.dtype == DType::kF32)
    update.is_gated ? use(LoraTypes<F32Pairs, true>{}) : use(LoraTypes<F32Pairs, false>{});
  else if (update.dtype == DType::kF16)
    update.is_gated ? use(LoraTypes<F16Pairs, true>{}) : use(LoraTypes<F16Pairs, false>{});
  else
    update.is_gated ? use(LoraTypes<Bf16Pairs, true>{}) : use(LoraTypes<Bf16Pairs, false>{});
}

// Adds the updates of `rows` to sums (panels, num_rows, 16).
void add_lora(const LoraRow* rows, int num_rows, int64_t panel, int panels, float* sums) {
  for (int row = 0; row < num_rows;) {
    const LoraPanels* update = rows[row].update;
    if (update == nullptr) {
      ++row;
      continue;
    }
    int count = 1;
    while (count < kLoraRows && row + count < num_rows && rows[row + count].update == update)
      ++count;
    if (count < kLoraRows) count = 1;
    with_lora_types(*update, [&](auto types) {
      using Types = decltype(types);
      if (count == kLoraRows)
        add_lora_rows<Types, kLoraRows>(rows + row, num_rows, panel, panels, sums + row * 16);
      else
        add_lora_rows<Types, 1>(rows + row, num_rows, panel, panels, sums + row * 16);
    });
    row += count;
  }
}

void lora_update(const LoraRow& row, int64_t num_panels, float* out) {
  with_lora_types(*row.update, [&](auto types) {
    for (int64_t panel = 0; panel < num_panels; ++panel) {
      Vec acc[1];
      multiply_lora<decltype(types), 1>(&row, row.update->panels[panel], kLoraAhead, acc);
      vec_store(out + panel * 16, acc[0]);
    }
  });
}

}  // namespace
