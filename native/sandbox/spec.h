#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/**
 * What to run, and how. Standard input carries it, because it holds secrets: keys and values in turn, each ended by
 * a NUL.
 */
struct Spec {
  /** The folder of this replica, with `state`, `exit`, `stop`, `lock`, `cache_limit`, `spool/` and `root/`. */
  std::string dir;
  /** True: in new namespaces with the settings below. False: directly on the host. */
  bool is_isolated = false;
  /** The Unix socket on the host whose connections are forwarded to `inner_host:inner_port`. */
  std::string socket_path;
  std::string inner_host;
  int inner_port = 0;
  /** Host paths, visible read-only at the same path. */
  std::vector<std::string> shares;
  /** Real paths of host files and folders that are hidden, even inside a share, an input or the home. */
  std::vector<std::string> hides;
  /** (name below /platform/input, host path), read-only. */
  std::vector<std::pair<std::string, std::string>> inputs;
  /** The host path of the home: /platform/home in namespaces. */
  std::string home;
  /** A host folder that outlives the replica, or empty: /platform/cache in namespaces. Replicas may share it. */
  std::string cache;
  std::vector<std::string> devices;
  /** The user and group of the workload on the host, when this process is root. */
  uint32_t uid = 65534;
  uint32_t gid = 65534;

  std::vector<std::string> args;
  std::vector<std::string> env;
  std::string cwd;
  /** The control groups that the workload joins. Those that count memory say whether it ran out. */
  std::vector<std::string> cgroups;
  /** Memory limit that this process enforces when no control group does; 0 = none. */
  uint64_t memory_bytes = 0;
  /** While the machine has less available memory, a replica may not hold files in memory whose size is unknown. */
  uint64_t memory_reserve_bytes = 1ull << 30;
  uint64_t spool_max_bytes = 256ull << 20;
  /** What the replica may add to its home; 0 = no limit. Measured every few seconds. */
  uint64_t disk_bytes = 0;
  /** What `cache` may hold; 0 = no limit. The service changes it in the file `cache_limit`. */
  uint64_t cache_bytes = 0;
  /** Maximum number of files and folders of the home, open files and mappings, so that a measurement ends soon. */
  uint64_t disk_entries = 2'000'000;
  /** While the disk of the home has less free space, a replica may not hold files whose size is unknown. */
  uint64_t disk_reserve_bytes = 4ull << 30;
  /** The size of all file systems in memory together: /tmp, /var/tmp, /run and /dev/shm. */
  uint64_t scratch_bytes = 64ull << 20;

  /** The path of the home that the workload sees. */
  std::string inner_home() const { return is_isolated ? "/platform/home" : home; }
};

/** @throws std::runtime_error naming the first invalid key. */
Spec read_spec(int fd);
