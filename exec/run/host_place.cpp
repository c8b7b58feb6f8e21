#include "exec/run/host_place.hpp"

#include <fmt/format.h>
#include <numa.h>
#include <numaif.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <utility>

namespace spillway {

namespace {

struct FreeMask {
  void operator()(bitmask* mask) const { numa_bitmask_free(mask); }
};
using Mask = std::unique_ptr<bitmask, FreeMask>;

bool is_set(const Mask& mask, unsigned bit) { return numa_bitmask_isbitset(mask.get(), bit) != 0; }

// CPUs that the calling thread may run on.
Mask own_cpus() {
  Mask mask(numa_allocate_cpumask());
  if (numa_sched_getaffinity(0, mask.get()) < 0) numa_bitmask_setall(mask.get());
  return mask;
}

}  // namespace

std::vector<NumaNode> numa_nodes() {
  std::vector<NumaNode> nodes;
  if (numa_available() < 0) return nodes;
  const Mask allowed = own_cpus(), cpus(numa_allocate_cpumask());
  for (int id = 0; id <= numa_max_node(); ++id) {
    if (numa_node_size64(id, nullptr) <= 0 || numa_node_to_cpus(id, cpus.get()) < 0) continue;
    NumaNode& node = nodes.emplace_back(NumaNode{id, {}});
    for (unsigned cpu = 0; cpu < cpus->size; ++cpu) {
      if (is_set(cpus, cpu) && cpu < allowed->size && is_set(allowed, cpu))
        node.cpus.push_back(static_cast<int>(cpu));
    }
  }
  return nodes;
}

std::optional<int> numa_node_of_pci(const std::string& bus_id, const std::filesystem::path& sysfs) {
  std::string name = bus_id;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char character) {
    return static_cast<char>(std::tolower(character));
  });
  std::ifstream file(sysfs / "bus" / "pci" / "devices" / name / "numa_node");
  int node = -1;
  if (!(file >> node) || node < 0) return {};
  return node;
}

HostPlace place_beside(std::optional<int> gpu_node, const std::vector<NumaNode>& nodes,
                       int threads) {
  if (!gpu_node || nodes.size() < 2) return {};
  const auto node = std::find_if(nodes.begin(), nodes.end(),
                                 [&](const NumaNode& one) { return one.id == *gpu_node; });
  if (node == nodes.end()) return {};
  if (node->cpus.empty()) {
    return {-1,
            {},
            fmt::format("not on NUMA node {}, where the GPU is: this process may not run there",
                        node->id)};
  }
  if (std::cmp_greater(threads, node->cpus.size())) {
    return {node->id,
            {},
            fmt::format("on NUMA node {}, beside the GPU; threads on all nodes, since it has {} "
                        "CPUs for {} threads",
                        node->id, node->cpus.size(), threads)};
  }
  return {node->id, node->cpus,
          fmt::format("on NUMA node {}, beside the GPU, as are its threads", node->id)};
}

struct OnNode::Before {
  Mask cpus;
  bool policy_set = false;
  int policy = MPOL_DEFAULT;
  Mask nodes;
};

OnNode::OnNode(const HostPlace& place) {
  if (place.node < 0 || numa_available() < 0) return;
  before_ = std::make_unique<Before>();
  before_->nodes.reset(numa_allocate_nodemask());
  const Mask wanted(numa_allocate_nodemask());
  numa_bitmask_setbit(wanted.get(), static_cast<unsigned>(place.node));
  // Containers often refuse both calls. Memory is then taken where its first touch runs. A policy
  // that the user has chosen (numactl) is kept.
  before_->policy_set = get_mempolicy(&before_->policy, before_->nodes->maskp,
                                      before_->nodes->size + 1, nullptr, 0) == 0 &&
                        (before_->policy == MPOL_DEFAULT || before_->policy == MPOL_LOCAL) &&
                        set_mempolicy(MPOL_PREFERRED, wanted->maskp, wanted->size + 1) == 0;
  if (place.cpus.empty()) return;
  Mask cpus(numa_allocate_cpumask());
  for (const int cpu : place.cpus) numa_bitmask_setbit(cpus.get(), static_cast<unsigned>(cpu));
  before_->cpus = own_cpus();
  if (numa_sched_setaffinity(0, cpus.get()) < 0) before_->cpus.reset();
}

OnNode::~OnNode() {
  if (!before_) return;
  if (before_->cpus) static_cast<void>(numa_sched_setaffinity(0, before_->cpus.get()));
  if (!before_->policy_set) return;
  static_cast<void>(set_mempolicy(before_->policy, nullptr, 0));
}

std::optional<double> share_on_node(std::span<const std::byte> memory, int node) {
  constexpr std::size_t most_samples = 512;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t pages = memory.size() / page;
  if (pages == 0 || numa_available() < 0) return {};
  const std::size_t samples = std::min(pages, most_samples);
  std::vector<void*> addresses;
  for (std::size_t i = 0; i < samples; ++i) {
    const std::size_t offset = i * pages / samples * page;
    addresses.push_back(const_cast<std::byte*>(memory.data() + offset));
  }
  std::vector<int> status(samples, -1);
  // Without target nodes nothing is moved: the call tells where pages are.
  if (numa_move_pages(0, samples, addresses.data(), nullptr, status.data(), 0) != 0) return {};
  std::size_t known = 0, there = 0;
  for (const int of_page : status) {
    known += of_page >= 0;
    there += of_page == node;
  }
  if (known == 0) return {};
  return static_cast<double>(there) / static_cast<double>(known);
}

}  // namespace spillway
