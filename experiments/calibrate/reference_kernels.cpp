#include "experiments/calibrate/reference_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "base/errors.hpp"
#include "exec/cpu/adam.hpp"
#include "exec/cpu/thread_pool.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/executor.hpp"
#include "exec/store/chunk_table.hpp"
#include "exec/store/ssd_store.hpp"
#include "experiments/calibrate/kernel_bench.hpp"
#include "experiments/calibrate/sampler.hpp"
#include "experiments/calibrate/scratch_folder.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t reference_mebi = std::uint64_t{1} << 20;
constexpr std::uint64_t reference_side = 64 * reference_mebi;  // more than a last-level cache
constexpr std::uint64_t reference_copy = 8 * reference_mebi;
constexpr int copies_in_reference = 32, updates_in_reference = 32;
constexpr std::int64_t updated_elements = 1 << 20;
constexpr std::uint64_t reference_transfer = 32 * reference_mebi;

// Two runs of a test file, which transfers use in turn.
class ReferenceFile {
 public:
  ReferenceFile(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                const Arena& memory)
      : checksums_({}, reference_mebi, 2 * reference_transfer), memory_(memory) {
    std::vector<std::filesystem::path> paths;
    for (const auto& directory : directories)
      paths.push_back(folders_.emplace_back(directory).path());
    SsdStoreOptions options;
    options.make_ring = io.make_ring;
    options.chunks = &checksums_;
    store_.emplace(paths, 2 * reference_transfer, options);
    lane_.emplace(*store_);
    lane_->register_memory(memory.span());
    // Blocks that were never written may be read faster than the drive reads.
    for (int half = 0; half < 2; ++half) write();
    lane_->sync();
  }
  void read() { lane_->read(turn(), memory_.data(), reference_transfer); }
  void write() { lane_->write(turn(), memory_.data(), reference_transfer); }

 private:
  std::uint64_t turn() { return at_ = reference_transfer - at_; }

  ChunkTable checksums_;
  const Arena& memory_;
  std::vector<ScratchFolder> folders_;
  std::optional<SsdStore> store_;
  std::optional<SsdStore::Channel> lane_;
  std::uint64_t at_ = 0;
};

void copy_in_turn(const Arena& from, const Arena& to, int count) {
  for (int i = 0; i < count; ++i) {
    const std::uint64_t at = static_cast<std::uint64_t>(i) * reference_copy % reference_side;
    std::memcpy(to.data() + at, from.data() + at, reference_copy);
  }
}

}  // namespace

struct ReferenceKernels::Work {
  Work(const std::vector<std::filesystem::path>& directories, const IoChoice& io)
      : drives(directories.size()) {
    if (!directories.empty()) file.emplace(directories, io, there);
    std::memset(here.data(), 0, here.size());
  }

  // What is timed, in the order in which it is.
  struct Reference {
    const char* kind;
    std::string shape;
    std::function<std::int64_t()> run;  // nanoseconds
  };

  template <class Run>
  static std::function<std::int64_t()> timed(Run run) {
    return [run] {
      const std::int64_t start = now_ns();
      run();
      return now_ns() - start;
    };
  }

  std::vector<Reference> all(bool with_drives) {
    std::vector<Reference> references;
    const std::string shape = fmt::format("bytes={},drives={}", reference_transfer, drives);
    if (file && with_drives) {
      references.push_back({"read", shape, timed([this] { file->read(); })});
      references.push_back({"write", shape, timed([this] { file->write(); })});
    }
    // First what finds least in the caches, so that the others find the same with drives or
    // without.
    references.push_back(
        {"copies", fmt::format("bytes={},times={},threads=2", reference_copy, copies_in_reference),
         timed([this] { copy_both_ways(); })});
    references.push_back({"compute", "gpt-small,b2,T128,fp32,forward+backward,twice",
                          [this] { return layer.run(); }});
    references.push_back({"adam",
                          fmt::format("params={},times={}", updated_elements, updates_in_reference),
                          timed([this] { update(); })});
    references.push_back({"copy",
                          fmt::format("bytes={},times={}", reference_copy, copies_in_reference),
                          timed([this] { copy_in_turn(here, there, copies_in_reference); })});
    return references;
  }

  void update() {
    constexpr std::uint64_t state_bytes = 5 * updated_elements * 4;
    const TensorLayout tensor{"reference", 1024, updated_elements / 1024, 0, true};
    const AdamStep step;
    for (int i = 0; i < updates_in_reference; ++i) {
      const auto state = static_cast<std::uint64_t>(i) % (reference_side / state_bytes);
      float* const p = reinterpret_cast<float*>(here.data() + state * state_bytes);
      adamw_update_unit(pool, p, p + updated_elements, p + 2 * updated_elements,
                        p + 3 * updated_elements, nullptr, p + 4 * updated_elements, 0,
                        updated_elements, {tensor}, step);
    }
  }

  // Each thread in a half of the copies' places, so that neither finds bytes in the caches.
  void copy_both_ways() {
    std::thread other([this] { copy_in_turn(back_from, back_to, copies_in_reference); });
    copy_in_turn(here, there, copies_in_reference);
    other.join();
  }

  std::size_t drives;
  Arena here{reference_side, "reference kernels"}, there{reference_side, "reference kernels"},
      back_from{reference_side, "reference kernels"}, back_to{reference_side, "reference kernels"};
  ReferenceLayer layer;
  ThreadPool pool{1};
  std::optional<ReferenceFile> file;
};

ReferenceKernels::ReferenceKernels(const std::vector<std::filesystem::path>& directories,
                                   const IoChoice& io)
    : work_(std::make_unique<Work>(directories, io)) {}
ReferenceKernels::~ReferenceKernels() = default;

std::vector<KernelTime> ReferenceKernels::take(int rounds, bool with_drives) {
  const std::vector<Work::Reference> references = work_->all(with_drives);
  std::vector<std::vector<std::int64_t>> samples(references.size());
  // After other work the first round takes up to 15 % longer, which weighs more in few rounds.
  for (const Work::Reference& one : references) one.run();
  for (int round = 0; round < std::max(rounds, 1); ++round) {
    for (std::size_t i = 0; i < references.size(); ++i) samples[i].push_back(references[i].run());
  }
  std::vector<KernelTime> times;
  for (std::size_t i = 0; i < references.size(); ++i)
    times.push_back(kernel_time(references[i].kind, references[i].shape, 0, std::move(samples[i])));
  return times;
}

std::vector<KernelTime> ReferenceKernels::before_training() {
  constexpr std::chrono::seconds still_valid{1};
  if (!latest_.empty() && std::chrono::steady_clock::now() - ended_ < still_valid) return latest_;
  return take(reference_rounds);
}

std::vector<KernelTime> ReferenceKernels::after_training() {
  latest_ = take(reference_rounds);
  ended_ = std::chrono::steady_clock::now();
  return latest_;
}

std::vector<KernelTime> joined(const std::vector<KernelTime>& first,
                               const std::vector<KernelTime>& second) {
  std::vector<KernelTime> all;
  for (const KernelTime& one : first) {
    std::vector<std::int64_t> samples = one.samples_ns;
    for (const KernelTime& other : second) {
      if (other.kind == one.kind && other.shape == one.shape)
        samples.insert(samples.end(), other.samples_ns.begin(), other.samples_ns.end());
    }
    all.push_back(kernel_time(one.kind, one.shape, 0, std::move(samples)));
  }
  return all;
}

}  // namespace spillway
