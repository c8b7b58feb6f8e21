#include "exec/ranks/rank_schedule.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <string>
#include <vector>

namespace spillway {

std::uint64_t hash_of_collectives(const Schedule& schedule) {
  std::string text;
  for (const RankGroup& group : schedule.groups())
    text += fmt::format("{} {} {} {};", to_string(group.mesh), group.inside_stride,
                        group.across_stride, to_string(group.inner));
  for (const Lane lane : {Lane::ranks_gather, Lane::ranks_reduce, Lane::ranks_spread}) {
    text += to_string(lane);
    for (const Task& task : schedule.tasks()) {
      if (task.lane != lane || !is_collective(task.kind)) continue;
      // The parts of some of the ranks may be larger than those of others.
      const bool of_all = schedule.groups()[task.group].size() == schedule.problem().workload.ranks;
      text += fmt::format(" {} {} {} {} {};", to_string(task.kind), task.group, task.layer,
                          of_all ? task.bytes : 0, task.first_micro_batch ? "new" : "");
      if (task.kind == TaskKind::broadcast) text += fmt::format("from {};", task.saves);
    }
  }
  return XXH3_64bits(text.data(), text.size());
}

std::vector<std::uint64_t> hashes_of_messages(const Schedule& schedule) {
  const auto stages = static_cast<std::size_t>(schedule.problem().workload.pipeline);
  std::vector<std::string> texts(2 * stages);
  for (const bool ups : {true, false}) {
    for (const Task& task : schedule.tasks()) {
      if (!is_message(task.kind)) continue;
      const bool is_up = task.lane == Lane::stage_in || task.lane == Lane::stage_out;
      if (is_up != ups) continue;
      const std::size_t at = task.group + (task.kind == TaskKind::receive ? stages : 0);
      texts[at] += fmt::format("{} {} {};", is_up ? "up" : "down", task.micro_batch, task.bytes);
    }
  }
  std::vector<std::uint64_t> hashes;
  for (const std::string& text : texts) hashes.push_back(XXH3_64bits(text.data(), text.size()));
  return hashes;
}

}  // namespace spillway
