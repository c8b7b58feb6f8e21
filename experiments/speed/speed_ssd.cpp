// The lanes of the SSD store against fio, and over threads against over io_uring: the same file
// system, block size, depth and O_DIRECT, in turn.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "base/errors.hpp"
#include "base/file_descriptor.hpp"
#include "base/units.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/executor.hpp"
#include "exec/store/chunk_table.hpp"
#include "exec/store/ssd_store.hpp"
#include "experiments/calibrate/scratch_folder.hpp"
#include "experiments/speed/fio.hpp"
#include "experiments/speed/speed_figures.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t mebi = 1 << 20;
constexpr std::uint64_t bench_bytes = 1024 * mebi;
constexpr std::uint64_t task_bytes = 64 * mebi;  // of one read or write task, about one layer

double seconds_since(std::int64_t start_ns) {
  return static_cast<double>(now_ns() - start_ns) / 1e9;
}

// Runs `lanes` at once, each on a thread of its own until `seconds` are over; each returns its
// bytes per second. Failures come out of this call.
std::vector<double> run_at_once(const std::vector<std::function<double()>>& lanes) {
  std::vector<double> rates(lanes.size());
  std::vector<std::exception_ptr> failures(lanes.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          rates[i] = lanes[i]();
        } catch (...) {
          failures[i] = std::current_exception();
        }
      });
    }
  }
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return rates;
}

// Calls transfer(offset) on tasks one after the other, around and around within [begin, end).
// Returns bytes per second.
template <class Transfer>
double repeat(std::uint64_t begin, std::uint64_t end, double seconds, const Transfer& transfer) {
  const std::int64_t start = now_ns();
  std::uint64_t at = begin, moved = 0;
  while (seconds_since(start) < seconds) {
    transfer(at);
    moved += task_bytes;
    at = at + 2 * task_bytes > end ? begin : at + task_bytes;
  }
  return static_cast<double>(moved) / seconds_since(start);
}

// In each directory a folder for our files and one for those of fio, which would damage ours.
struct BenchFiles {
  explicit BenchFiles(const std::vector<std::filesystem::path>& directories) {
    for (const auto& directory : directories) {
      folders.emplace_back(directory);
      for (auto* list : {&own, &rival}) {
        list->push_back(folders.back().path() / (list == &own ? "own" : "rival"));
        std::filesystem::create_directory(list->back());
      }
    }
  }
  std::vector<ScratchFolder> folders;
  std::vector<std::filesystem::path> own, rival;
};

// The store as training uses it: a lane is a thread with a channel, its memory is registered, every
// chunk has a checksum that is taken when it is written and compared when it is read.
class OwnLanes {
 public:
  explicit OwnLanes(const BenchFiles& files)
      : chunks_({}, SsdStoreOptions{}.stripe_bytes, bench_bytes),
        store_(files.own, bench_bytes, with_checksums(chunks_)),
        memory_(2 * task_bytes, "transfers of the benchmark") {
    // As fio's: nothing a drive could shrink.
    std::mt19937_64 random(1);
    for (std::uint64_t at = 0; at < memory_.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(memory_.data() + at, &word, sizeof(word));
    }
    fill(store_);
  }

  // Blocks that were never written may be read faster than the drive reads.
  void fill(const SsdStore& store) const {
    SsdStore::Channel channel(store);
    channel.register_memory(memory_.span());
    for (std::uint64_t at = 0; at < bench_bytes; at += task_bytes)
      channel.write(at, memory_.data(), task_bytes);
    channel.sync();
  }

  const SsdStore& store() const { return store_; }

  // Through rings of `io`.
  DriveThroughput run(const IoChoice& io, DrivePattern pattern, double seconds) const {
    const auto lane = [this, &io, seconds](DrivePattern direction, std::uint64_t begin,
                                           std::uint64_t end) -> std::function<double()> {
      return [this, &io, seconds, direction, begin, end] {
        SsdStore::Channel channel(store_, io.make_ring);
        channel.register_memory(memory_.span());
        const bool reads = direction == DrivePattern::read;
        std::byte* const memory = memory_.data() + (reads ? 0 : task_bytes);
        return repeat(begin, end, seconds, [&](std::uint64_t at) {
          if (reads)
            channel.read(at, memory, task_bytes);
          else
            channel.write(at, memory, task_bytes);
        });
      };
    };
    if (pattern == DrivePattern::mixed) {
      const auto rates = run_at_once({lane(DrivePattern::read, 0, bench_bytes / 2),
                                      lane(DrivePattern::write, bench_bytes / 2, bench_bytes)});
      return {rates[0], rates[1]};
    }
    const double rate = run_at_once({lane(pattern, 0, bench_bytes)}).front();
    return pattern == DrivePattern::read ? DriveThroughput{rate, 0} : DriveThroughput{0, rate};
  }

 private:
  static SsdStoreOptions with_checksums(ChunkTable& chunks) {
    SsdStoreOptions options;
    options.chunks = &chunks;
    return options;
  }

  ChunkTable chunks_;
  SsdStore store_;
  Arena memory_;
};

// Where there is no fio: as many threads as the queue is deep, each with plain pread and pwrite.
class PlainThreads {
 public:
  PlainThreads(const std::vector<std::filesystem::path>& files, std::uint64_t block, unsigned depth)
      : block_(block), depth_(depth), memory_(block * depth, "transfers of the benchmark") {
    for (const auto& file : files) {
      files_.emplace_back(::open(file.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
      if (!files_.back().valid())
        throw MachineError::from_errno("cannot open " + file.string(), errno);
    }
  }

  DriveThroughput run(DrivePattern pattern, double seconds) const {
    const std::uint64_t half = bench_bytes / files_.size() / 2 / block_;  // blocks of a file
    std::atomic<std::uint64_t> next_read{0}, next_write{0};
    const auto lane = [&](bool reads, unsigned index, std::uint64_t first, std::uint64_t count) {
      return std::function<double()>([&, reads, index, first, count] {
        std::byte* const memory = memory_.data() + index * block_;
        std::uint64_t moved = 0;
        const std::int64_t start = now_ns();
        while (seconds_since(start) < seconds) {
          const std::uint64_t turn = (reads ? next_read : next_write).fetch_add(1);
          const int file = files_[turn % files_.size()].get();
          const auto at = static_cast<off_t>((first + turn / files_.size() % count) * block_);
          const ssize_t result =
              reads ? ::pread(file, memory, block_, at) : ::pwrite(file, memory, block_, at);
          if (result != static_cast<ssize_t>(block_))
            throw MachineError::from_errno("plain I/O of the benchmark failed", errno);
          moved += block_;
        }
        return static_cast<double>(moved) / seconds_since(start);
      });
    };
    std::vector<std::function<double()>> lanes;
    const bool mixed = pattern == DrivePattern::mixed;
    for (unsigned i = 0; i < depth_; ++i) {
      const bool reads = mixed ? i % 2 == 0 : pattern == DrivePattern::read;
      lanes.push_back(lane(reads, i, mixed && !reads ? half : 0, mixed ? half : 2 * half));
    }
    const auto rates = run_at_once(lanes);
    DriveThroughput sum;
    for (unsigned i = 0; i < depth_; ++i) {
      const bool reads = mixed ? i % 2 == 0 : pattern == DrivePattern::read;
      (reads ? sum.read : sum.write) += rates[i];
    }
    return sum;
  }

 private:
  std::uint64_t block_;
  unsigned depth_;
  std::vector<FileDescriptor> files_;
  Arena memory_;
};

// One who takes part in a round: our lanes over some ring, or a rival.
using Runner = std::function<DriveThroughput(DrivePattern)>;

// What each of them reached in each round, in bytes per second. They take turns within a round, in
// every other round the other way round: a drive that others use is faster now and slower then.
std::vector<std::vector<DriveThroughput>> take_turns(const std::vector<Runner>& runners,
                                                     DrivePattern pattern, int rounds) {
  std::vector<std::vector<DriveThroughput>> reached(runners.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < runners.size(); ++turn) {
      const std::size_t who = round % 2 == 0 ? turn : runners.size() - 1 - turn;
      reached[who].push_back(runners[who](pattern));
    }
  }
  return reached;
}

// Fills in value, roofline and ratios.
void compare(SpeedFigure& figure, const std::vector<DriveThroughput>& own,
             const std::vector<DriveThroughput>& rival) {
  std::vector<double> values, rooflines;
  for (std::size_t round = 0; round < own.size(); ++round) {
    values.push_back(own[round].total() / 1e9);
    rooflines.push_back(rival[round].total() / 1e9);
    figure.ratios.push_back(values.back() / rooflines.back());
  }
  figure.value = median(values);
  figure.roofline = median(rooflines);
}

std::string what_of(DrivePattern pattern, const SsdStore& store, const IoChoice& io) {
  const SsdStoreOptions& settings = store.options();
  return fmt::format("{} of the SSD lane{}, requests of {}, depth {}, {}", to_string(pattern),
                     pattern == DrivePattern::mixed ? "s, both at once" : "",
                     format_bytes(static_cast<double>(settings.stripe_bytes)), settings.queue_depth,
                     to_text(io, settings.queue_depth));
}

}  // namespace

std::vector<SpeedFigure> measure_ssd_lanes(const FigureOptions& options) {
  const BenchFiles files(options.ssd);
  const OwnLanes own(files);
  const SsdStore rival_store(files.rival, bench_bytes);
  own.fill(rival_store);
  const SsdStore::Options& settings = own.store().options();
  const bool uring_works = usual_io().method == IoMethod::uring;
  const IoChoice uring = usual_io(), threads = choose_io(IoMethod::threads);
  const auto version = uring_works ? fio_version() : std::nullopt;
  FioJob job;
  job.files = rival_store.files();
  job.bytes = bench_bytes;
  job.block_bytes = settings.stripe_bytes;
  job.depth = settings.queue_depth;
  job.seconds = options.seconds;
  std::unique_ptr<PlainThreads> plain;
  if (!version) plain = std::make_unique<PlainThreads>(job.files, job.block_bytes, job.depth);

  const auto lanes = [&](const IoChoice& io) -> Runner {
    return [&](DrivePattern pattern) { return own.run(io, pattern, options.seconds); };
  };
  std::vector<Runner> runners = {lanes(options.io), [&](DrivePattern pattern) {
                                   return plain ? plain->run(pattern, options.seconds)
                                                : run_fio(job, pattern);
                                 }};
  // The other of the two ways, where there are two.
  const bool own_is_uring = options.io.method == IoMethod::uring;
  if (uring_works) runners.push_back(lanes(own_is_uring ? threads : uring));

  std::vector<SpeedFigure> figures;
  constexpr DrivePattern patterns[] = {DrivePattern::read, DrivePattern::write,
                                       DrivePattern::mixed};
  const bool direct = own.store().warnings().empty();
  for (const DrivePattern pattern : patterns) {
    const auto reached = take_turns(runners, pattern, options.rounds);
    SpeedFigure figure;
    figure.name = fmt::format("ssd/{}", to_string(pattern));
    figure.what = what_of(pattern, own.store(), options.io);
    figure.unit = "GB/s";
    figure.roofline_what =
        version ? *version + ", files of the same size beside them, io_uring, O_DIRECT"
                : fmt::format("{} threads of pread and pwrite", job.depth);
    compare(figure, reached[0], reached[1]);
    if (version && direct) figure.target = 0.95;
    if (!version) {
      figure.note = uring_works ? "fio is not installed (apt-get install fio): no target"
                                : "fio works through io_uring here, which is refused: no target";
    }
    if (!direct) figure.note = own.store().warnings().front();
    if (pattern == DrivePattern::mixed && figure.note.empty()) {
      const DriveThroughput &last_own = reached[0].back(), &last_rival = reached[1].back();
      figure.note = fmt::format(
          "last round: {:.2f} read + {:.2f} written, roofline {:.2f} + {:.2f}", last_own.read / 1e9,
          last_own.write / 1e9, last_rival.read / 1e9, last_rival.write / 1e9);
    }
    figures.push_back(std::move(figure));
    if (!uring_works) continue;
    SpeedFigure both;
    both.name = fmt::format("ssd/{}-threads", to_string(pattern));
    both.what = what_of(pattern, own.store(), threads);
    both.unit = "GB/s";
    both.roofline_what = "the same lanes over io_uring";
    compare(both, reached[own_is_uring ? 2 : 0], reached[own_is_uring ? 0 : 2]);
    both.target = 0.85;
    figures.push_back(std::move(both));
  }
  return figures;
}

}  // namespace spillway
