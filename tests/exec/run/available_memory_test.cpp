#include "exec/run/available_memory.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <string>

#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr std::uint64_t mebi = 1 << 20;
constexpr std::uint64_t nothing_said = std::numeric_limits<std::uint64_t>::max();
// As the kernel writes "no limit" in version 1.
const std::string no_limit = "9223372036854771712";

using Files = std::map<std::string, std::string>;

// What is available on a computer with 1000 MiB, as its files say; `files` are added, by path.
std::uint64_t available_with(const Files& files) {
  const TemporaryFolder folder;
  write_file(
      folder / "proc/meminfo",
      "MemTotal:       2048000 kB\nMemFree:         400000 kB\nMemAvailable:   1024000 kB\n");
  for (const auto& [path, text] : files) write_file(folder / path, text);
  return available_memory(folder.path());
}

std::string mib(std::uint64_t count) { return std::to_string(count * mebi) + "\n"; }

const char* const mount_2 =
    "25 1 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
const char* const mount_1 =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "33 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

}  // namespace

TEST_CASE("without control groups the memory available is what /proc/meminfo says") {
  CHECK(available_with({}) == 1000 * mebi);
  CHECK(available_with({{"proc/self/cgroup", "0::/a/b\n"}}) == 1000 * mebi);
  const TemporaryFolder empty;
  CHECK(available_memory(empty.path()) == nothing_said);
  // This computer, whatever it is, has some.
  CHECK(available_memory() > mebi);
  CHECK(available_memory() < nothing_said);
}

TEST_CASE(
    "control groups, version 2: every group above limits, page cache does not count as used") {
  Files files = {{"proc/self/mountinfo", mount_2},
                 {"proc/self/cgroup", "0::/user.slice/run 7\n"},
                 {"sys/fs/cgroup/memory.stat", "anon 1\n"},
                 {"sys/fs/cgroup/user.slice/memory.max", "max\n"},
                 {"sys/fs/cgroup/user.slice/run 7/memory.max", mib(500)},
                 {"sys/fs/cgroup/user.slice/run 7/memory.current", mib(300)},
                 // 120 MiB of files that were read, and 5 of pages that cannot be given back.
                 {"sys/fs/cgroup/user.slice/run 7/memory.stat",
                  "anon " + mib(175) + "file " + mib(125) + "inactive_file " + mib(100) +
                      "active_file " + mib(20) + "unevictable " + mib(5)}};
  CHECK(available_with(files) == (500 - 300 + 120) * mebi);
  // A parent with less left decides.
  files["sys/fs/cgroup/user.slice/memory.max"] = mib(400);
  files["sys/fs/cgroup/user.slice/memory.current"] = mib(350);
  CHECK(available_with(files) == 50 * mebi);
  // memory.high is where the kernel starts to stop a group: a limit for who wants to get on.
  files["sys/fs/cgroup/user.slice/memory.high"] = mib(360);
  CHECK(available_with(files) == 10 * mebi);
  // More used than allowed, as after a limit was lowered.
  files["sys/fs/cgroup/user.slice/memory.max"] = mib(100);
  CHECK(available_with(files) == 0);
}

TEST_CASE("control groups, version 1: limits count with all that is below, if so configured") {
  const std::string base = "sys/fs/cgroup/memory/";
  Files files = {{"proc/self/mountinfo", mount_1},
                 {"proc/self/cgroup", "5:cpu,cpuacct:/elsewhere\n4:memory:/box/inner\n0::/\n"},
                 {base + "memory.limit_in_bytes", no_limit},
                 {base + "memory.usage_in_bytes", mib(9000)},
                 {base + "box/memory.limit_in_bytes", no_limit},
                 {base + "box/memory.usage_in_bytes", mib(290)},
                 {base + "box/inner/memory.limit_in_bytes", mib(256)},
                 {base + "box/inner/memory.usage_in_bytes", mib(200)},
                 {base + "box/inner/memory.stat", "inactive_file 1\ntotal_inactive_file " +
                                                      mib(30) + "total_active_file " + mib(14)}};
  CHECK(available_with(files) == (256 - 200 + 44) * mebi);
  files[base + "box/memory.limit_in_bytes"] = mib(300);
  CHECK(available_with(files) == 10 * mebi);
  // A group above that does not count what is below it sets no limit to it.
  files[base + "box/memory.use_hierarchy"] = "0\n";
  CHECK(available_with(files) == (256 - 200 + 44) * mebi);
  files[base + "box/memory.use_hierarchy"] = "1\n";
  CHECK(available_with(files) == 10 * mebi);
}

TEST_CASE("in a container the group's own folder is what is mounted") {
  // The container is told its group as the host knows it, and sees it at the mount point.
  CHECK(
      available_with({{"proc/self/mountinfo",
                       "40 1 0:30 /docker/7f /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"},
                      {"proc/self/cgroup", "4:memory:/docker/7f\n"},
                      {"sys/fs/cgroup/memory/memory.limit_in_bytes", mib(64)},
                      {"sys/fs/cgroup/memory/memory.usage_in_bytes", mib(4)}}) == 60 * mebi);
  // A group that the mount does not hold: its top is all there is to see.
  CHECK(available_with({{"proc/self/mountinfo", mount_2},
                        {"proc/self/cgroup", "0::/../../other\n"},
                        {"sys/fs/cgroup/memory.max", mib(70)},
                        {"sys/fs/cgroup/memory.current", mib(4)}}) == 66 * mebi);
  // A mount point with a space in its name.
  CHECK(available_with(
            {{"proc/self/mountinfo", "40 1 0:30 / /my\\040groups rw shared:3 - cgroup2 none rw\n"},
             {"proc/self/cgroup", "0::/a\n"},
             {"my groups/a/memory.max", mib(80)}}) == 80 * mebi);
  // No list of mounts: the usual places.
  CHECK(available_with({{"proc/self/cgroup", "4:memory:/a\n"},
                        {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", mib(90)}}) == 90 * mebi);
}
