#include "experiments/calibrate/rank_link.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <vector>

namespace spillway {

namespace {

constexpr std::size_t large = std::size_t{8} << 20, small = 4096;
constexpr std::size_t large_of_gpus = std::size_t{64} << 20;
constexpr int rounds_of_large = 5, rounds_of_small = 50;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double processor_seconds_of_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Seconds of a call, of which all begin together; `busy`, unless null: those of this thread's
// processor.
template <class Call>
double seconds_of(RankTeam& team, int rounds, const Call& call, double* busy = nullptr) {
  std::vector<double> seconds, of_processor;
  for (int round = 0; round <= rounds; ++round) {
    team.barrier();
    const double busy_before = processor_seconds_of_thread();
    const auto begin = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (round == 0) continue;
    seconds.push_back(took.count());
    of_processor.push_back(processor_seconds_of_thread() - busy_before);
  }
  if (busy != nullptr) *busy = median(std::move(of_processor));
  return median(std::move(seconds));
}

std::vector<std::uint64_t> parts_of(std::size_t bytes, std::size_t ranks) {
  constexpr std::size_t aligned = 64;
  std::vector<std::uint64_t> parts(ranks, bytes / ranks / aligned * aligned);
  parts.back() += bytes - parts.front() * ranks;
  return parts;
}

// What the slowest rank has found, of each.
std::vector<double> slowest(RankTeam& team, std::vector<double> found) {
  const std::vector<double> all = team.gather(found);
  for (std::size_t k = 0; k < found.size(); ++k) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(team.size()); ++rank)
      found[k] = std::max(found[k], all[rank * found.size() + k]);
  }
  return found;
}

// Of collectives of `large` bytes in all and of small ones, from `own` to `whole`, which are as
// large each.
RankLink measure_collectives_of(RankTeam& team, OrderedSums& sums, std::byte* own, std::byte* whole,
                                std::size_t large_bytes) {
  const auto ranks = static_cast<std::size_t>(team.size());
  const auto large_parts = parts_of(large_bytes, ranks), small_parts = parts_of(small, ranks);
  double gather_busy = 0, reduce_busy = 0;
  const double gather = seconds_of(
      team, rounds_of_large, [&] { sums.all_gather(own, whole, large_parts); }, &gather_busy);
  const double reduce = seconds_of(
      team, rounds_of_large,
      [&] { sums.reduce_scatter(whole, own, large_parts, sizeof(float), false); }, &reduce_busy);
  const double short_one =
      seconds_of(team, rounds_of_small, [&] { sums.all_gather(own, whole, small_parts); });
  // A ring moves this much of the whole past each rank, in as many steps as there are others.
  const double others = static_cast<double>(ranks - 1);
  const double moved = static_cast<double>(large_bytes) * others / static_cast<double>(ranks);
  const std::vector<double> found =
      slowest(team, {gather, reduce, short_one, (gather_busy + reduce_busy) / (gather + reduce)});
  RankLink link;
  link.latency_ns = std::llround(found[2] / others * 1e9);
  const double without = std::max((found[0] + found[1]) / 2 - found[2], 1e-9);
  link.bandwidth = moved / without;
  link.cores = std::clamp(found[3], 0.01, 1.0);
  return link;
}

// Of messages from each stage to the next, pair by pair.
RankLink measure_messages(RankTeam& team, RankGpus& gpus, std::byte* memory) {
  const int stages = team.size();
  std::vector<double> found = {0, 0};
  for (int from = 0; from + 1 < stages; ++from) {
    const auto seconds = [&](std::uint64_t bytes, int rounds) {
      return seconds_of(team, rounds, [&] {
        if (team.rank() == from) gpus.send(Lane::stage_out, from + 1, memory, bytes);
        if (team.rank() == from + 1) gpus.receive(Lane::stage_in, from, memory, bytes);
      });
    };
    found[0] = std::max(found[0], seconds(large_of_gpus, rounds_of_large));
    found[1] = std::max(found[1], seconds(small, rounds_of_small));
  }
  found = slowest(team, found);
  RankLink link;
  link.latency_ns = std::llround(found[1] * 1e9);
  link.bandwidth = static_cast<double>(large_of_gpus) / std::max(found[0] - found[1], 1e-9);
  return link;
}

}  // namespace

RankLink measure_link(RankTeam& team) {
  // Of sums of ones nothing is left but numbers.
  std::vector<float> whole(large / sizeof(float), 1.0f), part(whole.size(), 1.0f);
  return measure_collectives_of(team, team.control(), reinterpret_cast<std::byte*>(part.data()),
                                reinterpret_cast<std::byte*>(whole.data()), large);
}

RankLink measure_link(RankTeam& team, RankGpus& gpus) {
  const std::shared_ptr<std::byte> memory = gpus.memory(2 * large_of_gpus);
  if (gpus.in_stages()) return measure_messages(team, gpus, memory.get());
  RankLink link = measure_collectives_of(team, *gpus.on(Lane::ranks_reduce), memory.get(),
                                         memory.get() + large_of_gpus, large_of_gpus);
  link.cores = 0;
  return link;
}

std::vector<Machine::Cluster::Collective> measure_collectives(RankTeam& team) {
  constexpr std::size_t least = std::size_t{64} << 10, most = std::size_t{32} << 20;
  const auto ranks = static_cast<std::size_t>(team.size());
  std::vector<float> whole(most / sizeof(float)), part(whole.size());
  auto* const bytes = reinterpret_cast<std::byte*>(whole.data());
  auto* const own = reinterpret_cast<std::byte*>(part.data());
  OrderedSums& sums = team.control();
  std::vector<Machine::Cluster::Collective> rows;
  std::vector<double> seconds;
  for (std::size_t size = least; size <= most; size *= 8) {
    const std::vector<std::uint64_t> parts = parts_of(size, ranks);
    const int rounds = size > large ? rounds_of_large : rounds_of_small;
    seconds.push_back(seconds_of(team, rounds, [&] { sums.all_gather(own, bytes, parts); }));
    std::fill(whole.begin(), whole.end(),
              1.0f);  // of sums of sums nothing is to be left but numbers
    seconds.push_back(seconds_of(
        team, rounds, [&] { sums.reduce_scatter(bytes, own, parts, sizeof(float), false); }));
    for (const char* kind : {"all_gather", "reduce_scatter"})
      rows.push_back({kind, team.size(), 1, size, 0});
  }
  seconds = slowest(team, std::move(seconds));
  const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i].bandwidth = static_cast<double>(rows[i].bytes) * share / seconds[i];
  return rows;
}

}  // namespace spillway
