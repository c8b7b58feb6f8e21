#include "exec/ranks/whole_state.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/errors.hpp"
#include "policies/model/units.hpp"
#include "policies/movement/shards.hpp"

namespace spillway {

WholeState::WholeState(RankTeam& team, const ModelSpec& model, StateValues own)
    : team_(team), model_(model), own_(std::move(own)) {}

// Every rank's part of the request, to its place.
void WholeState::exchange(const Request& request, float* to) {
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
  own_(request.unit, 0, request.first, request.count, to);
  auto* const bytes = reinterpret_cast<std::byte*>(to);
  team_.control().all_gather(bytes + mine, bytes, parts);
}

StateValues WholeState::values() {
  return
      [this](std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to) {
        SPILLWAY_ASSERT(moment == 0 && team_.leads());
        const Request request{unit, first, count};
        team_.from_first({reinterpret_cast<const char*>(&request), sizeof(request)});
        exchange(request, to);
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
