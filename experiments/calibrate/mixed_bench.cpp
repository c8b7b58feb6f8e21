#include "experiments/calibrate/mixed_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <latch>
#include <limits>
#include <optional>
#include <set>
#include <thread>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/run/executor.hpp"
#include "exec/store/chunk_table.hpp"
#include "exec/store/ssd_store.hpp"
#include "experiments/calibrate/scratch_folder.hpp"
#include "experiments/calibrate/statistics.hpp"
#include "policies/cost/link_rates.hpp"
#include "policies/machine/machine_drives.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t mib = 1 << 20;
constexpr std::int64_t run_transfers = 8;  // of one run: shares are eighths of its bytes
const std::vector<double> usual_shares = {0, 0.25, 0.5, 0.75, 1}, brief_shares = {0, 0.5, 1};

// Sizes of transfers and queue depths; the last one has the executor's depth.
struct GridPoint {
  std::uint64_t transfer_bytes;
  std::int64_t queue_depth;
};
const std::vector<GridPoint> usual_settings = {{1 * mib, 4},
                                               {1 * mib, executor_queue_depth},
                                               {8 * mib, 4},
                                               {8 * mib, executor_queue_depth}},
                             brief_settings = {{4 * mib, executor_queue_depth}};

// A lane that moves so many transfers through its half of the test file.
struct LaneOfRun {
  bool reads = false;
  std::int64_t transfers = 0;
  std::uint64_t begin = 0, end = 0;  // of its half
  std::byte* memory = nullptr;       // half of the arena
  std::uint64_t memory_bytes = 0;
  std::uint64_t at = 0;  // where the next transfer begins, of its half
  std::atomic<std::int64_t> done{0};
  std::int64_t began = 0, ended = 0;  // ns; ended: 0 of a lane without transfers
  std::exception_ptr failure;
};

class MixedFile {
 public:
  MixedFile(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
            std::uint64_t transfer_bytes, std::int64_t queue_depth, const Arena& memory)
      : bytes_(transfer_bytes),
        half_(2 * run_transfers * transfer_bytes),
        memory_(memory),
        checksums_({}, mib, 2 * half_) {
    std::vector<std::filesystem::path> paths;
    for (const auto& directory : directories)
      paths.push_back(folders_.emplace_back(directory).path());
    SsdStoreOptions options;
    options.queue_depth = static_cast<unsigned>(queue_depth);
    options.make_ring = io.make_ring;
    options.chunks = &checksums_;  // as training has them
    store_.emplace(paths, 2 * half_, options);
    prepare(reader_, true, 0);
    prepare(writer_, false, half_);
    // Blocks that were never written may be read faster than the drive reads.
    SsdStore::Channel lane(*store_);
    for (std::uint64_t at = 0; at < 2 * half_; at += bytes_) lane.write(at, memory.data(), bytes_);
    lane.sync();
  }

  std::int64_t run_ns(double read_share) {
    reader_.transfers = std::lround(read_share * static_cast<double>(run_transfers));
    writer_.transfers = run_transfers - reader_.transfers;
    reader_.done = writer_.done = 0;
    std::latch ready(2);
    std::thread other([&] { run(writer_, reader_, ready); });
    run(reader_, writer_, ready);
    other.join();
    for (const LaneOfRun* lane : {&reader_, &writer_}) {
      if (lane->failure) std::rethrow_exception(lane->failure);
    }
    return std::max(reader_.ended, writer_.ended) - std::min(reader_.began, writer_.began);
  }

 private:
  void prepare(LaneOfRun& lane, bool reads, std::uint64_t begin) const {
    lane.reads = reads;
    lane.begin = begin;
    lane.end = begin + half_;
    lane.memory_bytes = memory_.size() / 2;
    lane.memory = memory_.data() + (reads ? 0 : lane.memory_bytes);
  }

  // On a thread of its own.
  void run(LaneOfRun& lane, LaneOfRun& other, std::latch& ready) {
    std::optional<SsdStore::Channel> channel;
    try {
      channel.emplace(*store_);
      channel->register_memory({lane.memory, lane.memory_bytes});
    } catch (...) {
      lane.failure = std::current_exception();
    }
    ready.arrive_and_wait();
    lane.began = now_ns();
    try {
      for (std::int64_t k = 0; channel && k < lane.transfers; ++k) {
        wait_for_share(lane, other, k);
        move(*channel, lane, k);
        lane.done = k + 1;
        lane.done.notify_all();
      }
    } catch (...) {
      lane.failure = std::current_exception();
    }
    // The other lane waits for nothing more.
    lane.ended = lane.transfers > 0 ? now_ns() : 0;
    lane.done = run_transfers;
    lane.done.notify_all();
  }

  // Until the other lane has done its share, but for one transfer.
  static void wait_for_share(const LaneOfRun& lane, const LaneOfRun& other, std::int64_t k) {
    for (;;) {
      const std::int64_t done = other.done;
      if (k * other.transfers <= (done + 1) * lane.transfers) return;
      other.done.wait(done);
    }
  }

  void move(SsdStore::Channel& channel, LaneOfRun& lane, std::int64_t k) const {
    if (lane.at < lane.begin || lane.at + bytes_ > lane.end) lane.at = lane.begin;
    const std::uint64_t slots = lane.memory_bytes / bytes_;
    std::byte* const memory = lane.memory + static_cast<std::uint64_t>(k) % slots * bytes_;
    if (lane.reads)
      channel.read(lane.at, memory, bytes_);
    else
      channel.write(lane.at, memory, bytes_);
    lane.at += bytes_;
  }

  const std::uint64_t bytes_, half_;
  const Arena& memory_;
  ChunkTable checksums_;
  std::vector<ScratchFolder> folders_;
  std::optional<SsdStore> store_;
  LaneOfRun reader_, writer_;
};

// The run as the law of `machine` has it, on lanes that prepare each transfer. One lane prepares
// while the drives serve the other one.
double predicted_seconds(Machine machine, const MixedRuns& runs, double share) {
  machine.ssd.queue_depth = runs.queue_depth;
  const DriveRates rates = drive_rates(machine.ssd, machine.ssd.at_queue_depth());
  const auto bytes = static_cast<double>(runs.run_bytes);
  const double read = share * bytes, written = bytes - read;
  const auto lane = [&](double of_lane, double rate, std::int64_t latency_ns) {
    const double each = static_cast<double>(latency_ns) * 1e-9;
    return of_lane / rate + of_lane / static_cast<double>(runs.transfer_bytes) * each;
  };
  return std::max({rates.seconds(read, written),
                   lane(read, rates.read, machine.ssd.read_latency_ns),
                   lane(written, rates.write, machine.ssd.write_latency_ns)});
}

// How far the law is off over all runs: the median and the most, and where that is.
std::string misfit_text(const Machine& machine, const std::vector<MixedRuns>& all) {
  std::vector<double> errors;
  std::string worst;
  for (const MixedRuns& runs : all) {
    for (const auto& [share, samples] : runs.samples_ns) {
      const double error = predicted_seconds(machine, runs, share) / runs.median_seconds(share) - 1;
      if (errors.empty() || std::abs(error) > *std::max_element(errors.begin(), errors.end())) {
        worst =
            fmt::format("{:+.0f} % at read share {}, {}, depth {}", 100 * error, share,
                        format_bytes(static_cast<double>(runs.transfer_bytes)), runs.queue_depth);
      }
      errors.push_back(std::abs(error));
    }
  }
  return fmt::format("of {} runs predicted over measured is off by {:.0f} % in the median, {}",
                     errors.size(), 100 * median(errors), worst);
}

// Each once, in words.
std::string sizes_of(const std::vector<MixedRuns>& all) {
  std::set<std::uint64_t> sizes;
  for (const MixedRuns& runs : all) sizes.insert(runs.transfer_bytes);
  std::string text;
  for (const std::uint64_t bytes : sizes)
    text += (text.empty() ? "" : " and ") + format_bytes(static_cast<double>(bytes));
  return text;
}

void keep(const MixedRuns& runs, Machine& machine) {
  for (const auto& [share, samples] : runs.samples_ns) {
    // As the time of the kind that moves more bytes.
    machine.kernels.push_back(
        kernel_time(share >= 0.5 ? "read" : "write",
                    fmt::format("bytes={},transfer={},depth={},beside=both,read_share={}",
                                runs.run_bytes, runs.transfer_bytes, runs.queue_depth, share),
                    0, samples));
  }
}

}  // namespace

double MixedRuns::median_seconds(double share) const {
  return static_cast<double>(median_ns(samples_ns.at(share))) / 1e9;
}

double MixedRuns::gain(double share) const {
  const auto &mixes = samples_ns.at(share), &reads = samples_ns.at(1), &writes = samples_ns.at(0);
  std::vector<double> ratios;
  for (std::size_t pass = 0; pass < mixes.size(); ++pass) {
    const double turns =
        share * static_cast<double>(reads[pass]) + (1 - share) * static_cast<double>(writes[pass]);
    ratios.push_back(turns / static_cast<double>(mixes[pass]));
  }
  return median(ratios);
}

double fitted_gain(const Machine& machine, const std::vector<const MixedRuns*>& of_all_sizes,
                   double share) {
  constexpr int steps = 100;  // from 1 to 2
  double best = 1, least = std::numeric_limits<double>::infinity();
  for (int step = 0; step <= steps; ++step) {
    Machine tried = machine;
    tried.ssd.law = SsdLaw::mixed;
    const double gain = least_mixed_gain + (most_mixed_gain - least_mixed_gain) * step / steps;
    tried.ssd.by_read_share = {{share, gain}};
    tried.ssd.read_share_by_depth.clear();
    double squares = 0;
    for (const MixedRuns* runs : of_all_sizes) {
      const double turns = share * predicted_seconds(tried, *runs, 1) +
                           (1 - share) * predicted_seconds(tried, *runs, 0);
      const double off =
          std::log(turns / predicted_seconds(tried, *runs, share)) - std::log(runs->gain(share));
      squares += off * off;
    }
    if (squares < least * (1 - 1e-9)) {
      least = squares;
      best = gain;
    }
  }
  return best;
}

MixedRuns run_mixes(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                    const std::vector<double>& shares, std::uint64_t transfer_bytes,
                    std::int64_t queue_depth, const SamplingRule& rule, const Arena& memory) {
  MixedFile file(directories, io, transfer_bytes, queue_depth, memory);
  MixedRuns runs{transfer_bytes, queue_depth, run_transfers * transfer_bytes, {}};
  const std::int64_t began = now_ns();
  for (int pass = 0; pass < rule.warm_up + rule.samples; ++pass) {
    const double seconds = static_cast<double>(now_ns() - began) / 1e9;
    if (pass >= rule.warm_up + rule.least && seconds > rule.most_seconds) break;
    for (const double share : shares) {
      const std::int64_t ns = file.run_ns(share);
      if (pass >= rule.warm_up) runs.samples_ns[share].push_back(ns);
    }
  }
  return runs;
}

void measure_mixes(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                   bool brief, const SamplingRule& rule, const Arena& memory, Machine& machine,
                   const std::function<void(const std::string&)>& next) {
  std::vector<MixedRuns> all;
  for (const auto& [transfer_bytes, queue_depth] : brief ? brief_settings : usual_settings) {
    next(fmt::format("SSD reads beside writes of {}, queue depth {}",
                     format_bytes(static_cast<double>(transfer_bytes)), queue_depth));
    all.push_back(run_mixes(directories, io, brief ? brief_shares : usual_shares, transfer_bytes,
                            queue_depth, rule, memory));
    keep(all.back(), machine);
  }
  const MixedRuns& runs = all.back();
  std::map<std::int64_t, std::vector<const MixedRuns*>> by_depth;
  for (const MixedRuns& one : all) by_depth[one.queue_depth].push_back(&one);
  std::map<double, std::map<double, double>> gains;
  for (const auto& [depth, of_all_sizes] : by_depth) {
    for (const auto& [share, samples] : runs.samples_ns) {
      if (share == 0 || share == 1) continue;
      gains[static_cast<double>(depth)][share] = fitted_gain(machine, of_all_sizes, share);
    }
  }
  machine.ssd.law = SsdLaw::mixed;
  machine.ssd.by_read_share = gains.at(static_cast<double>(runs.queue_depth));
  machine.ssd.read_share_by_depth.clear();
  if (gains.size() > 1) machine.ssd.read_share_by_depth = gains;
  std::string measured;
  for (const auto& [share, gain] : machine.ssd.by_read_share) {
    const double seen = runs.gain(share),
                 taken = gain_of_hull(machine.ssd.by_read_share, machine.ssd.read,
                                      machine.ssd.write, share);
    measured += fmt::format("{}{} times turns at read share {}", measured.empty() ? "" : ", ",
                            fmt::format("{:.2f}", seen), share);
    if (std::abs(taken / seen - 1) > 0.02)
      measured += fmt::format(" (the law has {:.2f}{})", taken,
                              seen < 1 ? ": it has no mix that is slower than turns" : "");
  }
  machine.sources["ssd.by_read_share"] = fmt::format(
      "fitted to transfers of {} on two lanes, at each depth; at {} and depth {}, medians of "
      "ratios "
      "within a pass: {}",
      sizes_of(all), format_bytes(static_cast<double>(runs.transfer_bytes)), runs.queue_depth,
      measured);
  machine.sources["ssd.law"] = misfit_text(machine, all);
}

int mixed_figures(bool brief) {
  return static_cast<int>(brief ? brief_settings.size() : usual_settings.size());
}

}  // namespace spillway
