// What a Schedule holds; filled by Program::finish, private to policies/.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "policies/schedule/dependency_graph.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

struct Schedule::Data {
  Problem problem;
  std::string policy;
  int steps = 0;
  bool evaluates = false;
  std::array<std::uint64_t, tier_count> spare{};
  std::vector<Task> tasks;
  std::vector<Access> accesses;
  std::vector<BufferInfo> buffers;
  std::vector<HomePart> homes;
  std::vector<RankGroup> groups;
  RankGroup gradient_group;
  GradientMeshes gradient_meshes;
  std::vector<std::uint32_t> predecessor_counts;
  std::unique_ptr<DependencyGraph> graph;
  std::array<TierUse, tier_count> use;
  std::uint64_t first_ssd_extent = 0;  // MemoryUse::first_extent
  std::uint64_t tasks_emitted = 0;
  std::uint64_t operations = 0;
};

}  // namespace spillway
