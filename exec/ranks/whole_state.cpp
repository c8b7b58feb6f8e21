#include "exec/ranks/whole_state.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/errors.hpp"
#include "policies/model/stages.hpp"
#include "policies/model/units.hpp"
#include "policies/movement/shards.hpp"

namespace spillway {

WholeState::WholeState(RankTeam& team, ModelAccess& states)
    : team_(team), states_(states), model_(whole_model(states.model())) {
  const ModelSpec& own = states.model();
  for (int stage = 0; is_stage(own) && stage < team.size(); ++stage)
    stages_.push_back(stage_of(model_, team.size(), stage, static_cast<int>(own.stage.chunks)));
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
  const auto elements = static_cast<std::uint64_t>(trained_elements(model_, request.unit));
  const std::uint64_t end = request.first + request.count;
  std::vector<std::uint64_t> parts;
  std::uint64_t mine = 0, at = 0;
  for (int rank = 0; rank < team_.size(); ++rank) {
    const ElementRange shard = shard_of({0, elements}, team_.size(), rank);
    const std::uint64_t from = std::clamp(shard.first, request.first, end),
                        until = std::clamp(shard.end(), request.first, end);
    if (rank == team_.rank()) mine = at;
    parts.push_back((until - from) * sizeof(float));
    at += parts.back();
  }
  SPILLWAY_ASSERT(at == request.count * sizeof(float));
  states_.read_own_master(request.unit, request.first, request.count, to);
  auto* const bytes = reinterpret_cast<std::byte*>(to);
  team_.control().all_gather(bytes + mine, bytes, parts);
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
