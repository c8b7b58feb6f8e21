#include "exec/store/committed_state.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/errors.hpp"
#include "exec/io/io_transfer.hpp"

namespace spillway {

CommittedState::CommittedState(ResumePoint point, const RingFactory& make_ring, bool by_step)
    : point_(std::move(point)), by_step_(by_step) {
  const CommitRecord& record = point_.record;
  SsdStoreOptions with;
  with.run = point_.run;
  with.make_ring = make_ring;
  with.read_only = true;
  open_ = open_store(record, point_.location.directories, point_.location.generation, with);
  training_ = TrainingRecord::parse(record.identity.training);
}

void CommittedState::read(StateReader& reader, std::int64_t unit, std::uint64_t first,
                          std::uint64_t count, float* to) const {
  try {
    reader.read(unit, 0, first, count, to);
  } catch (const ChecksumError&) {
    if (!by_step_) throw;
    const std::int64_t newest = find_resume_point(point_.location).record.version;
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
  const auto reader = std::make_shared<StateReader>(*open_.store, point_.record, *open_.chunks);
  return [this, reader](std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
    read(*reader, unit, first, count, to);
  };
}

StateValues CommittedState::values() const {
  return
      [this](std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to) {
        SPILLWAY_ASSERT(open_.store && moment == 0);
        StateReader reader(*open_.store, point_.record, *open_.chunks);
        read(reader, unit, first, count, to);
      };
}

void CommittedState::close() { open_ = {}; }

}  // namespace spillway
