#include "exec/ranks/rank_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "exec/ranks/rank_team.hpp"
#include "policies/schedule/messages.hpp"

namespace spillway {

namespace {

// Of a link of collectives, for what arrives to be added up.
constexpr std::uint64_t bytes_of_pieces = std::uint64_t{32} << 20, grain = 4096;

}  // namespace

RankGpus::RankGpus(RankTeam& team, std::unique_ptr<GpuLinks> gpu, bool in_stages)
    : team_(team), gpu_(std::move(gpu)) {
  team_.require_equal("what their GPUs reach each other by", library());
  if (in_stages)
    join_ways(ways_of(team_.size()));
  else
    join_collectives();
}

void RankGpus::join_collectives() {
  const auto pieces = static_cast<std::uint64_t>(team_.size());
  for (const Lane lane : {Lane::ranks_gather, Lane::ranks_reduce, Lane::ranks_spread}) {
    OfCollectives& one = collectives_[lane];
    GpuLinks::Link link;
    link.id = team_.from_first(team_.leads() ? gpu_->new_id() : "");
    link.own = team_.rank();
    link.count = team_.size();
    link.piece_bytes = bytes_of_pieces / pieces / grain * grain;
    link.waiting = [this] { team_.look_while_waiting(); };
    one.carrier = gpu_->join(link);
    one.sums = std::make_unique<OrderedSums>(*one.carrier);
    team_.barrier();
  }
}

// All that any policy and model may need: activations go to the next stage and their gradients
// back; the last stage is before the first where stages have several runs of layers; and the sums
// of an embedding that the first and the last have go between these
// (policies/movement/gradients.cpp).
std::vector<RankGpus::Way> RankGpus::ways_of(int stages) {
  const int last = stages - 1;
  std::vector<Way> ways;
  const auto add = [&](Lane out, int from, int to) {
    const bool there = std::any_of(ways.begin(), ways.end(), [&](const Way& one) {
      return one.out == out && one.from == from && one.to == to;
    });
    if (!there) ways.push_back({out, from, to});
  };
  for (int stage = 0; stage < stages; ++stage) {
    add(Lane::stage_out, stage, (stage + 1) % stages);
    add(Lane::stage_gradient_out, (stage + 1) % stages, stage);
  }
  add(Lane::stage_out, 0, last);
  add(Lane::stage_gradient_out, last, 0);
  return ways;
}

void RankGpus::join_ways(const std::vector<Way>& ways) {
  for (const Way& way : ways) {
    // All ranks go through the same list, so that no two wait for each other in another order.
    const std::vector<std::string> ids =
        team_.gather(team_.rank() == way.from ? gpu_->new_id() : std::string());
    if (team_.rank() == way.from || team_.rank() == way.to) {
      const bool sends = team_.rank() == way.from;
      const Lane lane = sends ? way.out : other_end(way.out);
      GpuLinks::Link link;
      link.id = ids[static_cast<std::size_t>(way.from)];
      link.own = sends ? 0 : 1;
      link.count = 2;
      link.one_way = true;
      link.waiting = [this] { team_.look_while_waiting(); };
      ways_[{lane, sends ? way.to : way.from}] = gpu_->join(link);
    }
    team_.barrier();
  }
}

bool RankGpus::meet(Lane lane, const std::vector<int>& members, bool for_result) {
  const std::byte own{for_result};
  std::vector<std::byte> all(members.size());
  team_.on(lane).all_to_all(std::span(&own, 1), all, members);
  return std::find(all.begin(), all.end(), std::byte{0}) == all.end();
}

bool RankGpus::meet(Lane lane, int other, bool for_result) {
  std::byte own{for_result}, theirs{0};
  if (is_out(lane)) {
    team_.send(lane, other, std::span(&own, 1));
    team_.receive_answer(lane, other, std::span(&theirs, 1));
  } else {
    team_.receive(lane, other, std::span(&theirs, 1));
    team_.answer(lane, other, std::span(&own, 1));
  }
  return for_result && theirs == std::byte{1};
}

OrderedSums* RankGpus::on(Lane lane) {
  const auto found = collectives_.find(lane);
  return found == collectives_.end() ? nullptr : found->second.sums.get();
}

Carrier& RankGpus::link(Lane lane, int other) {
  const auto found = ways_.find({lane, other});
  SPILLWAY_ASSERT(found != ways_.end(), fmt::format("{} {}", to_string(lane), other));
  return *found->second;
}

void RankGpus::send(Lane lane, int to, const std::byte* message, std::uint64_t bytes) {
  Carrier& carrier = link(lane, to);
  const Carrier::Outgoing one{1, message, bytes};
  carrier.exchange(std::span(&one, 1), {});
  carrier.finish();
}

void RankGpus::receive(Lane lane, int from, std::byte* message, std::uint64_t bytes) {
  Carrier& carrier = link(lane, from);
  const Carrier::Incoming one{0, message, bytes};
  carrier.exchange({}, std::span(&one, 1));
  carrier.finish();
}

}  // namespace spillway
