// How reads and writes share the drives: the figures, and fio's own runs on the same drive.
#include "experiments/calibrate/mixed_bench.hpp"

#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
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

// Seconds that fio takes to read and to write so many MiB, at once where it does both: two jobs, 1
// MiB a request, 32 in flight each. 0 where it fails.
double fio_seconds(const std::string& folder, std::int64_t read_mib, std::int64_t write_mib) {
  const auto job = [&](const char* kind, std::int64_t mib) {
    return mib == 0 ? std::string()
                    : fmt::format(" --name={0} --rw={0} --filename={1}/{0}.bin --io_size={2}M",
                                  kind, folder, mib);
  };
  const std::string text = output_of(
      "fio --output-format=json --size=128M --bs=1M --iodepth=32 --ioengine=io_uring --direct=1" +
      job("read", read_mib) + job("write", write_mib) + " 2>/dev/null");
  const auto json =
      nlohmann::json::parse(text.substr(std::min(text.find('{'), text.size())), nullptr, false);
  if (json.is_discarded() || !json.contains("jobs")) return 0;
  double most = 0;
  for (const auto& one : json["jobs"]) {
    const char* const kind = one["jobname"] == "read" ? "read" : "write";
    const double bytes = one[kind]["io_bytes"], rate = one[kind]["bw_bytes"];
    most = std::max(most, rate > 0 ? bytes / rate : 0);
  }
  return most;
}

// Half of the distance between the 20th and the 80th percentile, over the median and the root of
// how many there are: about how far off the median may be.
double doubt_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return (at(0.8) - at(0.2)) / 2 / median(values) / std::sqrt(static_cast<double>(values.size()));
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

TEST_CASE("The gain is fitted to all sizes, with what a transfer takes before it moves") {
  // Drives of 1 GB/s each way, of which a mix of halves does 1.5 GB/s: eight transfers of 1 or 8 MB
  // on two lanes, each of which takes 1 ms before its bytes move.
  Machine machine;
  machine.ssd.count = 1;
  machine.ssd.read = machine.ssd.write = 1e9;
  machine.ssd.read_latency_ns = machine.ssd.write_latency_ns = 1'000'000;
  const auto runs = [](std::uint64_t bytes, double gain) {
    const double transfer = static_cast<double>(bytes) / 1e9, latency = 1e-3;
    const auto ns = [](double seconds) { return static_cast<std::int64_t>(seconds * 1e9); };
    // A mix: both lanes' bytes at the gain, or one lane with what its own transfers wait for.
    const double mix = std::max(8 * transfer / gain, 4 * (transfer + latency));
    const std::int64_t alone = ns(8 * (transfer + latency));
    return MixedRuns{bytes, 32, 8 * bytes, {{0, {alone}}, {0.5, {ns(mix)}}, {1, {alone}}}};
  };
  const MixedRuns small = runs(1'000'000, 1.5), large = runs(8'000'000, 1.5);
  CHECK(fitted_gain(machine, {&small, &large}, 0.5) == Approx(1.5));
  // Ratios as measured say more: each lane prepares its transfers while the drives serve the other.
  CHECK(large.gain(0.5) > 1.6);
  // Only the small ones: their lanes wait for latencies, so that they say no more than that the
  // gain is 1 or more.
  CHECK(fitted_gain(machine, {&small}, 0.5) == Approx(1));
}

// Of the night: it holds one measurement of a drive against another one, and needs the machine
// alone.
TEST_CASE("fio sees the gains that the law is fitted to", "[nightly]") {
  if (output_of("fio --version 2>/dev/null").empty()) {
    WARN("skipped: fio is not installed (apt-get install fio)");
    return;
  }
  const test::TemporaryFolder folder;
  const std::string path = folder.path().string();
  // The files are written once, for blocks that never were are read faster.
  fio_seconds(path, 0, 128);
  if (fio_seconds(path, 128, 128) == 0) {
    WARN("skipped: fio cannot run here with io_uring and O_DIRECT");
    return;
  }
  // Of 512 MiB, by eighths; ours in turn with fio's, so that both see the drive in the same mood.
  constexpr std::int64_t all = 512;
  constexpr int passes = 9;
  const std::vector<double> shares = {0.25, 0.5, 0.75};
  const Arena memory(std::uint64_t{64} << 20);
  SamplingRule once;
  once.most_seconds = 0;
  once.least = 3;
  once.warm_up = 1;
  std::map<double, std::vector<double>> fio, ours;
  for (int pass = 0; pass < passes; ++pass) {
    const double read = fio_seconds(path, all, 0), write = fio_seconds(path, 0, all);
    const MixedRuns runs = run_mixes({folder.path()}, usual_io(), {0, 0.25, 0.5, 0.75, 1},
                                     std::uint64_t{8} << 20, 32, once, memory);
    for (const double share : shares) {
      const auto reads = static_cast<std::int64_t>(share * static_cast<double>(all));
      fio[share].push_back((share * read + (1 - share) * write) /
                           fio_seconds(path, reads, all - reads));
      ours[share].push_back(runs.gain(share));
    }
  }
  double doubt = 0;
  std::string seen;
  for (const double share : shares) {
    doubt = std::max({doubt, doubt_of(fio[share]), doubt_of(ours[share])});
    seen += fmt::format("{} at read share {}: fio {:.2f}, ours {:.2f}", seen.empty() ? "" : ";",
                        share, median(fio[share]), median(ours[share]));
  }
  WARN(fmt::format("gains{}; medians are good to {:.0f} %", seen, 100 * doubt));
  constexpr double too_noisy = 0.05, alike = 0.15;
  if (doubt > too_noisy) {
    WARN("skipped: the drive differs too much from run to run");
    return;
  }
  for (const double share : shares) {
    INFO(share << " of the bytes are read");
    CHECK(median(ours[share]) == Approx(median(fio[share])).epsilon(alike));
  }
}

}  // namespace
}  // namespace spillway
