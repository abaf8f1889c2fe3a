#pragma once
// Shared by cuda_host.cpp, async.cpp and runtime.cpp: the running block and its asynchronous work.
#include <cstdint>
#include <functional>
#include <memory>

namespace capstan::cuda_host {

// The mbarriers, asynchronous copies and products of one block.
struct Async;
// Of the running block; created on first use.
std::shared_ptr<Async>& block_async();
// Throws if asynchronous work is pending at the end of a block.
void check_end(const Async& async);

constexpr int kMaxSharedBytes = 232448;

uint64_t seed();
unsigned running_thread();
// Runs a PDL kernel. `before` runs when its first block waits for it.
void run_pdl(const std::function<void()>& before, const std::function<void()>& kernel);
// Suspends the running thread until `is_over` returns true. It is polled.
// `line` 0: `where` contains the line.
void wait_until(const char* where, int line, const std::function<bool()>& is_over);

}  // namespace capstan::cuda_host
