// The committed state of a training of several ranks, as one of them reads it: its own shard from
// its own store, and what else it keeps of the weights from the stores of the others. Where another
// number of ranks goes on, each reads what it needs from the stores of those there were.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "exec/store/state_owners.hpp"
#include "exec/store/state_reader.hpp"
#include "exec/store/training_store.hpp"

namespace spillway {

class ShardsAtRest {
 public:
  // `own`: reads what `point` has, the commit of this rank, or of the first where it is of other
  // ranks. The others' of the same version are opened to be read, and have to stay as they are.
  // `own` outlives it; one thread.
  ShardsAtRest(const ResumePoint& point, StateReader& own, const RingFactory& make_ring);

  // As StateReader::read().
  void read(std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to);

 private:
  struct Other {
    ResumePoint point;
    OpenStore open;
    std::unique_ptr<StateReader> reader;
  };
  int rank_ = 0, ranks_ = 1;
  StateReader& own_;
  std::vector<std::unique_ptr<Other>> others_;  // by rank; null: this one
  std::optional<StateOwners> owners_;
};

// find_resume_point() of one of several ranks, whose error names it.
ResumePoint find_resume_point_of_rank(const StoreLocation& location, int rank);

// What another number of ranks goes on from, where `first` is the newest commit of the first rank
// there was: the newest that all of those have. Throws InputError where a store is not of this run.
ResumePoint commit_for_other_ranks(ResumePoint first);

}  // namespace spillway
