#include "experiments/train/rank_link.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

namespace spillway {

namespace {

constexpr std::size_t large = std::size_t{8} << 20, small = 4096;
constexpr int rounds_of_large = 5, rounds_of_small = 50;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Seconds of a call, of which all begin together.
template <class Call>
double seconds_of(RankTeam& team, int rounds, const Call& call) {
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    team.barrier();
    const auto begin = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (round > 0) seconds.push_back(took.count());
  }
  return median(std::move(seconds));
}

}  // namespace

RankLink measure_link(RankTeam& team) {
  const auto ranks = static_cast<std::size_t>(team.size());
  std::vector<float> whole(large / sizeof(float), 1.0f), part(whole.size());
  auto* const bytes = reinterpret_cast<std::byte*>(whole.data());
  auto* const own = reinterpret_cast<std::byte*>(part.data());
  OrderedSums& sums = team.control();
  const auto parts_of = [&](std::size_t all) {
    std::vector<std::uint64_t> parts(ranks, all / ranks / 64 * 64);
    parts.back() += all - parts.front() * ranks;
    return parts;
  };
  const auto large_parts = parts_of(large), small_parts = parts_of(small);
  const double gather =
      seconds_of(team, rounds_of_large, [&] { sums.all_gather(own, bytes, large_parts); });
  std::fill(whole.begin(), whole.end(), 1.0f);
  const double reduce = seconds_of(team, rounds_of_large, [&] {
    sums.reduce_scatter(bytes, own, large_parts, sizeof(float), false);
  });
  const double short_one =
      seconds_of(team, rounds_of_small, [&] { sums.all_gather(own, bytes, small_parts); });
  // A ring moves this much of the whole past each rank, in as many steps as there are others.
  const double others = static_cast<double>(ranks - 1);
  const double moved = static_cast<double>(large) * others / static_cast<double>(ranks);
  std::vector<double> found = {gather, reduce, short_one};
  const std::vector<double> all = team.gather(found);
  for (std::size_t k = 0; k < found.size(); ++k) {
    for (std::size_t rank = 0; rank < ranks; ++rank)
      found[k] = std::max(found[k], all[rank * found.size() + k]);
  }
  RankLink link;
  link.latency_ns = std::llround(found[2] / others * 1e9);
  const double without = std::max((found[0] + found[1]) / 2 - found[2], 1e-9);
  link.bandwidth = moved / without;
  return link;
}

}  // namespace spillway
