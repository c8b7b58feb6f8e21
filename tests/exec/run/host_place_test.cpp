#include "exec/run/host_place.hpp"

#include <sched.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "exec/run/arena.hpp"
#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

using Catch::Matchers::Contains;

// CPUs that the calling thread may run on.
std::vector<int> own_cpus() {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cpus;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(static_cast<int>(cpu));
  return cpus;
}

const std::vector<NumaNode> two_sockets = {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}};

}  // namespace

TEST_CASE("The node of a GPU is what the kernel says of its PCI device, whatever its case") {
  const TemporaryFolder sysfs;
  write_file(sysfs / "bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  write_file(sysfs / "bus/pci/devices/0000:3c:00.0/numa_node", "-1\n");  // a virtual machine's
  CHECK(numa_node_of_pci("0000:3B:00.0", sysfs.path()) == 1);
  CHECK(numa_node_of_pci("0000:3c:00.0", sysfs.path()) == std::nullopt);
  CHECK(numa_node_of_pci("0000:3d:00.0", sysfs.path()) == std::nullopt);
}

TEST_CASE("Memory and threads go to the GPU's node where that node has enough CPUs") {
  const HostPlace place = place_beside(1, two_sockets, 4);
  CHECK(place.node == 1);
  CHECK(place.cpus == std::vector<int>{4, 5, 6, 7});
  CHECK_THAT(place.text, Contains("on NUMA node 1, beside the GPU"));
}

TEST_CASE("More threads than the GPU's node has CPUs stay on all nodes, and only memory is bound") {
  const HostPlace place = place_beside(0, two_sockets, 5);
  CHECK(place.node == 0);
  CHECK(place.cpus.empty());
  CHECK_THAT(place.text, Contains("4 CPUs for 5 threads"));
}

TEST_CASE("Nothing is bound where there is nothing to choose, or where the user has chosen") {
  CHECK(place_beside(std::nullopt, two_sockets, 1).node == -1);
  CHECK(place_beside(0, {{0, {0, 1}}}, 1).node == -1);
  CHECK(place_beside(2, two_sockets, 1).node == -1);                       // a node without memory
  const HostPlace elsewhere = place_beside(1, {{0, {0, 1}}, {1, {}}}, 1);  // taskset -c 0,1
  CHECK(elsewhere.node == -1);
  CHECK(elsewhere.cpus.empty());
  CHECK_THAT(elsewhere.text, Contains("not on NUMA node 1"));
}

TEST_CASE("The nodes of this computer have the CPUs that this thread may use") {
  const std::vector<NumaNode> nodes = numa_nodes();
  if (nodes.empty()) return;  // a kernel without NUMA
  std::vector<int> cpus;
  for (const NumaNode& node : nodes) cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  CHECK(cpus == own_cpus());
}

TEST_CASE("Threads started in a place stay there, and the thread that started them goes back") {
  const std::vector<int> before = own_cpus();
  const int last = before.back();
  std::vector<int> inside, of_started;
  std::thread started;
  {
    const OnNode placed({0, {last}, ""});
    inside = own_cpus();
    started = std::thread([&] { of_started = own_cpus(); });
    started.join();
  }
  CHECK(inside == std::vector<int>{last});
  CHECK(of_started == inside);
  CHECK(own_cpus() == before);
  const OnNode nowhere{HostPlace{}};
  CHECK(own_cpus() == before);
}

TEST_CASE("Memory taken in a place lies on its node") {
  const std::vector<NumaNode> nodes = numa_nodes();
  if (nodes.empty()) return;
  const int node = nodes.back().id;
  const OnNode placed({node, {}, ""});
  const Arena arena(std::uint64_t{8} << 20);
  const std::optional<double> share = share_on_node(arena.span(), node);
  if (!share) return;  // containers may refuse to say
  CHECK(*share == 1.0);
  CHECK(share_on_node(arena.span(), node + 1000) == 0.0);
}
