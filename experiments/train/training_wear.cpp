#include "experiments/train/training_wear.hpp"

namespace spillway {

std::uint64_t written_at_start(const StoreBytes& store, bool durable, std::int64_t first,
                               bool in_place) {
  if (!durable) return store.first_fill;
  if (first > 0 && in_place)
    return store.first_fill - store.second_copies;  // as large as what it found in its place
  return store.first_fill + store.records / 2 + (first > 0 ? store.captured() : 0);
}

namespace {

std::uint64_t written_at_start(const Training& training) {
  return spillway::written_at_start(training.store_bytes(), training.commit_interval() > 0,
                                    training.first_step(), !training.previous_store());
}

}  // namespace

Wear wear_of(const Training& training, const TrainPlan& plan, std::int64_t steps) {
  const std::int64_t interval = training.commit_interval();
  const Durability durability{interval > 0 ? DurabilityMode::on : DurabilityMode::off, interval};
  Wear wear =
      spillway::wear_of(training.schedule(), nullptr, {durability, steps - training.first_step()});
  wear.store = training.store_bytes();
  wear.start_bytes = wear.stores * static_cast<double>(written_at_start(training));
  wear.first_step = training.first_step();
  if (interval > 0) wear.also_every = training.also_commit_every();
  wear.commits = commits_in(wear.first_step, *wear.steps, interval, wear.also_every);
  wear.step_seconds = plan.predicted_step_seconds;
  return wear;
}

WriteCount::WriteCount(const Training& training)
    : training_(training),
      stores_(spillway::wear_of(training.schedule(), nullptr, WholeRun{}).stores),
      bytes_(of_all(written_at_start(training))) {}

std::uint64_t WriteCount::by_commit() {
  const std::uint64_t before = by_commits_;
  by_commits_ = of_all(training_.bytes_written_by_commits());
  return by_commits_ - before;
}

}  // namespace spillway
