#pragma once
#include "native/engine/batch.h"

namespace capstan {

// Runs planned steps (architecture, contract 1). Steps are collected in the order of their launch. At most depth()
// steps are in flight. A batch must not move until it is collected. Errors thrown here end every open request.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  virtual int depth() const = 0;
  virtual void launch(Batch& batch) = 0;
  // Waits for the oldest launched step and fills its results.
  virtual void collect(Batch& batch) = 0;
  // Gives up the launched steps after an error. Returns when no thread uses their batches. No step may follow.
  virtual void abandon() {}
};

}  // namespace capstan
