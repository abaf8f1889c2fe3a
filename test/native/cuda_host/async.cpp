// Host emulation of the asynchronous instructions. Every effect happens as late as the PTX manual allows, so that code
// without the required wait reads poison.
#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "test/native/cuda_host/block.h"
#include "test/native/cuda_host/cuda_host.h"

namespace capstan::cuda_host {
namespace {

struct Copy {
  int bytes = 0;
  std::function<void()> land;
};

struct Mbarrier {
  int count = 0, num_missing = 0;
  int64_t bytes = 0;  // expected and not landed
  uint64_t phase = 0;
  std::vector<Copy> copies;

  void end_phase_if_full() {
    if (num_missing > 0 || bytes != 0 || !copies.empty()) return;
    num_missing = count;
    ++phase;
  }
  void land() {
    for (const Copy& copy : std::exchange(copies, {})) {
      copy.land();
      bytes -= copy.bytes;
    }
    end_phase_if_full();
  }
};

struct Product {
  std::vector<float*> acc;
  std::array<const uint32_t*, 4> a;
  uint64_t b;
  float (*to_float)(uint16_t);
};
struct Sums {
  std::vector<float*> acc;
  std::vector<float> values;
};
// A thread's share of warpgroup products.
struct Products {
  std::vector<std::vector<Product>> groups;  // committed, oldest first
  std::vector<Product> open;
  std::map<float*, Sums> sums;  // of poisoned accumulators, keyed by their first element
  bool is_fenced = false;
};

// A thread's 16-byte copies, with the source data at the time of the call.
struct CpAsync {
  void* to;
  std::array<unsigned char, 16> bytes;
};
struct CpAsyncState {
  std::vector<std::vector<CpAsync>> groups;  // committed, oldest first
  std::vector<CpAsync> open;
  std::vector<uint32_t> landed;  // 16-byte words that have landed but are not visible to wgmma
};

bool are_tensor_maps_disabled = false;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("cuda_host: " + what);
}

}  // namespace

struct Async {
  std::map<const void*, Mbarrier> barriers;
  std::map<unsigned, Products> products;
  std::map<unsigned, CpAsyncState> copies;
  // 16-byte words that wgmma must not read yet
  std::vector<bool> is_hidden = std::vector<bool>(place.shared_bytes / 16 + 1);

  Mbarrier& barrier(const void* place) {
    const auto found = barriers.find(place);
    if (found == barriers.end()) fail("an mbarrier that is not initialized");
    return found->second;
  }
};

namespace {

Async& async() {
  std::shared_ptr<Async>& of_block = block_async();
  if (!of_block) of_block = std::make_shared<Async>();
  return *of_block;
}

void start_copy(void* to, size_t room, int bytes, const void* barrier, std::function<void()> land) {
  if (shared_address(to) + room > place.shared_bytes) fail("a copy ends outside shared memory");
  std::memset(to, 0xff, room);
  async().barrier(barrier).copies.push_back({bytes, std::move(land)});
}

// Element (row, k) of a K-major operand, decoded from a matrix descriptor as the manual defines it.
uint16_t operand(uint64_t descriptor, int row, int k) {
  const auto bytes_of = [&](int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4; };
  const uint32_t start = bytes_of(0), leading = bytes_of(16), stride = bytes_of(32);
  const auto mode = static_cast<int>(descriptor >> 62);
  const int bits = mode == 0 ? 0 : 4 - mode;  // swizzles of 128, 64 and 32 bytes XOR three, two and one bits
  const auto r = static_cast<uint32_t>(row), c = static_cast<uint32_t>(k);
  uint32_t address = start + r / 8 * stride;
  if (bits == 0) {
    address += c / 8 * leading + r % 8 * 16 + c % 8 * 2;
  } else {
    address += r % 8 * (16u << bits) + c * 2;
    address ^= (address >> 7 & ((1u << bits) - 1)) << 4;
  }
  if (address + 2 > place.shared_bytes) fail("an operand of wgmma lies outside shared memory");
  uint16_t value = 0xffff;
  if (!async().is_hidden[address / 16]) std::memcpy(&value, place.shared + address, sizeof value);
  return value;
}

// Computes one product for the 32 threads of a warp.
void multiply(const std::vector<const Product*>& lanes, const std::vector<std::vector<float>*>& sums) {
  const Product& first = *lanes[0];
  for (const Product* lane : lanes)
    if (lane->b != first.b || lane->acc.size() != first.acc.size())
      fail("threads of a warp pass different operands to wgmma");
  double a[16][16];
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 4; ++r)
      for (int half = 0; half < 2; ++half)
        a[lane / 4 + r % 2 * 8][lane % 4 * 2 + r / 2 * 8 + half] = static_cast<double>(first.to_float(
            static_cast<uint16_t>(*lanes[static_cast<size_t>(lane)]->a[static_cast<size_t>(r)] >> 16 * half)));
  for (int column = 0; column < static_cast<int>(first.acc.size()) * 2; ++column) {
    double b[16];
    for (int k = 0; k < 16; ++k)
      b[k] = static_cast<double>(first.to_float(operand(first.b, column, k)));
    for (int row = 0; row < 16; ++row) {
      // NOTE: the hardware's order of additions within one instruction is not documented. Doubles make it irrelevant.
      double sum = 0;
      for (int k = 0; k < 16; ++k)
        sum += a[row][k] * b[k];
      float& value = (*sums[static_cast<size_t>(row % 8 * 4 + column % 8 / 2)])[static_cast<size_t>(
          column / 8 * 4 + row / 8 * 2 + column % 2)];
      value = static_cast<float>(value + sum);
    }
  }
}

}  // namespace

void check_end(const Async& async) {
  for (const auto& [_, barrier] : async.barriers)
    if (!barrier.copies.empty() || barrier.bytes != 0) fail("a block ends before its copies have landed");
  for (const auto& [_, copies] : async.copies)
    if (!copies.groups.empty() || !copies.open.empty()) fail("a block ends before a thread's copies have landed");
  for (const auto& [_, products] : async.products)
    if (!products.groups.empty() || !products.open.empty()) fail("a block ends before its products have finished");
}

void disable_tensor_maps(bool refuses) {
  are_tensor_maps_disabled = refuses;
}
bool supports_tensor_maps() {
  return !are_tensor_maps_disabled;
}

// Checks alignment, sizes and boxes as the driver does.
bool encode_tensor_map(TensorMap& map, const void* data, int64_t rows, int64_t columns, int box_rows, int box_columns) {
  if (are_tensor_maps_disabled || data == nullptr || reinterpret_cast<uintptr_t>(data) % 16 != 0 ||
      columns * 2 % 16 != 0)
    return false;
  if (rows < 1 || columns < 1 || rows > int64_t{1} << 32 || columns > int64_t{1} << 32 || box_rows < 1 ||
      box_rows > 256 || box_columns * 2 != 128)
    return false;
  map = {static_cast<const unsigned char*>(data), rows, columns, box_rows, box_columns};
  return true;
}

uint32_t shared_address(const void* at) {
  const auto* byte = static_cast<const unsigned char*>(at);
  if (byte < place.shared || byte > place.shared + place.shared_bytes) fail("an address outside shared memory");
  return static_cast<uint32_t>(byte - place.shared);
}

void mbarrier_init(const void* barrier, int count) {
  if (shared_address(barrier) % 8 != 0 || shared_address(barrier) + 8 > place.shared_bytes)
    fail("an mbarrier must be 8 aligned bytes of shared memory");
  async().barriers[barrier] = {count, count, 0, 0, {}};
}

void mbarrier_arrive(const void* barrier, int bytes) {
  Mbarrier& at = async().barrier(barrier);
  if (at.num_missing == 0) fail("more threads arrive at an mbarrier than its count");
  at.bytes += bytes;
  --at.num_missing;
  at.end_phase_if_full();
}

void mbarrier_wait(const char* file, int line, const void* barrier, int parity) {
  Mbarrier& at = async().barrier(barrier);
  wait_until(file, line, [&] {
    if (static_cast<int>(at.phase & 1) == parity && at.num_missing == 0) at.land();
    return static_cast<int>(at.phase & 1) != parity;
  });
}

void cp_async_bulk(void* to, const void* from, int bytes, const void* barrier) {
  if (bytes <= 0 || bytes % 16 != 0 || shared_address(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail("cp.async.bulk: addresses and size must be multiples of 16 bytes");
  start_copy(to, static_cast<size_t>(bytes), bytes, barrier,
             [=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
}

void tma_load_2d(void* to, const TensorMap& map, int column, int row, const void* barrier) {
  const uint32_t begin = shared_address(to);
  if (begin % 128 != 0) fail("TMA: the destination must be a multiple of 128 bytes");
  const int bytes = map.box_rows * 128;
  unsigned char* const shared = place.shared;
  start_copy(to, static_cast<size_t>(bytes), bytes, barrier, [=] {
    for (int r = 0; r < map.box_rows; ++r)
      for (int c = 0; c < map.box_columns; ++c) {
        const int64_t from_row = int64_t{row} + r, from_column = int64_t{column} + c;
        const bool is_there = from_row >= 0 && from_row < map.rows && from_column >= 0 && from_column < map.columns;
        uint32_t address = begin + static_cast<uint32_t>(r * 128 + c * 2);
        address ^= (address >> 7 & 7) << 4;
        if (is_there)
          std::memcpy(shared + address, map.data + (from_row * map.columns + from_column) * 2, 2);
        else
          std::memset(shared + address, 0, 2);
      }
  });
}

void cp_async(void* to, const void* from) {
  const uint32_t address = shared_address(to);
  if (address % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail("cp.async: addresses must be multiples of 16 bytes");
  if (address + 16 > place.shared_bytes) fail("a copy ends outside shared memory");
  std::memset(to, 0xff, 16);
  async().is_hidden[address / 16] = true;
  CpAsync& copy = async().copies[running_thread()].open.emplace_back(CpAsync{to, {}});
  std::memcpy(copy.bytes.data(), from, 16);
}

void cp_async_commit_group() {
  CpAsyncState& mine = async().copies[running_thread()];
  mine.groups.push_back(std::exchange(mine.open, {}));
}

void cp_async_wait_group(int pending) {
  CpAsyncState& mine = async().copies[running_thread()];
  while (mine.groups.size() > static_cast<size_t>(pending)) {
    for (const CpAsync& copy : mine.groups.front()) {
      std::memcpy(copy.to, copy.bytes.data(), 16);
      mine.landed.push_back(shared_address(copy.to) / 16);
    }
    mine.groups.erase(mine.groups.begin());
  }
}

void fence_proxy_async() {
  for (const uint32_t word : std::exchange(async().copies[running_thread()].landed, {}))
    async().is_hidden[word] = false;
}

void wgmma_fence() {
  async().products[running_thread()].is_fenced = true;
}

void wgmma(std::vector<float*> acc, const std::array<const uint32_t*, 4>& a, uint64_t b, float (*to_float)(uint16_t)) {
  Products& mine = async().products[running_thread()];
  if (!mine.is_fenced) fail("wgmma without wgmma.fence after a change of its registers");
  Sums& sums = mine.sums[acc[0]];
  if (sums.acc.empty()) {
    sums.acc = acc;
    for (float* sum : acc) {
      sums.values.push_back(*sum);
      std::memset(sum, 0xff, sizeof *sum);
    }
  } else if (sums.acc != acc) {
    fail("wgmma with part of the registers of a pending wgmma");
  }
  mine.open.push_back({std::move(acc), a, b, to_float});
}

void wgmma_commit_group() {
  Products& mine = async().products[running_thread()];
  mine.groups.push_back(std::exchange(mine.open, {}));
}

void wgmma_wait_group(int pending) {
  Products& mine = async().products[running_thread()];
  mine.is_fenced = false;
  warp_collective("wgmma_wait_group", &mine, [pending](void* const* lanes) {
    const auto products_of = [&](int lane) -> Products& { return *static_cast<Products*>(lanes[lane]); };
    while (products_of(0).groups.size() > static_cast<size_t>(pending)) {
      const size_t count = products_of(0).groups.front().size();
      for (size_t i = 0; i < count; ++i) {
        std::vector<const Product*> of_lanes;
        std::vector<std::vector<float>*> sums;
        for (int lane = 0; lane < 32; ++lane) {
          Products& products = products_of(lane);
          if (products.groups.empty() || products.groups.front().size() != count)
            fail("threads of a warp wait for different products");
          of_lanes.push_back(&products.groups.front()[i]);
          sums.push_back(&products.sums.at(of_lanes.back()->acc[0]).values);
        }
        multiply(of_lanes, sums);
      }
      for (int lane = 0; lane < 32; ++lane)
        products_of(lane).groups.erase(products_of(lane).groups.begin());
    }
    for (int lane = 0; lane < 32; ++lane) {
      Products& products = products_of(lane);
      const auto is_awaited = [&](const float* acc) {
        const auto has = [&](const std::vector<Product>& group) {
          return std::ranges::any_of(group, [&](const Product& product) { return product.acc[0] == acc; });
        };
        return has(products.open) || std::ranges::any_of(products.groups, has);
      };
      std::erase_if(products.sums, [&](const auto& entry) {
        if (is_awaited(entry.first)) return false;
        for (size_t i = 0; i < entry.second.acc.size(); ++i)
          *entry.second.acc[i] = entry.second.values[i];
        return true;
      });
    }
  });
}

}  // namespace capstan::cuda_host
