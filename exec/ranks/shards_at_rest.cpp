#include "exec/ranks/shards_at_rest.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/errors.hpp"
#include "exec/ranks/rank_places.hpp"
#include "exec/run/training_record.hpp"
#include "exec/store/committed_state.hpp"

namespace spillway {

ShardsAtRest::ShardsAtRest(const ResumePoint& point, StateReader& own, const RingFactory& make_ring)
    : own_(own) {
  const TrainingRecord training = TrainingRecord::parse(point.record.identity.training);
  rank_ = training.rank;
  ranks_ = static_cast<int>(training.workload.ranks);
  // A stage of a pipeline has all that it needs.
  for (int rank = 0; ranks_ > 1 && rank < ranks_; ++rank) {
    if (rank == rank_) {
      others_.push_back(nullptr);
      continue;
    }
    auto other = std::make_unique<Other>();
    other->point = find_commit(place_beside(point.location, rank), point.record.version);
    SsdStoreOptions with;
    with.run = other->point.run;
    with.make_ring = make_ring;
    with.read_only = true;
    const StoreLocation& location = other->point.location;
    other->open = open_store(other->point.record, location.directories, location.generation, with);
    other->reader =
        std::make_unique<StateReader>(*other->open.store, other->point.record, *other->open.chunks);
    others_.push_back(std::move(other));
  }
  std::vector<std::vector<StateRange>> by_rank;
  for (const auto& other : others_)
    by_rank.push_back(
        ranges_of(other ? other->point.record.identity.parts : point.record.identity.parts));
  owners_.emplace(by_rank);
}

void ShardsAtRest::read(std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count,
                        float* to) {
  if (ranks_ == 1) return own_.read(unit, moment, first, count, to);
  owners_->for_each(unit, first, count, rank_,
                    [&](int rank, std::uint64_t from, std::uint64_t some) {
                      const auto& other = others_[static_cast<std::size_t>(rank)];
                      StateReader& reader = other ? *other->reader : own_;
                      reader.read(unit, moment, from, some, to + (from - first));
                    });
}

ResumePoint find_resume_point_of_rank(const StoreLocation& location, int rank) {
  try {
    return find_resume_point(location);
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("the store of rank {} is not there: ", rank) + error.message(),
        "a run of several ranks needs the stores of all of them: put back what was in " +
            location.directories[0].string());
  }
}

ResumePoint commit_for_other_ranks(ResumePoint first) {
  const TrainingRecord training = TrainingRecord::parse(first.record.identity.training);
  for (int rank = 1; rank < static_cast<int>(training.workload.processes()); ++rank) {
    const ResumePoint other = find_resume_point_of_rank(place_beside(first.location, rank), rank);
    const TrainingRecord its = TrainingRecord::parse(other.record.identity.training);
    if (its.rank == rank && other.run.id == first.run.id) continue;
    throw InputError(
        fmt::format("{} is not the store of rank {} of this run",
                    other.location.directories[0].string(), rank),
        "put back what was there, or name the directories of the run by " + Setting{"ssd"});
  }
  const RunIdentity run = first.run;
  const std::int64_t newest = first.record.version;
  ResumePoint point = commit_of_all_ranks(std::move(first));
  point.run = run;
  point.is_older = point.record.version != newest;
  point.of_other_ranks = true;
  return point;
}

}  // namespace spillway
