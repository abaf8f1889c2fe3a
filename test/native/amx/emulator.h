#pragma once
// Runs the instructions of AMX on processors without it: they raise SIGILL there, and the handler computes them with
// the twin. So the machine code of the AMX kernels runs everywhere, slowly.
#include <csignal>

namespace capstan::testing {

// Emulates until the end of the scope, on all threads. Needs AVX-512 with VNNI.
class AmxEmulator {
 public:
  AmxEmulator();
  ~AmxEmulator();
  AmxEmulator(const AmxEmulator&) = delete;
  AmxEmulator& operator=(const AmxEmulator&) = delete;

 private:
  struct sigaction saved_;
};

}  // namespace capstan::testing
