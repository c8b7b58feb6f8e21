#include "exec/ranks/whole_state.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/errors.hpp"
#include "policies/model/stages.hpp"
#include "policies/model/units.hpp"

namespace spillway {

WholeState::WholeState(RankTeam& team, ModelAccess& states)
    : team_(team), states_(states), model_(whole_model(states.model())) {
  const ModelSpec& own = states.model();
  for (int stage = 0; is_stage(own) && stage < team.size(); ++stage)
    stages_.push_back(stage_of(model_, team.size(), stage, static_cast<int>(own.stage.chunks)));
  if (stages_.empty()) learn_owners();
}

// By all ranks at once.
void WholeState::learn_owners() {
  const std::vector<StateRange> own = states_.own_ranges();
  std::vector<std::vector<StateRange>> by_rank;
  for (const std::string& text : team_.gather(std::string(reinterpret_cast<const char*>(own.data()),
                                                          own.size() * sizeof(StateRange)))) {
    std::vector<StateRange>& ranges = by_rank.emplace_back(text.size() / sizeof(StateRange));
    std::memcpy(ranges.data(), text.data(), text.size());
  }
  owners_.emplace(by_rank);
}

// The stage that has a unit, or the first of two.
int WholeState::stage_with(std::int64_t unit) const {
  const auto found = std::find_if(stages_.begin(), stages_.end(), [&](const ModelSpec& stage) {
    return unit_here(stage, unit) >= 0;
  });
  SPILLWAY_ASSERT(found != stages_.end());
  return static_cast<int>(found - stages_.begin());
}

// Every rank's part of the request, to its place.
void WholeState::exchange(const Request& request, float* to) {
  if (!stages_.empty()) {
    std::vector<std::uint64_t> parts(stages_.size(), 0);
    const int from = stage_with(request.unit);
    parts[static_cast<std::size_t>(from)] = request.count * sizeof(float);
    if (from == team_.rank())
      states_.read_own_master(unit_here(states_.model(), request.unit), request.first,
                              request.count, to);
    auto* const bytes = reinterpret_cast<std::byte*>(to);
    return team_.control().all_gather(bytes, bytes, parts);
  }
  // Gathered rank by rank, then each piece goes to its place.
  std::vector<std::uint64_t> parts(static_cast<std::size_t>(team_.size()), 0);
  std::vector<float> own;
  const auto for_pieces = [&](const StateOwners::Take& take) {
    owners_->for_each(request.unit, request.first, request.count, 0, take);
  };
  for_pieces([&](int rank, std::uint64_t first, std::uint64_t count) {
    parts[static_cast<std::size_t>(rank)] += count * sizeof(float);
    if (rank != team_.rank()) return;
    own.resize(own.size() + count);
    states_.read_own_master(request.unit, first, count, own.data() + (own.size() - count));
  });
  std::vector<float> gathered(request.count);
  team_.control().all_gather(reinterpret_cast<const std::byte*>(own.data()),
                             reinterpret_cast<std::byte*>(gathered.data()), parts);
  std::vector<std::uint64_t> next(parts.size(), 0);
  for (std::size_t rank = 1; rank < parts.size(); ++rank)
    next[rank] = next[rank - 1] + parts[rank - 1] / sizeof(float);
  for_pieces([&](int rank, std::uint64_t first, std::uint64_t count) {
    std::uint64_t& from = next[static_cast<std::size_t>(rank)];
    std::copy_n(gathered.data() + from, count, to + (first - request.first));
    from += count;
  });
}

// The block of a unit that begins there.
const float* WholeState::block(std::int64_t unit, std::uint64_t first) {
  if (kept_.unit == unit && kept_.first == first) return kept_values_.data();
  const auto elements = static_cast<std::uint64_t>(trained_elements(model_, unit));
  const Request request{unit, first, std::min(block_elements, elements - first)};
  kept_.unit = -1;  // nothing is kept while the exchange may fail
  kept_values_.resize(request.count);
  team_.from_first({reinterpret_cast<const char*>(&request), sizeof(request)});
  exchange(request, kept_values_.data());
  kept_ = request;
  return kept_values_.data();
}

StateValues WholeState::values() {
  return
      [this](std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to) {
        SPILLWAY_ASSERT(moment == 0 && team_.leads());
        while (count > 0) {
          const std::uint64_t begin = first / block_elements * block_elements;
          const std::uint64_t some = std::min(count, begin + block_elements - first);
          std::copy_n(block(unit, begin) + (first - begin), some, to);
          first += some;
          to += some;
          count -= some;
        }
      };
}

void WholeState::end() {
  const Request request;
  team_.from_first({reinterpret_cast<const char*>(&request), sizeof(request)});
}

void WholeState::serve() {
  std::vector<float> values;
  while (true) {
    const std::string text = team_.from_first({});
    Request request;
    SPILLWAY_ASSERT(text.size() == sizeof(request));
    std::memcpy(&request, text.data(), sizeof(request));
    if (request.unit < 0) return;
    values.resize(request.count);
    exchange(request, values.data());
  }
}

}  // namespace spillway
