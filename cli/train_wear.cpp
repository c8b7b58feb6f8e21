#include "cli/train_wear.hpp"

namespace spillway::cli {

Wear wear_of(const Training& training, const TrainPlan& plan, std::int64_t steps) {
  const std::int64_t interval = training.commit_interval();
  const Durability durability{interval > 0 ? DurabilityMode::on : DurabilityMode::off, interval};
  Wear wear = spillway::wear_of(training.schedule(), nullptr, {durability, steps});
  wear.store = training.store_bytes();
  wear.step_seconds = plan.predicted_step_seconds;
  return wear;
}

WriteCount::WriteCount(const Training& training) : training_(training) {
  const StoreBytes& store = training.store_bytes();
  bytes_ = store.first_fill;
  if (training.commit_interval() == 0) return;
  if (training.first_step() == 0 || training.previous_store()) {
    bytes_ += store.records / 2;  // the commit of what it begins with
    if (training.first_step() > 0) bytes_ += store.captured();
  } else {
    bytes_ -= store.second_copies;  // as large as what it found in its place
  }
}

std::uint64_t WriteCount::by_commit() {
  const std::uint64_t before = by_commits_;
  by_commits_ = training_.bytes_written_by_commits();
  return by_commits_ - before;
}

}  // namespace spillway::cli
