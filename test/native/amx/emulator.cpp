#include "test/native/amx/emulator.h"

#include <ucontext.h>

#include "test/native/amx/tiles_twin.h"

namespace {

// A VEX instruction of three prefix bytes. Source: Intel SDM volume 2, 2.3 and 2.1.5.
struct Instruction {
  int map, prefix;  // prefix: 0 = none, 1 = 66, 2 = F3, 3 = F2
  int opcode;
  int mode, reg, rm;  // of ModRM, without the extension bits: only tiles 0 to 7 exist
  int vvvv;
  char* base;  // of a memory operand
  int64_t index;
  int length;
};

// The numbers of the registers in an instruction, as indexes into the saved context.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

void decode_memory(const uint8_t* at, const greg_t* registers, Instruction& instruction) {
  const uint8_t* next = at + 5;
  const bool extends_index = (at[1] & 0x40) == 0, extends_base = (at[1] & 0x20) == 0;
  int base = instruction.rm;
  if (instruction.rm == 4) {
    const int index = (*next >> 3 & 7) + (extends_index ? 8 : 0);
    base = *next & 7;
    if (index != 4) instruction.index = registers[kRegisters[index]] << (*next >> 6);
    ++next;
  }
  if (instruction.mode == 0 && base == 5) twin_fault("an address form that the emulator does not know");
  int64_t displacement = 0;
  if (instruction.mode == 1) {
    displacement = static_cast<int8_t>(*next);
    next += 1;
  } else if (instruction.mode == 2) {
    int32_t wide;
    std::memcpy(&wide, next, sizeof wide);
    displacement = wide;
    next += 4;
  }
  instruction.base =
      reinterpret_cast<char*>(registers[kRegisters[base + (extends_base ? 8 : 0)]] + displacement);  // NOLINT
  instruction.length = static_cast<int>(next - at);
}

bool decode(const greg_t* registers, Instruction& instruction) {
  const auto* at = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  if (at[0] != 0xc4) return false;
  instruction = {at[1] & 31, at[2] & 3, at[3], at[4] >> 6, at[4] >> 3 & 7, at[4] & 7, ~at[2] >> 3 & 15, nullptr, 0, 5};
  if (instruction.map != 2) return false;
  if (instruction.mode != 3) decode_memory(at, registers, instruction);
  return true;
}

bool run(const Instruction& instruction) {
  const bool is_register = instruction.mode == 3;
  switch (instruction.opcode << 4 | instruction.prefix) {
    case 0x490: {
      if (is_register) {
        twin_release();
        return true;
      }
      TileConfig config;
      std::memcpy(&config, instruction.base + instruction.index, sizeof config);
      twin_configure(config);
      return true;
    }
    case 0x493:
      twin_zero(instruction.reg);
      return is_register;
    case 0x4b3:
      twin_load(instruction.reg, instruction.base, instruction.index);
      return !is_register;
    case 0x4b2:
      twin_store(instruction.reg, instruction.base, instruction.index);
      return !is_register;
    case 0x5c2:
      twin_dot_bf16(instruction.reg, instruction.rm, instruction.vvvv);
      return is_register;
    case 0x5e2:
      twin_dot_int8(instruction.reg, instruction.rm, instruction.vvvv);
      return is_register;
  }
  return false;
}

void handle(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction instruction;
  if (!decode(registers, instruction) || !run(instruction))
    twin_fault("an instruction that the emulator does not know");
  registers[REG_RIP] += instruction.length;
}

}  // namespace

namespace capstan::testing {

AmxEmulator::AmxEmulator() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &saved_);
}

AmxEmulator::~AmxEmulator() {
  sigaction(SIGILL, &saved_, nullptr);
}

}  // namespace capstan::testing
