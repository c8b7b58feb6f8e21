#include "exec/store/committed_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "exec/io/io_transfer.hpp"
#include "exec/ranks/rank_places.hpp"
#include "policies/model/stages.hpp"

namespace spillway {

CommittedState::CommittedState(ResumePoint point, const RingFactory& make_ring, bool by_step)
    : by_step_(by_step) {
  training_ = TrainingRecord::parse(point.record.identity.training);
  const StoreLocation first = point.location;
  const std::int64_t version = point.record.version;
  parts_.push_back({std::move(point), {}});
  for (int rank = 1; rank < static_cast<int>(training_.workload.processes()); ++rank)
    parts_.push_back({find_commit(place_of_rank(first, rank), version), {}});
  for (Part& part : parts_) {
    SsdStoreOptions with;
    with.run = part.point.run;
    with.make_ring = make_ring;
    with.read_only = true;
    const StoreLocation& location = part.point.location;
    part.open = open_store(part.point.record, location.directories, location.generation, with);
  }
  std::vector<std::vector<StateRange>> by_rank;
  for (const Part& part : parts_) by_rank.push_back(ranges_of(part.point.record.identity.parts));
  owners_.emplace(by_rank);
}

CommittedState::Readers CommittedState::readers() const {
  Readers readers;
  for (const Part& part : parts_)
    readers.push_back(
        std::make_unique<StateReader>(*part.open.store, part.point.record, *part.open.chunks));
  return readers;
}

void CommittedState::read(const Readers& readers, std::int64_t unit, std::uint64_t first,
                          std::uint64_t count, float* to) const {
  if (training_.workload.pipeline > 1) {
    for (std::size_t stage = 0; stage < parts_.size(); ++stage) {
      TrainingRecord of = training_;
      of.rank = static_cast<int>(stage);
      const std::int64_t there = unit_here(of.own_model(), unit);
      if (there >= 0) return read(parts_[stage], *readers[stage], there, first, count, to);
    }
    SPILLWAY_ASSERT(false, "a unit is in a stage");
  }
  owners_->for_each(unit, first, count, 0, [&](int rank, std::uint64_t from, std::uint64_t some) {
    const auto at = static_cast<std::size_t>(rank);
    read(parts_[at], *readers[at], unit, from, some, to + (from - first));
  });
}

void CommittedState::read(const Part& part, StateReader& reader, std::int64_t unit,
                          std::uint64_t first, std::uint64_t count, float* to) const {
  try {
    reader.read(unit, 0, first, count, to);
  } catch (const ChecksumError&) {
    if (!by_step_) throw;
    const std::int64_t newest = find_resume_point(part.point.location).record.version;
    if (newest == step()) throw;
    throw InputError(
        Setting{"step", std::to_string(step())} +
            Message(fmt::format(": a later step has begun to overwrite the state of step {}; the "
                                "store holds the state of step {}",
                                step(), newest)),
        fmt::format("leave it out for step {}", newest));
  }
}

WeightValues CommittedState::weights() const {
  const auto all = std::make_shared<const Readers>(readers());
  return [this, all](std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
    read(*all, unit, first, count, to);
  };
}

StateValues CommittedState::values() const {
  return
      [this](std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to) {
        SPILLWAY_ASSERT(parts_.front().open.store && moment == 0);
        read(readers(), unit, first, count, to);
      };
}

void CommittedState::close() {
  for (Part& part : parts_) part.open = {};
}

ResumePoint commit_of_all_ranks(ResumePoint first) {
  const TrainingRecord training = TrainingRecord::parse(first.record.identity.training);
  std::int64_t version = first.record.version;
  for (int rank = 1; rank < static_cast<int>(training.workload.processes()); ++rank)
    version =
        std::min(version, find_resume_point(place_of_rank(first.location, rank)).record.version);
  if (version == first.record.version) return first;
  return find_commit(first.location, version);
}

}  // namespace spillway
