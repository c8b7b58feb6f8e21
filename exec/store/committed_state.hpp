// What a training has committed, read from its store in place, master weights alone: the newest
// commit, or the one before. The training may be at work: who reads the newest commit holds the
// run's lock meanwhile (exec/run/export_lock.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "exec/data/model_writer.hpp"
#include "exec/io/io_choice.hpp"
#include "exec/run/training_record.hpp"
#include "exec/store/state_owners.hpp"
#include "exec/store/state_reader.hpp"
#include "exec/store/training_store.hpp"

namespace spillway {

class CommittedState {
 public:
  // `by_step`: it was asked for by its number, and is to be called by it where it has been
  // overwritten. Throws InputError, MachineError where the files of the store are not what the
  // commit speaks of.
  CommittedState(ResumePoint point, const RingFactory& make_ring, bool by_step);

  std::int64_t step() const { return parts_.front().point.record.version; }
  const TrainingRecord& training() const { return training_; }
  const ModelSpec& model() const { return training_.model; }

  // The master weights of what is trained, by one reader: for one thread, that of this call.
  WeightValues weights() const;
  // The same, by a reader for each call: from any thread.
  StateValues values() const;
  // Closes the files of the store. Nothing is read from here on.
  void close();

 private:
  // One store; of several ranks one each, in their order, with their shards of every unit.
  struct Part {
    ResumePoint point;
    OpenStore open;
  };
  using Readers = std::vector<std::unique_ptr<StateReader>>;
  Readers readers() const;
  void read(const Readers& readers, std::int64_t unit, std::uint64_t first, std::uint64_t count,
            float* to) const;
  void read(const Part& part, StateReader& reader, std::int64_t unit, std::uint64_t first,
            std::uint64_t count, float* to) const;

  bool by_step_;
  TrainingRecord training_;
  std::vector<Part> parts_;
  std::optional<StateOwners> owners_;
};

// The newest commit that the stores of all ranks have, of which `first` is rank 0's newest; of one
// rank, that.
ResumePoint commit_of_all_ranks(ResumePoint first);

}  // namespace spillway
