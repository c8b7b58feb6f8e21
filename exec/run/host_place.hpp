// Where host memory and threads are best for a GPU: on the NUMA node that its PCIe slot belongs to.
// Copies to and from another node cross the link between sockets, which is narrower than PCIe on
// many servers.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace spillway {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // CPUs of the node that the calling thread may run on
};

// The nodes of this computer that have memory. Empty where the kernel has no NUMA.
std::vector<NumaNode> numa_nodes();

// The node of a PCI device, named as CUDA names it ("0000:3b:00.0"). Nothing where the kernel does
// not know it, as in many virtual machines. `sysfs` stands in for /sys in tests.
std::optional<int> numa_node_of_pci(const std::string& bus_id,
                                    const std::filesystem::path& sysfs = "/sys");

// What OnNode binds. The default binds nothing.
struct HostPlace {
  int node = -1;          // memory is taken from this node while it has any; -1: from any node
  std::vector<int> cpus;  // threads run on these; empty: on any CPU
  std::string text;       // in words, for people: "on NUMA node 1, beside the GPU"; may be empty
};

// Beside a GPU of node `gpu_node`. Nothing is bound where there is one node only, or where the
// user's own binding (taskset, numactl, a container) excludes the GPU's node. Threads are bound
// only where the node has a CPU for each of the `threads` that share the optimizer's work.
HostPlace place_beside(std::optional<int> gpu_node, const std::vector<NumaNode>& nodes,
                       int threads);

// While one of these lives, the calling thread, and every thread that it starts, runs on the
// place's CPUs and takes memory from its node first. Threads that were started stay there. Memory
// comes from other nodes once the node has no more: binding never makes an allocation fail. A wish:
// where the kernel refuses, nothing is bound.
class OnNode {
 public:
  explicit OnNode(const HostPlace& place);
  ~OnNode();
  OnNode(const OnNode&) = delete;
  OnNode& operator=(const OnNode&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

// The share of touched memory that lies on a node, from a sample of its pages. Nothing where the
// kernel does not say.
std::optional<double> share_on_node(std::span<const std::byte> memory, int node);

}  // namespace spillway
