#include "native/base/machine.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "test/native/testing.h"

namespace capstan::testing {
namespace {

// The control group files of a machine, in a temporary folder. `membership` decides the version: lines of version 1
// name controllers.
class Groups {
 public:
  Groups(const std::string& name, const std::string& membership,
         const std::vector<std::pair<std::string, std::string>>& files)
      : root_(std::filesystem::temp_directory_path() / ("capstan-groups-" + name + "-" + std::to_string(getpid()))) {
    for (const auto& [path, text] : files) {
      std::filesystem::create_directories((root_ / path).parent_path());
      std::ofstream(root_ / path) << text << "\n";
    }
    std::ofstream(root_ / "membership") << membership;
  }
  ~Groups() { std::filesystem::remove_all(root_); }
  CgroupFiles paths() const { return {root_.string(), (root_ / "membership").string()}; }

 private:
  std::filesystem::path root_;
};

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

TEST(control_groups_of_version_2_and_their_ancestors_limit_a_process) {
  const Groups groups("v2", "0::/service/replica/deep\n",
                      {{"cgroup.controllers", "cpu memory"},
                       {"service/cpu.max", "150000 100000"},
                       {"service/memory.max", "max"},
                       {"service/memory.current", "700"},
                       {"service/replica/cpu.max", "max 100000"},
                       {"service/replica/memory.max", "1000"},
                       {"service/replica/memory.current", "600"},
                       {"service/replica/memory.stat", "anon 400\nfile 200\ninactive_file 150"},
                       {"service/replica/deep/cpu.max", "400000 100000"},
                       {"service/replica/deep/memory.max", "900"},
                       {"service/replica/deep/memory.current", "100"}});
  EXPECT_EQ(cgroup_cpu_quota(groups.paths()), 1.5);
  EXPECT_EQ(cgroup_memory_left(groups.paths()), int64_t{550});
}

TEST(control_groups_of_version_1_have_a_tree_for_each_controller) {
  const Groups groups("v1", "9:name=systemd:/elsewhere\n4:memory:/replica\n1:cpuacct,cpu:/replica\n0::/\n",
                      {{"cpu/cpu.cfs_quota_us", "-1"},
                       {"cpu/cpu.cfs_period_us", "100000"},
                       {"cpu/replica/cpu.cfs_quota_us", "50000"},
                       {"cpu/replica/cpu.cfs_period_us", "100000"},
                       {"elsewhere/cpu.cfs_quota_us", "1"},
                       {"elsewhere/cpu.cfs_period_us", "100000"},
                       {"memory/memory.limit_in_bytes", "9223372036854771712"},
                       {"memory/memory.usage_in_bytes", "5000"},
                       {"memory/replica/memory.limit_in_bytes", "2000"},
                       {"memory/replica/memory.usage_in_bytes", "2500"},
                       {"memory/replica/memory.stat", "inactive_file 1\ntotal_inactive_file 800"}});
  EXPECT_EQ(cgroup_cpu_quota(groups.paths()), 0.5);
  EXPECT_EQ(cgroup_memory_left(groups.paths()), int64_t{300});
}

TEST(control_groups_that_a_container_sees_as_the_root_limit_it) {
  const Groups groups("root", "4:memory:/docker/1234\n1:cpu:/docker/1234\n",
                      {{"cpu/cpu.cfs_quota_us", "200000"},
                       {"cpu/cpu.cfs_period_us", "100000"},
                       {"memory/memory.limit_in_bytes", "100"},
                       {"memory/memory.usage_in_bytes", "40"}});
  EXPECT_EQ(cgroup_cpu_quota(groups.paths()), 2.0);
  EXPECT_EQ(cgroup_memory_left(groups.paths()), int64_t{60});
}

TEST(control_groups_that_are_missing_or_malformed_limit_nothing) {
  const Groups odd("odd", "nonsense\n1:cpu\n2:cpu:no/slash\n0::/../above\n", {{"x", ""}});
  for (const CgroupFiles& files : {odd.paths(), CgroupFiles{"/nowhere", "/nowhere/at/all"}}) {
    EXPECT(std::isinf(cgroup_cpu_quota(files)));
    EXPECT_EQ(cgroup_memory_left(files), kNoLimit);
  }
}

}  // namespace
}  // namespace capstan::testing
