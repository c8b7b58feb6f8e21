#include "experiments/calibrate/calibrate_gpu.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "base/units.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/available_memory.hpp"
#include "experiments/calibrate/calibrate_briefly.hpp"
#include "experiments/calibrate/drive_bench.hpp"
#include "experiments/calibrate/link_bench.hpp"
#include "experiments/calibrate/shape_bench.hpp"
#include "experiments/calibrate/statistics.hpp"
#include "experiments/train/train_device.hpp"
#include "policies/schedule/program.hpp"

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
  GpuCalibration(const CalibrationOptions& options, const CalibrationProgress& progress,
                 const CalibrationNote& note)
      : options_(with_cache_bytes(options)),
        gpu_(*options_.gpu),
        progress_(progress),
        note_(note),
        rule_(sampling_rule(options, warm_up)) {}

  Machine run() {
    const OnNode placed(gpu_.place);
    describe();
    require_memory();
    plan();
    memory();
    if (chooses_gelu_backward()) gelu_backward();
    for (const Part& part : parts_) kernels(part);
    source("gpu.flops", "the fastest measured layer forward; kernels are timed by shape");
    if (measures_shapes()) shapes();
    measure_links(parts_.front().problem, options_, rule_, machine_,
                  [this](const std::string& what) { next(what); });
    if (!options_.ssd.empty()) {
      const Arena memory(drive_memory, "reads and writes of the SSD");
      measure_drives_of(
          options_, rule_, memory, machine_, [this](const std::string& what) { next(what); },
          note_);
    }
    return machine_;
  }

 private:
  static CalibrationOptions with_cache_bytes(CalibrationOptions options) {
    if (options.brief) options.gpu_sizes = brief_gpu_sizes;
    std::uint64_t& bytes = options.gpu_sizes.cache_bytes;
    if (bytes == 0) bytes = 3 * options.gpu->info.l2_bytes;
    bytes = round_down(std::max(bytes, least_cache_bytes), buffer_alignment);
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
    machine_.host.memory = round_down(available_memory() / 4 * 3, buffer_alignment);
    machine_.host.cores = static_cast<double>(std::max(1u, std::thread::hardware_concurrency()));
    source("host.memory", "three quarters of the memory available when calibrated");
  }

  // All kernels of a micro-batch with 32-bit gradients, and those that differ with 16-bit ones,
  // which a single micro-batch makes. Micro-batches that memory has no room for are left out.
  void plan() {
    SPILLWAY_ASSERT(!options_.micro_batches.empty(), "micro-batches to measure");
    std::set<std::string> known;
    std::string last_lack;
    for (const std::int64_t micro_batch : options_.micro_batches) {
      const std::string lack = what_lacks(problem_of(micro_batch, GradientWidth::bits32));
      if (!lack.empty()) {
        last_lack = fmt::format("micro-batches of {} take {}", micro_batch, lack);
        if (note_) note_(last_lack + ": they are left out");
        continue;
      }
      for (const GradientWidth width : {GradientWidth::bits32, GradientWidth::automatic}) {
        Part part{problem_of(micro_batch, width), {}};
        part.tasks = stream_kernel_tasks(part.problem, known);
        if (part.tasks.empty()) continue;
        planned_ += static_cast<int>(part.tasks.size());
        parts_.push_back(std::move(part));
      }
    }
    if (parts_.empty()) {
      throw FitError(fmt::format("{}: nothing can be measured: {}", gpu_.info.name, last_lack),
                     "give smaller " + Setting{"micro_batches"} + ", a shorter " +
                         Setting{"sequence"} + ", fewer " + Setting{"sequences_at_once"} +
                         ", or end other programs on the GPU (nvidia-smi lists them)");
    }
    planned_ += (chooses_gelu_backward() ? 1 : 0) + (measures_shapes() ? shape_figures : 0) +
                link_figures(options_) + drive_sets_figures(options_);
  }

  Problem problem_of(std::int64_t micro_batch, GradientWidth width) const {
    Problem problem;
    problem.model = options_.model;
    problem.machine = machine_;
    Workload& workload = problem.workload;
    workload.batch = workload.micro_batch = micro_batch;
    workload.sequence = options_.sequence;
    workload.precision = options_.precision;
    workload.gradient = width;
    problem.use_gpu_sequences_at_once(std::min(options_.sequences_at_once, micro_batch));
    problem.validate();
    return problem;
  }

  // Of the memory that measuring the problem's kernels takes, beside what there is of it; empty
  // where nothing lacks.
  std::string what_lacks(const Problem& problem) const {
    const auto text = [](std::uint64_t needed, const char* of, std::uint64_t there) {
      return fmt::format("{} of {}, and {} are free", format_bytes(static_cast<double>(needed)), of,
                         format_bytes(static_cast<double>(there)));
    };
    const StreamKernelMemory needed = stream_kernel_memory(problem);
    const std::uint64_t free = gpu_.info.free_memory, host = available_memory();
    // Workspaces are asked for only where they can matter: of a size that can be.
    if (needed.gpu > free) return text(needed.gpu, "GPU memory", free);
    const std::uint64_t reserved = gpu_.reserved_bytes(problem);
    if (needed.gpu > gpu_tier_bytes(free, reserved))
      return text(needed.gpu + reserved, "GPU memory, beside a margin for CUDA", free);
    if (needed.host > host) return text(needed.host, "host memory", host);
    return "";
  }

  // Ways to compute GELU's backward round otherwise, so what trains with this file must not choose
  // by what is the faster that day: the file says which it is. A brief measurement is made anew
  // from time to time, so it leaves the usual one.
  bool chooses_gelu_backward() const {
    return !options_.brief && options_.precision == Precision::bf16;
  }

  // What other models and batches take follows from shapes; a brief measurement is for the model
  // at hand.
  bool measures_shapes() const { return !options_.brief && options_.precision == Precision::bf16; }

  void shapes() {
    GpuBenchOptions bench;
    bench.size = options_.gpu_sizes.shapes;
    bench.rounds = options_.samples;
    bench.seconds = options_.gpu_sizes.load_seconds / 5;
    measure_shapes(gpu_, bench, machine_, [this](const std::string& what) { next(what); });
  }

  void gelu_backward() {
    constexpr double least_gain = 0.03;
    next("GELU's backward");
    const Workload& workload = parts_.back().problem.workload;
    const GeluShape shape{workload.sequences_at_once * workload.sequence, options_.model.hidden,
                          options_.model.ffn};
    GpuBenchOptions bench;
    bench.rounds = options_.samples;
    bench.seconds = options_.gpu_sizes.load_seconds / 5;
    std::string all;
    double usual = 0, least = 0;
    for (const GpuTiming& timing : gpu_.make_bench(bench)->gelu_backward(shape)) {
      const double seconds = median(timing.seconds);
      all += fmt::format("{}{} {}", all.empty() ? "" : ", ", timing.name, format_seconds(seconds));
      if (usual == 0) usual = least = seconds;
      if (seconds >= least || seconds >= (1 - least_gain) * usual) continue;
      least = seconds;
      machine_.gpu.gelu_backward = timing.name;
    }
    for (Part& part : parts_) part.problem.machine.gpu.gelu_backward = machine_.gpu.gelu_backward;
    source(
        "gpu.gelu_backward",
        fmt::format("with the product before it, {} rows of {} and {} columns, on {} ({}.{}): {}",
                    shape.rows, shape.hidden, shape.ffn, gpu_.info.name, gpu_.info.major,
                    gpu_.info.minor, all));
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

  void require_memory() const {
    const std::uint64_t free = gpu_.info.free_memory;
    if (gpu_tier_bytes(free, 0) >= buffer_alignment) return;
    throw MachineError(
        fmt::format("{}: only {} bytes of its memory are free", gpu_.info.name, free),
        "end other programs on the GPU (nvidia-smi lists them)");
  }

  void memory() {
    std::uint64_t reserved = 0;
    for (const Part& part : parts_)
      reserved = std::max(reserved, gpu_.reserved_bytes(part.problem));
    const std::uint64_t free = gpu_.info.free_memory;
    machine_.gpu.memory = round_down(gpu_tier_bytes(free, reserved), buffer_alignment);
    source("gpu.memory",
           fmt::format("free when calibrated, less {} bytes of workspaces and a margin for "
                       "what CUDA loads",
                       reserved));
  }

  CalibrationOptions options_;
  const GpuUnderTest& gpu_;
  const CalibrationProgress& progress_;
  const CalibrationNote& note_;
  SamplingRule rule_;
  Machine machine_;
  std::vector<Part> parts_;
  int done_ = 0, planned_ = 0;
};

}  // namespace

Machine calibrate_gpu(const CalibrationOptions& options, const CalibrationProgress& progress,
                      const CalibrationNote& note) {
  return GpuCalibration(options, progress, note).run();
}

}  // namespace spillway
