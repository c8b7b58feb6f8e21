// Where a prediction leaves what the machine file knows: more drives than its table has rows for, a
// queue depth or a shape of products outside of the rows, kernels that were not measured at their
// shape, collectives of sizes that were not measured.
//
// Between two rows of a table a value is interpolated, and nothing is said. Beyond the rows it is a
// guess (docs/machine-files.md says which), and so is a kernel's time told from another shape's.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "policies/cost/costs.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// "24 drives: ssd.by_count has rows for 1 to 12", of drives beyond their table.
std::string drives_beyond_rows(const Machine::Ssd& ssd);

class Extrapolation {
 public:
  // Keeps a reference to the problem.
  explicit Extrapolation(const Problem& problem) : problem_(problem) {}

  // Takes in a task of the schedule and what Costs::of() says of it. `groups`: of the schedule.
  void add(const Task& task, const TaskCost& cost, std::span<const RankGroup> groups) {
    works_ |= std::uint32_t{1} << static_cast<unsigned>(cost.work);
    if (cost.extrapolated) kinds_ |= std::uint64_t{1} << static_cast<unsigned>(task.kind);
    if (is_collective(task.kind)) add_collective(task, groups[task.group]);
  }

  // What the tasks so far need that the machine file does not know, each as "asked: known", for
  // people: "24 drives: ssd.by_count has rows for 1 to 12". Empty: everything they need is known.
  std::vector<std::string> texts() const;

 private:
  struct Collective {
    TaskKind kind = TaskKind::all_gather;
    int inside = 1, across = 1;  // GPUs of a node, nodes
    auto operator<=>(const Collective&) const = default;
  };
  struct Bytes {
    std::uint64_t least = 0, most = 0;
  };

  void add_collective(const Task& task, const RankGroup& group);
  bool uses(Work work) const {
    return (works_ >> static_cast<unsigned>(work) & std::uint32_t{1}) != 0;
  }
  void tell_drives(int set, std::vector<std::string>& texts) const;
  void tell_kernels(std::vector<std::string>& texts) const;
  void tell_shapes(std::vector<std::string>& texts) const;
  void tell_collectives(std::vector<std::string>& texts) const;

  const Problem& problem_;
  std::uint32_t works_ = 0;                  // bit: a Work
  std::uint64_t kinds_ = 0;                  // bit: a TaskKind some task of which was not measured
  std::map<Collective, Bytes> collectives_;  // of one call, where the machine has a table of them
};

}  // namespace spillway
