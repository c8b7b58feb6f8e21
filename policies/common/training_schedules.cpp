#include "policies/common/training_schedules.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

// What more pauses leave over, or what has more lengths, is put together from runs of 1, 2, 4 ...
// steps.
constexpr int most_pauses = 100'000;
constexpr std::size_t most_lengths = 8;

}  // namespace

TrainingSchedules::TrainingSchedules(TrainingCourse course) : course_(std::move(course)) {
  // So that nothing overflows.
  for (Pauses* pauses : {&course_.evaluations, &course_.samples})
    pauses->every = std::min(pauses->every, course_.steps);
  const std::int64_t left = std::max<std::int64_t>(course_.steps - course_.first, 1);
  std::int64_t most = left;
  for (const Pauses& pauses : {course_.evaluations, course_.samples})
    if (pauses.on && pauses.every > 0) most = std::min(most, pauses.every);
  usual_ = std::make_unique<Schedule>(build_usual(most));
  build_shorter();
  build_evaluation();
}

Schedule TrainingSchedules::build(const std::string& policy, int steps) const {
  if (!course_.make_policy) return build_schedule(course_.problem, policy, steps);
  return build_schedule(course_.problem, *course_.make_policy(), steps);
}

// Of at most so many steps.
Schedule TrainingSchedules::build_usual(std::int64_t most) const {
  const int chosen = course_.steps_per_run;
  const int fewest = chosen > 0 ? chosen : fewest_steps_per_run;
  const int few = static_cast<int>(std::min<std::int64_t>(fewest, most));
  Schedule schedule = build(course_.policy, few);
  schedule.require_fit();
  if (chosen > 0) return schedule;
  const std::size_t per_step = schedule.tasks().size() / static_cast<std::size_t>(few) + 1;
  const auto more = static_cast<int>(std::min<std::int64_t>(
      {most_steps_per_run, most, static_cast<std::int64_t>(tasks_per_run / per_step)}));
  if (more <= few) return schedule;
  // The settled policy: what fits for a few steps is not settled anew.
  Schedule longer = build(schedule.policy(), more);
  return longer.fits() ? longer : schedule;
}

std::int64_t TrainingSchedules::next_pause(std::int64_t version) const {
  std::int64_t pause = course_.steps;
  for (const Pauses& pauses : {course_.evaluations, course_.samples}) {
    if (pauses.on && pauses.every > 0)
      pause = std::min(pause, (version / pauses.every + 1) * pauses.every);
  }
  return pause;
}

// Of what is left over before a pause and before the end.
void TrainingSchedules::build_shorter() {
  std::set<std::int64_t> lengths;
  std::int64_t version = course_.first;
  for (int pauses = 0; version < course_.steps && pauses < most_pauses; ++pauses) {
    const std::int64_t pause = next_pause(version);
    if (const std::int64_t rest = (pause - version) % usual_->steps(); rest > 0)
      lengths.insert(rest);
    version = pause;
  }
  if (lengths.size() > most_lengths || version < course_.steps) {
    lengths.clear();
    for (std::int64_t length = 1; length < usual_->steps(); length *= 2) lengths.insert(length);
  }
  for (const std::int64_t steps : lengths) {
    // The settled policy, so that the state rests where the usual schedule leaves it.
    shorter_[steps] = std::make_unique<Schedule>(build(usual_->policy(), static_cast<int>(steps)));
    shorter_[steps]->require_fit();
  }
}

void TrainingSchedules::build_evaluation() {
  if (!course_.evaluations.on) return;
  SPILLWAY_ASSERT(course_.evaluation_batches > 0, "an evaluation has a batch at least");
  const std::int64_t at_once =
      std::min<std::int64_t>(course_.evaluation_batches, fewest_steps_per_run);
  for (const std::int64_t batches : {at_once, course_.evaluation_batches % at_once}) {
    if (batches == 0) continue;
    const auto count = static_cast<int>(batches);
    evaluation_.push_back(std::make_unique<Schedule>(
        course_.make_policy ? spillway::build_evaluation(*usual_, *course_.make_policy(), count)
                            : spillway::build_evaluation(*usual_, count)));
    evaluation_.back()->require_fit();
  }
}

const Schedule& TrainingSchedules::next(std::int64_t version) const {
  const std::int64_t left = next_pause(version) - version;
  if (left >= usual_->steps()) return *usual_;
  const auto longer = shorter_.upper_bound(left);
  SPILLWAY_ASSERT(longer != shorter_.begin(), "there is a schedule for what is left");
  return *std::prev(longer)->second;
}

std::vector<const Schedule*> TrainingSchedules::all() const {
  std::vector<const Schedule*> all = {usual_.get()};
  for (const auto& [steps, schedule] : shorter_) all.push_back(schedule.get());
  for (const auto& schedule : evaluation_) all.push_back(schedule.get());
  return all;
}

std::uint64_t TrainingSchedules::peak(Tier tier) const {
  std::uint64_t bytes = 0;
  for (const Schedule* schedule : all()) bytes = std::max(bytes, schedule->use(tier).peak_bytes);
  return bytes;
}

}  // namespace spillway
