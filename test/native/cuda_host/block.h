#pragma once
// What cuda_host.cpp, async.cpp and runtime.cpp know of each other: the block that runs, and what is under way in it.
#include <cstdint>
#include <functional>
#include <memory>

namespace capstan::cuda_host {

// Barriers in shared memory, copies and products of one block.
struct Async;
// Of the block that runs; empty until something needs it.
std::shared_ptr<Async>& async_of_block();
// Throws where something is left under way when the block has ended.
void check_end(const Async& async);

constexpr int kMaxSharedBytes = 232448;

uint64_t seed();
unsigned running_thread();
// Of an early kernel: `before` runs when its first block waits for it.
void run_early(const std::function<void()>& before, const std::function<void()>& kernel);
// The thread that runs stops here until `is_over` says yes; it is asked in between.
void wait_until(const char* where, const std::function<bool()>& is_over);

}  // namespace capstan::cuda_host
