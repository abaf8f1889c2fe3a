#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/** What is to run, and how. Comes by standard input, as it holds secrets: keys and values by turns, each ended by a
 * NUL. */
struct Spec {
  /** Of this replica: `state`, `exit`, `stop`, `lock`, `spool/`, `root/` are kept in it. */
  std::string dir;
  /** Namespaces of its own, with what is below; else it runs on the host as it is. */
  bool is_isolated = false;
  /** A Unix socket outside, from which connections are handed to `inner_host:inner_port`. */
  std::string socket_path;
  std::string inner_host;
  int inner_port = 0;
  /** Read-only, at the same path. */
  std::vector<std::string> shares;
  /** Nothing of these is seen, even where they lie in a share. */
  std::vector<std::string> hides;
  /** Name below /platform/input, path outside. */
  std::vector<std::pair<std::string, std::string>> inputs;
  std::string home;
  std::vector<std::string> devices;
  /** Whom the workload is to the host, where this process is root. */
  uint32_t uid = 65534;
  uint32_t gid = 65534;

  std::vector<std::string> args;
  std::vector<std::string> env;
  std::string cwd;
  /** Control groups that the workload joins; the first one that counts memory says whether it ran out. */
  std::vector<std::string> cgroups;
  /** Without such a group its memory is watched from here; 0: not at all. */
  uint64_t memory_bytes = 0;
  uint64_t spool_max_bytes = 256ull << 20;
};

/** @throws std::runtime_error with what is wrong. */
Spec read_spec(int fd);
