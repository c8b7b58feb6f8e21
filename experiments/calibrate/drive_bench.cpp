#include "experiments/calibrate/drive_bench.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <ctime>
#include <map>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/run/executor.hpp"
#include "exec/store/chunk_table.hpp"
#include "exec/store/ssd_store.hpp"
#include "exec/store/store_location.hpp"
#include "experiments/calibrate/mixed_bench.hpp"
#include "experiments/calibrate/scratch_folder.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t mebi = 1 << 20;
constexpr std::uint64_t usual_store_bytes = 256 * mebi, brief_store_bytes = 64 * mebi;
// Of single reads and writes.
const std::vector<std::uint64_t> usual_sizes = {mebi / 4, mebi, 4 * mebi, 16 * mebi},
                                 brief_sizes = {mebi / 4, 4 * mebi, 16 * mebi};
constexpr int other_figures = 1;  // filling the test file

// A run of so many requests of one stripe each keeps the deepest queue full.
constexpr std::uint64_t deep_run_bytes = executor_queue_depth * mebi;
// Shallower queues than the executor's, and the executor's own, to which the others are compared.
constexpr std::int64_t depths[] = {1, 4, 16, executor_queue_depth};

// Of the whole program: reads and writes may be the work of several threads.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// A folder of its own in each directory: a directory may hold the store of a training.
class TestFolders {
 public:
  explicit TestFolders(const std::vector<std::filesystem::path>& directories) {
    for (const auto& directory : directories)
      paths.push_back(folders_.emplace_back(directory).path());
  }
  std::vector<std::filesystem::path> paths;

 private:
  std::vector<ScratchFolder> folders_;
};

// Memory in turn: what a drive moves in training lies in no cache of the processor.
class MemoryInTurn {
 public:
  explicit MemoryInTurn(const Arena& memory) : memory_(memory) {}
  std::byte* next(std::uint64_t bytes) {
    if (used_ + bytes > memory_.size()) used_ = 0;
    used_ += bytes;
    return memory_.data() + used_ - bytes;
  }

 private:
  const Arena& memory_;
  std::uint64_t used_ = 0;
};

// Checksums of a test file, which training takes of all that it reads and writes. Single transfers
// smaller than a stripe lie in the first bytes of the file, where each is a chunk.
constexpr std::uint64_t small_transfer = mebi / 4, small_area = 16 * mebi;
ChunkTable checksums_of(std::uint64_t store_bytes) {
  std::vector<std::uint64_t> cuts;
  for (std::uint64_t at = 0; at < small_area; at += small_transfer) cuts.push_back(at);
  return ChunkTable(cuts, mebi, store_bytes);
}

// How the files of a store are read and written, in a few words.
std::string way_of(const SsdStore& store, const IoChoice& io) {
  return fmt::format("{} {}", store.warnings().empty() ? "O_DIRECT" : "page cache,",
                     name_of(io, store.options().queue_depth));
}

// Fills in machine.ssd.by_queue_depth: bandwidths of long runs at a few depths, as shares of that
// at the executor's own depth.
void measure_depths(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                    const SamplingRule& rule, const Arena& memory, Machine& machine,
                    const std::function<void(const std::string&)>& next) {
  const TestFolders folders(directories);
  std::map<std::int64_t, Machine::Ssd::Row> rates;
  std::string way;
  for (const std::int64_t depth : depths) {
    next(fmt::format("SSD at queue depth {}", depth));
    SsdStoreOptions options;
    options.queue_depth = static_cast<unsigned>(depth);
    options.make_ring = io.make_ring;
    ChunkTable checksums({}, mebi, 2 * deep_run_bytes);
    options.chunks = &checksums;
    const SsdStore store(folders.paths, 2 * deep_run_bytes, options);
    way = way_of(store, io);  // the deepest queue comes last
    SsdStore::Channel lane(store);
    lane.register_memory(memory.span());
    std::uint64_t at = 0;
    const auto turn = [&] { return at = deep_run_bytes - at; };
    for (int half = 0; half < 2; ++half) lane.write(turn(), memory.data(), deep_run_bytes);
    lane.sync();
    const auto rate = [&](const char* kind, const auto& run) {
      const std::string shape = fmt::format("bytes={},depth={}", deep_run_bytes, depth);
      machine.kernels.push_back(kernel_time(kind, shape, 0, sample_ns(rule, run)));
      return static_cast<double>(deep_run_bytes) / seconds_of(machine.kernels.back());
    };
    Machine::Ssd::Row& row = rates[depth];
    row.read = rate("read", [&] { lane.read(turn(), memory.data(), deep_run_bytes); });
    row.write = rate("write", [&] { lane.write(turn(), memory.data(), deep_run_bytes); });
  }
  const Machine::Ssd::Row full = rates.at(executor_queue_depth);
  for (const auto& [depth, row] : rates) {
    // A shallower queue that was faster was so by chance.
    machine.ssd.by_queue_depth[static_cast<double>(depth)] = {
        std::min(1.0, row.read / full.read), std::min(1.0, row.write / full.write), 0};
  }
  machine.sources["ssd.by_queue_depth"] =
      fmt::format("{}, runs of {}, against depth {}", way,
                  format_bytes(static_cast<double>(deep_run_bytes)), executor_queue_depth);
}

}  // namespace

int drive_figures(bool brief) {
  return other_figures + mixed_figures(brief) +
         static_cast<int>(brief ? brief_sizes.size() : usual_sizes.size() + std::size(depths));
}

void measure_drives(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                    bool brief, const SamplingRule& rule, const Arena& memory, Machine& machine,
                    const std::function<void(const std::string&)>& next) {
  const std::uint64_t store_bytes = brief ? brief_store_bytes : usual_store_bytes;
  const auto keep = [&](KernelTime time) -> const KernelTime& {
    return machine.kernels.emplace_back(std::move(time));
  };
  const auto source = [&](const char* key, const std::string& text) {
    machine.sources[key] = text;
  };
  // The next of a run of transfers through a part of the test file.
  const auto rotate = [](std::uint64_t& at, std::uint64_t bytes, std::uint64_t first,
                         std::uint64_t end) {
    const std::uint64_t offset = std::max(at, first);
    at = offset + 2 * bytes > end ? first : offset + bytes;
    return offset;
  };
  MemoryInTurn turn(memory);
  const TestFolders folders(directories);
  SsdStoreOptions options;
  options.make_ring = io.make_ring;
  ChunkTable checksums = checksums_of(store_bytes);
  options.chunks = &checksums;
  const SsdStore store(folders.paths, store_bytes, options);
  SsdStore::Channel channel(store);
  channel.register_memory(memory.span());
  // Blocks that were never written may be read faster than the drive reads: write all of them
  // first.
  next("filling the SSD's test file");
  for (std::uint64_t at = 0; at < store_bytes; at += 16 * mebi)
    channel.write(at, memory.data(), 16 * mebi);
  channel.sync();

  std::vector<std::pair<double, double>> reads, writes;
  double cpu = 0, wall = 0;  // seconds, of the transfers alone
  for (const std::uint64_t bytes : brief ? brief_sizes : usual_sizes) {
    std::uint64_t at = 0;
    const bool small = bytes < mebi;
    const auto place = [&] {
      return rotate(at, bytes, small ? 0 : small_area, small ? small_area : store_bytes);
    };
    next(fmt::format("SSD reads and writes of {}", format_bytes(static_cast<double>(bytes))));
    const double cpu_before = cpu_seconds();
    const std::int64_t wall_before = now_ns();
    const std::string shape = fmt::format("bytes={},depth={}", bytes, store.options().queue_depth);
    reads.emplace_back(static_cast<double>(bytes),
                       seconds_of(keep(kernel_time("read", shape, 0, sample_ns(rule, [&] {
                                                     channel.read(place(), turn.next(bytes), bytes);
                                                   })))));
    writes.emplace_back(static_cast<double>(bytes),
                        seconds_of(keep(kernel_time("write", shape, 0, sample_ns(rule, [&] {
                                                      channel.write(place(), turn.next(bytes),
                                                                    bytes);
                                                    })))));
    cpu += cpu_seconds() - cpu_before;
    wall += static_cast<double>(now_ns() - wall_before) / 1e9;
  }
  machine.ssd.cores = std::clamp(cpu / wall, 0.01, std::max(1.0, machine.host.cores));
  const LatencyAndRate read = fit_latency_and_rate(reads), write = fit_latency_and_rate(writes);
  machine.ssd.read = read.rate;
  machine.ssd.write = write.rate;
  const std::int64_t wake_ns = machine.gpu.is_cpu ? machine.gpu.launch_ns : machine.host.wake_ns;
  machine.ssd.read_latency_ns = static_cast<std::int64_t>(read.latency_seconds * 1e9) + wake_ns;
  machine.ssd.write_latency_ns = static_cast<std::int64_t>(write.latency_seconds * 1e9) + wake_ns;

  if (!brief) measure_depths(directories, io, rule, memory, machine, next);

  measure_mixes(directories, io, brief, rule, memory, machine, next);
  machine.ssd.count = static_cast<std::int64_t>(directories.size());
  machine.ssd.capacity = room_on({directories}).free[0];
  const std::string single = way_of(store, io) + ", 256 KiB to 16 MiB, one lane";
  source("ssd.read", single);
  source("ssd.write", single);
  source("ssd.capacity", "free space when calibrated");
}

}  // namespace spillway
