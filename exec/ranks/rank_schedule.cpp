#include "exec/ranks/rank_schedule.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/errors.hpp"

namespace spillway {

std::uint64_t hash_of_collectives(const Schedule& schedule) {
  std::string text;
  for (const Lane lane : {Lane::ranks_gather, Lane::ranks_reduce, Lane::ranks_spread}) {
    text += to_string(lane);
    for (const Task& task : schedule.tasks()) {
      if (task.lane != lane || !is_collective(task.kind)) continue;
      text += fmt::format(" {} {} {} {};", to_string(task.kind), task.layer, task.bytes,
                          task.first_micro_batch ? "new" : "");
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

void require_runnable_by_ranks(const Schedule& schedule) {
  const Workload& workload = schedule.problem().workload;
  if (workload.pipeline > 1) return;
  std::vector<int> all(static_cast<std::size_t>(workload.ranks));
  std::iota(all.begin(), all.end(), 0);
  for (const RankGroup& group : schedule.groups()) {
    if (members_of(group, schedule.problem().ranks(), 0) == all) continue;
    throw InputError(
        fmt::format("policy {} has collectives of {} of the {} ranks, or in another order than "
                    "theirs: only those of all ranks are really run",
                    schedule.policy(), group.size(), workload.ranks),
        "leave the policy's meshes of shards out");
  }
  for (const Task& task : schedule.tasks()) {
    if (task.kind != TaskKind::reduce_scatter || task.micro_batch < 0 ||
        workload.micro_batches() == 1)
      continue;
    throw InputError(
        fmt::format("policy {} adds gradients up over the ranks after every micro-batch: only sums "
                    "that a rank has completed are really added up",
                    schedule.policy()),
        "leave the policy's mesh of gradients out, or use one micro-batch a rank");
  }
}

}  // namespace spillway
