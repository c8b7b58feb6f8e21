// What a training writes to its drives, before it starts and while it runs.
#pragma once

#include <cstdint>

#include "exec/run/training.hpp"
#include "experiments/plan/wear.hpp"
#include "experiments/train/train_plan.hpp"

namespace spillway {

// The state that it begins with, as far as it is written anew, and the commit of that. `in_place`:
// what it goes on from lies where it will be.
std::uint64_t written_at_start(const StoreBytes& store, bool durable, std::int64_t first,
                               bool in_place);

// Of what is still to be done. `steps`: of the whole training, those of runs before it included.
Wear wear_of(const Training& training, const TrainPlan& plan, std::int64_t steps);

// Counts what one run writes: the state it begins with, its steps, its commits. Of several ranks or
// stages it is one of them that counts, and takes the others' stores to be as large as Wear::stores
// says.
class WriteCount {
 public:
  explicit WriteCount(const Training& training);

  void add(const StepResult& step) { bytes_ += step.ssd_bytes_written; }
  // Bytes that commits have written since it was last asked.
  std::uint64_t by_commit();
  std::uint64_t all() const { return bytes_ + of_all(training_.bytes_written_by_commits()); }

 private:
  std::uint64_t of_all(std::uint64_t own) const {
    return static_cast<std::uint64_t>(stores_ * static_cast<double>(own));
  }
  const Training& training_;
  double stores_ = 1;
  std::uint64_t bytes_, by_commits_ = 0;
};

}  // namespace spillway
