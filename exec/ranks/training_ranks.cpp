// A training as one of several ranks: what all of them agree on before it starts, and what they
// have together at its end.
#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "exec/ranks/rank_schedule.hpp"
#include "exec/ranks/rank_team.hpp"
#include "exec/ranks/whole_state.hpp"
#include "exec/run/training.hpp"
#include "exec/run/training_start.hpp"
#include "policies/model/stages.hpp"

namespace spillway {

namespace {

// What one stage sends another one receives.
void require_same_messages(RankTeam& team, const Schedule& schedule) {
  if (schedule.problem().workload.pipeline == 1) return;
  const auto stages = static_cast<std::size_t>(team.size());
  std::string own;
  for (const std::uint64_t hash : hashes_of_messages(schedule)) own += fmt::format("{:016x}", hash);
  const std::vector<std::string> all = team.gather(own);
  const auto hash = [&](std::size_t of, std::size_t at) { return all[of].substr(16 * at, 16); };
  for (std::size_t from = 0; from < stages; ++from) {
    for (std::size_t to = 0; to < stages; ++to)
      SPILLWAY_ASSERT(hash(from, to) == hash(to, stages + from),
                      "stages agree on the messages between them");
  }
}

}  // namespace

// Whatever decides the numbers, the order of collectives, or which steps are committed, is the same
// on all ranks.
void Training::agree(const TrainingStart& start) {
  RankTeam& team = *options_.team;
  SPILLWAY_ASSERT(options_.problem.rank == team.rank() &&
                  options_.problem.workload.processes() == team.size());
  TrainingRecord record = start.record;
  record.rank = 0;
  record.data.clear();  // where it is may differ
  record.initial_folder.clear();
  const auto words = [](const auto& json) {
    std::string text = json;  // a line for each key, so that the one that differs is shown
    std::replace(text.begin(), text.end(), ',', '\n');
    return text;
  };
  team.require_equal("the program", SPILLWAY_VERSION);
  team.require_equal("settings and data", words(record.to_json()));
  std::string course = fmt::format(
      "first step {}\nsteps {}\ncommits every {}\ncommits also every {}\ndurability {}\n",
      start.first, options_.steps, start.commit_interval, options_.also_commit_every,
      options_.durability.on() ? "on" : "off");
  for (const Schedule* schedule : start.schedules->all())
    course += fmt::format("schedule of {} steps, collectives {:016x}\n", schedule->steps(),
                          hash_of_collectives(*schedule));
  team.require_equal("the course of the training", course);
  for (const Schedule* schedule : start.schedules->all()) require_same_messages(team, *schedule);
}

// What is trained of the whole model, where it is: for who leads. Other ranks say what they have.
void Training::for_trained(const std::function<void(const StateValues&)>& take) {
  ModelAccess states = access();
  if (!options_.team)
    return take([&states](std::int64_t unit, int, std::uint64_t first, std::uint64_t count,
                          float* to) { states.read_master(unit, first, count, to); });
  WholeState whole(*options_.team, states);
  if (!options_.team->leads()) return whole.serve();
  take(whole.values());
  whole.end();
}

// The whole model's, known to all ranks.
std::uint64_t Training::weights_hash() {
  std::uint64_t hash = 0;
  for_trained([&](const StateValues& trained) {
    hash = hash_of_weights(whole_model(options_.problem.model), trained);
  });
  return options_.team ? std::stoull(options_.team->from_first(std::to_string(hash))) : hash;
}

void Training::help_export() {
  keep_store(true);
  for_trained({});
  keep_store(version_ < options_.steps || options_.keep_store);
}

}  // namespace spillway
