#include "experiments/train/training_wear.hpp"

namespace spillway {

namespace {

// The state that it begins with, as far as it is written anew, and the commit of that.
std::uint64_t written_at_start(const Training& training) {
  const StoreBytes& store = training.store_bytes();
  if (training.commit_interval() == 0) return store.first_fill;
  if (training.first_step() > 0 && !training.previous_store())
    return store.first_fill - store.second_copies;  // as large as what it found in its place
  return store.first_fill + store.records / 2 + (training.first_step() > 0 ? store.captured() : 0);
}

}  // namespace

Wear wear_of(const Training& training, const TrainPlan& plan, std::int64_t steps) {
  const std::int64_t interval = training.commit_interval();
  const Durability durability{interval > 0 ? DurabilityMode::on : DurabilityMode::off, interval};
  Wear wear =
      spillway::wear_of(training.schedule(), nullptr, {durability, steps - training.first_step()});
  wear.store = training.store_bytes();
  wear.start_bytes = static_cast<double>(written_at_start(training));
  wear.first_step = training.first_step();
  if (interval > 0) wear.also_every = training.also_commit_every();
  wear.commits = commits_in(wear.first_step, *wear.steps, interval, wear.also_every);
  wear.step_seconds = plan.predicted_step_seconds;
  return wear;
}

WriteCount::WriteCount(const Training& training)
    : training_(training), bytes_(written_at_start(training)) {}

std::uint64_t WriteCount::by_commit() {
  const std::uint64_t before = by_commits_;
  by_commits_ = training_.bytes_written_by_commits();
  return by_commits_ - before;
}

}  // namespace spillway
