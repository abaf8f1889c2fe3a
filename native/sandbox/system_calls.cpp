#include "native/sandbox/system_calls.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/sandbox/mounts.h"

namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "the filter of system calls supports x86-64 and arm64"
#endif

/** Numbers from here on are those of the x32 interface, which would bypass a filter by number. */
constexpr uint32_t kX32Bit = 0x40000000;

/** Calls newer than the headers of older systems. They have the same number on all architectures. */
constexpr uint32_t kIoUringSetup = 425, kOpenTree = 428, kMoveMount = 429, kFsOpen = 430, kFsConfig = 431,
                   kFsMount = 432, kFsPick = 433, kClone3 = 435, kMountSetattr = 442, kLandlockCreateRuleset = 444,
                   kOpenTreeAttr = 467;

constexpr uint32_t kRefused[] = {// Mounts and file systems.
                                 SYS_mount, SYS_umount2, SYS_pivot_root, SYS_swapon, SYS_swapoff, kOpenTree, kMoveMount,
                                 kFsOpen, kFsConfig, kFsMount, kFsPick, kMountSetattr, kOpenTreeAttr,
                                 // Namespaces of other processes.
                                 SYS_setns,
                                 // Keyrings are shared by all processes of a user.
                                 SYS_add_key, SYS_request_key, SYS_keyctl,
                                 // Large parts of the kernel that a server does not need.
                                 SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
                                 // The kernel itself.
                                 SYS_kexec_load, SYS_kexec_file_load, SYS_init_module, SYS_finit_module,
                                 SYS_delete_module};

constexpr uint32_t kAllow = SECCOMP_RET_ALLOW;
constexpr uint32_t kNotPermitted = SECCOMP_RET_ERRNO | EPERM;
constexpr uint32_t kNoSuchCall = SECCOMP_RET_ERRNO | ENOSYS;

/** A program that reads straight down: the first test that matches decides. */
class Filter {
 public:
  Filter() {
    load(offsetof(seccomp_data, arch));
    // Calls of another interface, such as the one for 32-bit programs, have other numbers.
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
    end(kNoSuchCall);
    load(offsetof(seccomp_data, nr));
    add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32Bit, 0, 1));
    end(kNoSuchCall);
  }

  void refuse(uint32_t call, uint32_t verdict) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    end(verdict);
  }

  /** Refuses a call whose first argument has this bit, and allows it otherwise. */
  void refuse_bit(uint32_t call, uint32_t bit) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4));
    // The low half of the argument: both architectures are little-endian.
    load(offsetof(seccomp_data, args));
    add(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bit, 0, 1));
    end(kNotPermitted);
    end(kAllow);
  }

  void install() {
    end(kAllow);
    const sock_fprog program{static_cast<unsigned short>(steps_.size()), steps_.data()};
    // Without the flag, older kernels slow down all code of a filtered process.
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) != 0)
      fail("filter system calls");
  }

 private:
  void load(size_t offset) { add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset))); }
  void end(uint32_t verdict) { add(BPF_STMT(BPF_RET | BPF_K, verdict)); }
  void add(sock_filter step) { steps_.push_back(step); }

  std::vector<sock_filter> steps_;
};

}  // namespace

void filter_system_calls() {
  Filter filter;
  // C libraries use clone() when clone3() is missing. Its flags are in memory, where a filter cannot read them.
  filter.refuse(kClone3, kNoSuchCall);
  // Files that are registered with io_uring are invisible to the watch of the disk. Programs do without it.
  filter.refuse(kIoUringSetup, kNoSuchCall);
  // A rule of Landlock keeps a deleted file on the disk, where no watch sees it.
  filter.refuse(kLandlockCreateRuleset, kNoSuchCall);
  for (const uint32_t call : kRefused)
    filter.refuse(call, kNotPermitted);
  for (const uint32_t call : {SYS_clone, SYS_unshare})
    filter.refuse_bit(call, CLONE_NEWUSER);
  filter.install();
}
