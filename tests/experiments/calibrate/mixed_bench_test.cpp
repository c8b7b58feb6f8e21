// How reads and writes share the drives: the figures, and fio's own runs on the same drive.
#include "experiments/calibrate/mixed_bench.hpp"

#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "experiments/calibrate/statistics.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

// What the command prints; empty where it fails.
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::string text;
  std::array<char, 4096> part{};
  while (pipe && std::fgets(part.data(), static_cast<int>(part.size()), pipe.get()) != nullptr)
    text += part.data();
  return text;
}

struct Rates {
  double read = 0, write = 0;
};

// One run of fio with so many percent of reads, 1 MiB each, 32 in flight.
Rates fio_rates(const std::string& folder, int percent) {
  const std::string text = output_of(fmt::format(
      "fio --name=mix --filename={}/fio.bin --size=256M --rw=rw --rwmixread={} --bs=1M "
      "--iodepth=32 --ioengine=io_uring --direct=1 --time_based --runtime=1 --randrepeat=1 "
      "--output-format=json 2>/dev/null",
      folder, percent));
  const auto json =
      nlohmann::json::parse(text.substr(std::min(text.find('{'), text.size())), nullptr, false);
  if (json.is_discarded() || !json.contains("jobs")) return {};
  const auto& job = json["jobs"][0];
  return {job["read"]["bw_bytes"], job["write"]["bw_bytes"]};
}

// (p80 - p20) / median
double spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return (at(0.8) - at(0.2)) / median(values);
}

TEST_CASE("The gain of a mix is the median of its ratios within one pass") {
  // A drive that is twice as slow in the second pass: 10 ms of reads, 20 of writes, and half of
  // both in 12; in the third the mix alone is slow.
  const MixedRuns runs{1,
                       1,
                       8,
                       {{0, {20'000'000, 40'000'000, 20'000'000}},
                        {0.5, {12'000'000, 24'000'000, 30'000'000}},
                        {1, {10'000'000, 20'000'000, 10'000'000}}}};
  CHECK(runs.gain(0.5) == Approx(15.0 / 12));
  CHECK(runs.gain(0) == Approx(1));
  CHECK(runs.gain(1) == Approx(1));
  CHECK(runs.median_seconds(0.5) == Approx(0.024));
}

TEST_CASE("Mixes are measured in every share asked for, as often") {
  const test::TemporaryFolder folder;
  const Arena memory(std::uint64_t{64} << 20);
  SamplingRule rule;
  rule.most_seconds = 0;
  rule.least = 2;
  rule.warm_up = 0;
  const MixedRuns runs = run_mixes({folder.path()}, usual_io(), {0, 0.25, 0.75, 1},
                                   std::uint64_t{1} << 20, 4, rule, memory);
  CHECK(runs.run_bytes == std::uint64_t{8} << 20);
  REQUIRE(runs.samples_ns.size() == 4);
  for (const auto& [share, samples] : runs.samples_ns) {
    INFO(share);
    CHECK(samples.size() == 2);
    for (const std::int64_t ns : samples) CHECK(ns > 0);
    CHECK(runs.gain(share) > 0);
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("fio sees the gains that the law is fitted to", "[slow]") {
  if (output_of("fio --version 2>/dev/null").empty()) {
    WARN("skipped: fio is not installed (apt-get install fio)");
    return;
  }
  const test::TemporaryFolder folder;
  const std::string path = folder.path().string();
  if (fio_rates(path, 50).read == 0) {
    WARN("skipped: fio cannot run here with io_uring and O_DIRECT");
    return;
  }
  const std::vector<int> percents = {25, 50, 75};
  std::map<int, std::vector<double>> gains;
  std::vector<double> reads, writes;
  for (int pass = 0; pass < 5; ++pass) {
    const double read = fio_rates(path, 100).read, write = fio_rates(path, 0).write;
    reads.push_back(read);
    writes.push_back(write);
    for (const int percent : percents) {
      const Rates mix = fio_rates(path, percent);
      gains[percent].push_back(mix.read / read + mix.write / write);
    }
  }
  const Arena memory(std::uint64_t{64} << 20);
  const MixedRuns ours = run_mixes({folder.path()}, usual_io(), {0, 0.25, 0.5, 0.75, 1},
                                   std::uint64_t{8} << 20, 32, {}, memory);
  double noise = std::max(spread_of(reads), spread_of(writes));
  std::string seen = fmt::format("fio reads {:.2f} GB/s, writes {:.2f};", median(reads) / 1e9,
                                 median(writes) / 1e9);
  for (const int percent : percents) {
    noise = std::max(noise, spread_of(gains[percent]));
    seen += fmt::format(" gain at {} %: fio {:.2f}, ours {:.2f};", percent, median(gains[percent]),
                        ours.gain(percent / 100.0));
  }
  WARN(seen);
  constexpr double too_noisy = 0.25, alike = 0.3;
  if (noise > too_noisy) {
    WARN(fmt::format("skipped: from run to run fio differs by {:.0f} %", 100 * noise));
    return;
  }
  for (const int percent : percents) {
    INFO(percent << " % reads");
    CHECK(ours.gain(percent / 100.0) == Approx(median(gains[percent])).epsilon(alike));
  }
}

}  // namespace
}  // namespace spillway
