#pragma once
// Where the time of the engine's steps goes. One thread, the engine's, is in one part of a step at a time, so the parts
// add up to its time. Code that can be profiled has a pointer to a StepProfile, which is null without a profile.
#include <array>
#include <chrono>
#include <cstdint>

namespace capstan {

enum class StepPart : uint8_t {
  kIdle,  // waiting for requests, grammar masks or the disk; not part of a step
  kRequests,
  kSchedule,
  kDrafts,  // with everything that runs inside it
  kInputs,
  kEmbedding,
  kPerLayer,
  kNorms,
  kQkv,
  kRotary,
  kAttention,
  kRecurrence,
  kOutput,
  kGateUp,
  kDown,
  kRouter,
  kExperts,
  kAdapters,
  kResidual,
  kMtp,
  kHead,
  kSampling,
  kPooling,
  kModel,
  kMasks,
  kText,
  kEvents,
  kOther,
  kCount
};
constexpr int kNumStepParts = static_cast<int>(StepPart::kCount);
const char* step_part_name(StepPart part);

enum class StepKind : uint8_t { kDecode, kPrefill, kMixed, kCount };
constexpr int kNumStepKinds = static_cast<int>(StepKind::kCount);
const char* step_kind_name(StepKind kind);

// The numbers that a product multiplies.
enum class MathKind : uint8_t { kF32, kBf16, kInt8, kCount };
constexpr int kNumMathKinds = static_cast<int>(MathKind::kCount);
const char* math_kind_name(MathKind kind);

// What must be read from memory, and the additions and multiplications.
struct StepWork {
  double bytes = 0;
  std::array<double, kNumMathKinds> ops = {};

  StepWork() = default;
  StepWork(double bytes_read, MathKind kind, double num_ops) : bytes(bytes_read) {
    ops[static_cast<size_t>(kind)] = num_ops;
  }
  void add(const StepWork& other);
};

struct StepPartTotals {
  // wait_ns, of ns: the part waited for other threads. The mean over its threads.
  int64_t ns = 0, wait_ns = 0;
  StepWork work;
};

struct StepKindTotals {
  int64_t num_steps = 0, num_tokens = 0;
  int64_t ns = 0;  // of the steps as a whole
  std::array<StepPartTotals, kNumStepParts> parts = {};
};

struct StepProfileTotals {
  int64_t idle_ns = 0;
  std::array<StepKindTotals, kNumStepKinds> kinds = {};
};

class StepProfile {
 public:
  // Begins the first step. Call it on the thread whose time is measured; all other calls are made there too.
  void begin();
  // The calling thread is now in `part`. Returns the part that it was in.
  StepPart enter(StepPart part);
  // The calling thread is again in the part that `enter` returned.
  void leave(StepPart before);
  // Of the time of the current part.
  void add_wait(int64_t ns) { current().wait_ns += ns; }
  void add_work(const StepWork& work) { current().work.add(work); }
  // Ends the step and begins the next one.
  void end_step(StepKind kind, int64_t num_tokens);
  // Of all steps that have ended.
  const StepProfileTotals& totals() const { return totals_; }

  static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  StepPartTotals& current() { return parts_[static_cast<size_t>(part_)]; }
  void switch_to(StepPart part);

  StepPart part_ = StepPart::kOther;
  int64_t last_ns_ = 0;                                   // when the current part began
  int64_t step_ns_ = 0;                                   // when the step began
  std::array<StepPartTotals, kNumStepParts> parts_ = {};  // of the current step
  StepProfileTotals totals_;
};

// The thread is in `part` until the end of the scope.
class PartScope {
 public:
  PartScope(StepProfile* profile, StepPart part) : profile_(profile) {
    if (profile_ != nullptr) before_ = profile_->enter(part);
  }
  ~PartScope() {
    if (profile_ != nullptr) profile_->leave(before_);
  }
  PartScope(const PartScope&) = delete;
  PartScope& operator=(const PartScope&) = delete;

 private:
  StepProfile* const profile_;
  StepPart before_ = StepPart::kOther;
};

// The thread waits for other threads until the end of the scope.
class WaitScope {
 public:
  explicit WaitScope(StepProfile* profile)
      : profile_(profile), begin_ns_(profile == nullptr ? 0 : StepProfile::now_ns()) {}
  ~WaitScope() {
    if (profile_ != nullptr) profile_->add_wait(StepProfile::now_ns() - begin_ns_);
  }
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  StepProfile* const profile_;
  const int64_t begin_ns_;
};

}  // namespace capstan
