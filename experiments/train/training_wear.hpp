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

// Counts what one run writes: the state it begins with, its steps, its commits.
class WriteCount {
 public:
  explicit WriteCount(const Training& training);

  void add(const StepResult& step) { bytes_ += step.ssd_bytes_written; }
  // Bytes that commits have written since it was last asked.
  std::uint64_t by_commit();
  std::uint64_t all() const { return bytes_ + training_.bytes_written_by_commits(); }

 private:
  const Training& training_;
  std::uint64_t bytes_, by_commits_ = 0;
};

}  // namespace spillway
