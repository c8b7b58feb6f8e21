// What collectives compute: sums in order of the ranks, bit by bit.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <vector>

#include "exec/cpu/bf16.hpp"
#include "tests/exec/ranks/local_ranks.hpp"

namespace spillway {
namespace {

// What rank r contributes: numbers of very different sizes, so that another order has other bits.
std::vector<float> values_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto mantissa = static_cast<float>(random() % 100000) - 50000.0f;
    value = std::ldexp(mantissa, static_cast<int>(random() % 40) - 20);
  }
  return values;
}

std::vector<float> sum_in_order(int ranks, std::size_t count) {
  std::vector<float> sum = values_of(0, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> more = values_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += more[i];
  }
  return sum;
}

TEST_CASE("ranks: sums over the ranks are added in their order, whatever the size") {
  for (const int ranks : {2, 3, 4}) {
    // One and several pieces, and parts of which some have fewer pieces than others.
    for (const std::size_t count : {64u, 5000u, 1'000'000u}) {
      INFO(ranks << " ranks, " << count << " elements");
      const std::vector<float> expected = sum_in_order(ranks, count);
      const std::vector<std::uint64_t> parts = test::unequal_parts(ranks, count, sizeof(float));
      std::mutex mutex;
      int right = 0;
      test::run_ranks(ranks, [&](RankTeam& team) {
        OrderedSums& sums = team.on(Lane::ranks_reduce);
        const std::vector<float> mine = values_of(team.rank(), count);
        std::vector<float> whole = mine;
        sums.all_reduce(reinterpret_cast<std::byte*>(whole.data()), count * sizeof(float),
                        sizeof(float));
        std::uint64_t begin = 0;
        for (int r = 0; r < team.rank(); ++r) begin += parts[static_cast<std::size_t>(r)];
        const std::size_t from = begin / sizeof(float),
                          own = parts[static_cast<std::size_t>(team.rank())] / sizeof(float);
        std::vector<float> part(own, 0.5f), added(own, 0.5f);
        sums.reduce_scatter(reinterpret_cast<const std::byte*>(mine.data()),
                            reinterpret_cast<std::byte*>(part.data()), parts, sizeof(float), false);
        sums.reduce_scatter(reinterpret_cast<const std::byte*>(mine.data()),
                            reinterpret_cast<std::byte*>(added.data()), parts, sizeof(float), true);
        bool same = std::memcmp(whole.data(), expected.data(), count * sizeof(float)) == 0;
        same = same && std::memcmp(part.data(), expected.data() + from, own * sizeof(float)) == 0;
        for (std::size_t i = 0; i < own; ++i) same = same && added[i] == 0.5f + expected[from + i];
        // What was reduced in parts is whole again once it is gathered.
        std::vector<float> gathered(count);
        team.on(Lane::ranks_gather)
            .all_gather(reinterpret_cast<const std::byte*>(part.data()),
                        reinterpret_cast<std::byte*>(gathered.data()), parts);
        same = same && gathered == expected;
        // So it is where each sends its part to all others.
        std::vector<float> sent(count);
        std::copy(part.begin(), part.end(), sent.begin() + static_cast<std::ptrdiff_t>(from));
        std::uint64_t at = 0;
        for (std::size_t owner = 0; owner < parts.size(); ++owner) {
          team.on(Lane::ranks_spread)
              .broadcast(reinterpret_cast<std::byte*>(sent.data()) + at, parts[owner], owner,
                         all_ranks(ranks));
          at += parts[owner];
        }
        same = same && sent == expected;
        const std::lock_guard lock(mutex);
        right += same ? 1 : 0;
      });
      CHECK(right == ranks);
    }
  }
}

TEST_CASE("ranks: sums of bf16 are rounded once") {
  constexpr int ranks = 3;
  constexpr std::size_t count = 4096;
  std::vector<std::vector<bf16>> all(ranks);
  std::vector<bf16> expected(count);
  for (int rank = 0; rank < ranks; ++rank)
    for (const float value : values_of(rank, count))
      all[static_cast<std::size_t>(rank)].push_back(to_bf16(value));
  for (std::size_t i = 0; i < count; ++i)
    expected[i] = to_bf16(to_float(all[0][i]) + to_float(all[1][i]) + to_float(all[2][i]));
  std::atomic<int> right{0};
  test::run_ranks(ranks, [&](RankTeam& team) {
    std::vector<bf16> whole = all[static_cast<std::size_t>(team.rank())];
    team.on(Lane::ranks_reduce)
        .all_reduce(reinterpret_cast<std::byte*>(whole.data()), count * sizeof(bf16), sizeof(bf16));
    right += std::memcmp(whole.data(), expected.data(), count * sizeof(bf16)) == 0 ? 1 : 0;
  });
  CHECK(right == ranks);
}

TEST_CASE("ranks: what they say to each other, and what they do not agree on") {
  std::atomic<int> right{0}, refused{0};
  test::run_ranks(3, [&](RankTeam& team) {
    const std::string mine(static_cast<std::size_t>(team.rank()) * 7, 'x');
    const std::vector<std::string> all = team.gather(mine);
    const std::string first = team.from_first(team.leads() ? "said" : "not heard");
    std::vector<double> sums = {1.0, static_cast<double>(team.rank())};
    team.control().all_reduce(sums);
    right += all.size() == 3 && all[2] == std::string(14, 'x') && first == "said" &&
                     sums == std::vector<double>{3, 3}
                 ? 1
                 : 0;
    team.require_equal("a text", "the same\non all");
    try {
      team.require_equal("a text", team.rank() == 2 ? "a\nd" : "a\nb");
    } catch (const InputError& error) {
      const std::string what = error.what();
      refused += what.find("rank 0 has 'b', rank 2 'd'") != std::string::npos ? 1 : 0;
    }
  });
  CHECK(right == 3);
  CHECK(refused == 3);
}

TEST_CASE("ranks: one that fails, falls silent or hangs is named by all others") {
  const auto outcome = [](const RankTimes& times, const std::function<void(RankTeam&)>& bad) {
    std::mutex mutex;
    std::vector<std::string> heard;
    std::atomic<bool> known{false};
    try {
      test::run_ranks(
          3,
          [&](RankTeam& team) {
            if (team.rank() == 1) {
              bad(team);
              while (!known) std::this_thread::sleep_for(std::chrono::milliseconds(1));
              return;
            }
            try {
              std::vector<float> values(64);
              team.on(Lane::ranks_reduce)
                  .all_reduce(reinterpret_cast<std::byte*>(values.data()), 256, sizeof(float));
            } catch (const RankLost& lost) {
              const std::lock_guard lock(mutex);
              heard.push_back(lost.what());
              known = heard.size() == 2;
            }
          },
          times);
    } catch (const std::exception&) {
    }
    return heard;
  };
  RankTimes patient;
  const auto failed = outcome(patient, [](RankTeam& team) {
    team.fail(std::make_exception_ptr(MachineError("its drive is gone")));
  });
  REQUIRE(failed.size() == 2);
  for (const std::string& text : failed) {
    CHECK(text.find("rank 1") == 0);
    CHECK(text.find("its drive is gone") != std::string::npos);
  }
  // It is there, but does nothing.
  RankTimes quick;
  quick.no_progress = std::chrono::milliseconds(200);
  const auto hung = outcome(quick, [](RankTeam&) {});
  REQUIRE(hung.size() == 2);
  for (const std::string& text : hung) CHECK(text.find("has done nothing") != std::string::npos);
}

}  // namespace
}  // namespace spillway
