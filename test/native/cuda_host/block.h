#pragma once
// What cuda_host.cpp and async.cpp know of each other: the block that runs, and what is under way in it.
#include <functional>
#include <memory>

namespace capstan::cuda_host {

// Barriers in shared memory, copies and products of one block.
struct Async;
// Of the block that runs; empty until something needs it.
std::shared_ptr<Async>& async_of_block();
// Throws where something is left under way when the block has ended.
void check_end(const Async& async);

unsigned running_thread();
// The thread that runs stops here until `is_over` says yes; it is asked in between.
void wait_until(const char* where, const std::function<bool()>& is_over);

}  // namespace capstan::cuda_host
