#include "experiments/calibrate_gpu.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "base/errors.hpp"
#include "exec/arena.hpp"
#include "experiments/drive_bench.hpp"
#include "experiments/link_bench.hpp"
#include "experiments/train_device.hpp"
#include "policies/program.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t drive_memory = std::uint64_t{96} << 20;
constexpr int warm_up = 5;
constexpr std::uint64_t least_cache_bytes = std::uint64_t{64} << 10;

// The kernels of one workload.
struct Part {
  Problem problem;
  std::vector<Task> tasks;
};

class GpuCalibration {
 public:
  GpuCalibration(const CalibrationOptions& options, const CalibrationProgress& progress)
      : options_(with_cache_bytes(options)),
        gpu_(*options_.gpu),
        progress_(progress),
        rule_{options.samples, warm_up, options.most_seconds_per_figure} {}

  Machine run() {
    describe();
    plan();
    memory();
    for (const Part& part : parts_) kernels(part);
    source("gpu.flops", "the fastest measured block forward; kernels are timed by shape");
    measure_links(parts_.front().problem, options_, rule_, machine_,
                  [this](const std::string& what) { next(what); });
    if (!options_.ssd.empty()) {
      const Arena memory(drive_memory, "reads and writes of the SSD");
      measure_drives(options_.ssd, rule_, memory, machine_,
                     [this](const std::string& what) { next(what); });
    }
    return machine_;
  }

 private:
  static CalibrationOptions with_cache_bytes(CalibrationOptions options) {
    std::uint64_t& bytes = options.gpu_sizes.cache_bytes;
    if (bytes == 0) bytes = 3 * options.gpu->info.l2_bytes;
    bytes = std::max(bytes, least_cache_bytes) / buffer_alignment * buffer_alignment;
    return options;
  }
  void next(const std::string& what) { progress_(what, done_++, planned_); }
  void source(const char* key, const std::string& text) { machine_.sources[key] = text; }

  void describe() {
    char name[256] = "this machine";
    gethostname(name, sizeof(name) - 1);
    machine_.name = name;
    machine_.description =
        fmt::format("measured by spillway calibrate {} on {}", SPILLWAY_VERSION, gpu_.info.name);
    machine_.gpu.is_cpu = false;
    machine_.host.memory = available_memory() / 4 * 3 / buffer_alignment * buffer_alignment;
    machine_.host.cores = static_cast<double>(std::max(1u, std::thread::hardware_concurrency()));
    source("host.memory", "three quarters of the memory available when calibrated");
  }

  // All kernels of a micro-batch with 32-bit gradients, and those that differ with 16-bit ones,
  // which a single micro-batch makes.
  void plan() {
    std::set<std::string> known;
    for (const std::int64_t micro_batch : options_.micro_batches) {
      for (const GradientWidth width : {GradientWidth::bits32, GradientWidth::automatic}) {
        Part part;
        part.problem.model = options_.model;
        part.problem.machine = machine_;
        Workload& workload = part.problem.workload;
        workload.batch = workload.micro_batch = micro_batch;
        workload.sequence = options_.sequence;
        workload.precision = options_.precision;
        workload.gradient = width;
        workload.sequences_at_once = options_.sequences_at_once > 0
                                         ? std::min(options_.sequences_at_once, micro_batch)
                                         : micro_batch;
        part.problem.validate();
        part.tasks = stream_kernel_tasks(part.problem, known);
        if (part.tasks.empty()) continue;
        planned_ += static_cast<int>(part.tasks.size());
        parts_.push_back(std::move(part));
      }
    }
    SPILLWAY_ASSERT(!parts_.empty(), "micro-batches to measure");
    planned_ += link_figures(options_) + (options_.ssd.empty() ? 0 : drive_figures);
  }

  void kernels(const Part& part) {
    const auto times = time_stream_kernels(
        part.problem, part.tasks, rule_, [this](const std::string& what) { next(what); },
        gpu_.make_device, options_.gpu_sizes.load_seconds);
    for (const KernelTime& time : times) {
      if (time.kind == to_string(TaskKind::forward) && time.median_ns > 0)
        machine_.gpu.flops = std::max(machine_.gpu.flops, time.flops / seconds_of(time));
      machine_.kernels.push_back(time);
    }
  }

  void memory() {
    std::uint64_t reserved = 0;
    for (const Part& part : parts_)
      reserved = std::max(reserved, gpu_.reserved_bytes(part.problem));
    const std::uint64_t free = gpu_.info.free_memory;
    machine_.gpu.memory = gpu_tier_bytes(free, reserved) / buffer_alignment * buffer_alignment;
    if (machine_.gpu.memory == 0) {
      throw MachineError(
          fmt::format("{}: only {} bytes of its memory are free", gpu_.info.name, free),
          "end other programs on the GPU (nvidia-smi lists them)");
    }
    source("gpu.memory",
           fmt::format("free when calibrated, less {} bytes of workspaces and a margin for "
                       "what CUDA loads",
                       reserved));
  }

  CalibrationOptions options_;
  const GpuUnderTest& gpu_;
  const CalibrationProgress& progress_;
  SamplingRule rule_;
  Machine machine_;
  std::vector<Part> parts_;
  int done_ = 0, planned_ = 0;
};

}  // namespace

Machine calibrate_gpu(const CalibrationOptions& options, const CalibrationProgress& progress) {
  return GpuCalibration(options, progress).run();
}

}  // namespace spillway
