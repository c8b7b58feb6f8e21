#include "experiments/calibrate/calibrate.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/cpu/adam.hpp"
#include "exec/cpu/thread_pool.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/available_memory.hpp"
#include "exec/run/clipping.hpp"
#include "exec/run/executor.hpp"
#include "experiments/calibrate/calibrate_briefly.hpp"
#include "experiments/calibrate/calibrate_gpu.hpp"
#include "experiments/calibrate/drive_bench.hpp"
#include "experiments/calibrate/kernel_bench.hpp"
#include "experiments/calibrate/normal_priority.hpp"
#include "experiments/calibrate/sampler.hpp"
#include "experiments/calibrate/speed_gauge.hpp"
#include "experiments/calibrate/trials.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t mebi = 1 << 20;
// Beyond a last-level cache, so that copies come from memory.
constexpr std::uint64_t usual_arena_bytes = 96 * mebi, brief_arena_bytes = 64 * mebi;
constexpr int host_figures = 7;  // copies, optimizer, norm, waking

// Hands out runs of an arena in turn, so that each sample works on memory not touched just before.
class Rotation {
 public:
  Rotation(const Arena& arena, std::uint64_t bytes) : arena_(arena), bytes_(bytes) {}
  std::byte* next() {
    if (at_ + bytes_ > arena_.size()) at_ = 0;
    std::byte* const taken = arena_.data() + at_;
    at_ += bytes_;
    return taken;
  }

 private:
  const Arena& arena_;
  std::uint64_t bytes_;
  std::uint64_t at_ = 0;
};

class Calibration {
 public:
  Calibration(const CalibrationOptions& options, const CalibrationProgress& progress,
              const CalibrationNote& note)
      : options_(options),
        progress_(progress),
        note_(note),
        rule_(sampling_rule(options, 2)),
        host_(options.brief ? brief_arena_bytes : usual_arena_bytes, "the host side of copies"),
        gpu_(host_.size(), "the gpu side of copies") {}

  Machine run() {
    describe();
    const std::vector<Problem> problems = problems_to_time();  // refused before any measurement
    planned_ = host_figures + drive_sets_figures(options_) + (options_.brief ? 0 : 2 + most_trials);
    for (const Problem& problem : problems)
      planned_ += kernel_timings(problem, rule_, !options_.brief);
    measure_processor(problems);
    wake_up();
    const NormalPriority normal(true);
    if (!options_.ssd.empty()) {
      const auto next_of_drives = [this](const std::string& what) {
        if (gauge_) gauge_->take_with_drives();
        next(what);
      };
      measure_drives_of(options_, rule_, host_, machine_, next_of_drives, note_);
    }
    if (!gauge_) return machine_;
    next("reference kernels");
    gauge_->finish(machine_);
    machine_.trials = run_trials(
        options_, machine_, gauge_->kernels(), [this](const std::string& what) { next(what); },
        note_);
    return machine_;
  }

 private:
  // Kernels, copies, the optimizer; at normal priority, as when training unthrottled.
  void measure_processor(const std::vector<Problem>& problems) {
    const NormalPriority normal(true);
    if (!options_.brief) {
      next("reference kernels");
      gauge_.emplace(options_.ssd, options_.io);
    }
    kernels(problems);
    copies();
    optimizer();
  }

  void next(const std::string& what) { progress_(what, done_++, planned_); }
  void source(const char* key, const std::string& text) { machine_.sources[key] = text; }
  // The rule of figures that the reference of this kind goes with.
  SamplingRule rule(const char* reference) {
    return gauge_ ? gauge_->held(rule_, reference) : rule_;
  }
  // The same of samples that `measure` takes beside other work.
  std::vector<std::int64_t> held(const char* reference,
                                 const std::function<std::vector<std::int64_t>()>& measure) {
    return gauge_ ? gauge_->held(reference, measure) : measure();
  }
  const KernelTime& keep(KernelTime time) { return machine_.kernels.emplace_back(std::move(time)); }

  void describe() {
    char name[256] = "this machine";
    gethostname(name, sizeof(name) - 1);
    machine_.name = name;
    machine_.description =
        fmt::format("measured by spillway calibrate {} with the CPU backend", SPILLWAY_VERSION);
    machine_.gpu.is_cpu = true;
    const std::uint64_t available = available_memory();
    machine_.gpu.memory = round_down(available / 4, buffer_alignment);
    machine_.host.memory = round_down(available / 2, buffer_alignment);
    machine_.host.cores = static_cast<double>(std::max(1u, std::thread::hardware_concurrency()));
    source("gpu.memory", "a quarter of the memory available when calibrated");
    source("host.memory", "half of the memory available when calibrated");
  }

  std::vector<Problem> problems_to_time() const {
    std::vector<Problem> problems;
    for (const std::int64_t micro_batch : options_.micro_batches)
      problems.push_back(problem_of(micro_batch));
    return options_.brief ? brief_problems(std::move(problems), options_.threads) : problems;
  }

  void kernels(const std::vector<Problem>& problems) {
    for (const Problem& problem : problems) {
      for (KernelTime& time : time_kernels(
               problem, rule("compute"), [this](const std::string& what) { next(what); },
               options_.threads, !options_.brief)) {
        if (time.kind == to_string(TaskKind::forward) && !time.shape.ends_with(in_caches_suffix)) {
          machine_.gpu.flops = std::max(machine_.gpu.flops, time.flops / seconds_of(time));
        }
        keep(std::move(time));
      }
    }
    source("gpu.flops", "the fastest measured layer forward; kernels are timed by shape");
  }

  Problem problem_of(std::int64_t micro_batch) const {
    Problem problem;
    problem.model = options_.model;
    problem.machine = machine_;
    problem.workload = {micro_batch, micro_batch, options_.sequence, options_.precision,
                        GradientWidth::automatic};
    problem.validate();
    return problem;
  }

  void copies() {
    machine_.pcie.h2d = one_way("h2d", host_, gpu_);
    machine_.pcie.d2h = one_way("d2h", gpu_, host_);
    // Both ways at once, on two threads: what the memory gives in all.
    constexpr std::uint64_t bytes = 8 * mebi;
    next("copies both ways at once");
    Rotation from(host_, bytes), to(gpu_, bytes), back_from(gpu_, bytes), back_to(host_, bytes);
    const auto both_ways = [&] {
      return beside(
          [&] { std::memcpy(back_to.next(), back_from.next(), bytes); },
          [&] { return sample_ns(rule_, [&] { std::memcpy(to.next(), from.next(), bytes); }); });
    };
    const KernelTime& both = keep(kernel_time("h2d", fmt::format("bytes={},beside=d2h", bytes), 0,
                                              held("copies", both_ways)));
    machine_.host.bandwidth = std::max(2 * 2 * static_cast<double>(bytes) / seconds_of(both),
                                       2 * std::max(machine_.pcie.h2d, machine_.pcie.d2h));
    source("host.bandwidth", "two threads copying at once, each byte read and written");
  }

  double one_way(const char* kind, const Arena& source_arena, const Arena& target_arena) {
    next(fmt::format("copies {}", kind));
    std::vector<std::pair<double, double>> points;
    for (const std::uint64_t bytes : {mebi / 16, mebi, 4 * mebi, 16 * mebi}) {
      Rotation from(source_arena, bytes), to(target_arena, bytes);
      const KernelTime& time = keep(kernel_time(
          kind, fmt::format("bytes={}", bytes), 0,
          sample_ns(rule("copy"), [&] { std::memcpy(to.next(), from.next(), bytes); })));
      points.emplace_back(static_cast<double>(bytes), seconds_of(time));
    }
    const LatencyAndRate fit = fit_latency_and_rate(points);
    machine_.pcie.latency_ns =
        std::max(machine_.pcie.latency_ns, static_cast<std::int64_t>(fit.latency_seconds * 1e9));
    source(kind == std::string("h2d") ? "pcie.h2d" : "pcie.d2h",
           "memcpy of 64 KiB to 16 MiB on one thread");
    return fit.rate;
  }

  void optimizer() {
    constexpr std::int64_t elements = 1 << 20;
    constexpr std::uint64_t state_bytes = 5 * elements * 4;  // master, m, v, gradient, parameters
    const TensorLayout tensor{"sample", 1024, elements / 1024, 0, true};
    AdamStep step;
    const bool wide = options_.precision == Precision::fp32;
    std::memset(host_.data(), 0, host_.size());
    ThreadPool pool(options_.threads);
    Rotation state(host_, state_bytes);
    const auto update = [&] {
      float* const p = reinterpret_cast<float*>(state.next());
      const auto update_to = [&](auto* parameters) {
        adamw_update_unit(pool, p, p + elements, p + 2 * elements, p + 3 * elements, nullptr,
                          parameters, 0, elements, {tensor}, step);
      };
      float* const parameters = p + 4 * elements;
      wide ? update_to(parameters) : update_to(reinterpret_cast<bf16*>(parameters));
    };
    next("optimizer");
    const KernelTime& alone = keep(kernel_time("optimizer", fmt::format("params={}", elements), 0,
                                               sample_ns(rule("adam"), update)));
    machine_.host.adam_params_per_second = machine_.gpu.adam_params_per_second =
        static_cast<double>(elements) / seconds_of(alone);
    machine_.host.adam_cores = options_.threads;
    // Master, m, v read and written and the gradient read, in fp32; the parameter written.
    machine_.host.adam_bytes_per_param = wide ? 28 + 4 : 28 + 2;
    source("host.adam_rate",
           fmt::format("AdamW, threads: {}, 2^20 elements, {}-bit parameters, memory not in cache",
                       options_.threads, wide ? 32 : 16));
    machine_.host.core_bandwidth =
        std::max(2 * std::max(machine_.pcie.h2d, machine_.pcie.d2h),
                 machine_.host.adam_params_per_second * machine_.host.adam_bytes_per_param /
                     machine_.host.adam_cores);
    source("host.core_bandwidth", "one thread copying, or one of the optimizer's");
    next("gradient norm");
    double squares = 0;
    std::vector<double> sums(static_cast<std::size_t>(square_sums(gradient_norm_sample)));
    keep(kernel_time(
        to_string(TaskKind::gradient_norm), gradient_norm_shape(), 0, sample_ns(rule("adam"), [&] {
          squares += sum_of_squares(pool, sums, reinterpret_cast<const float*>(state.next()),
                                    nullptr, gradient_norm_sample);
        })));
    SPILLWAY_ASSERT(squares >= 0);  // used, so that it is computed
    next("optimizer beside copies");
    constexpr std::uint64_t bytes = 8 * mebi;
    Rotation from(gpu_, bytes);
    std::vector<std::byte> target(bytes);
    const auto beside_copies = [&] {
      return beside([&] { std::memcpy(target.data(), from.next(), bytes); },
                    [&] { return sample_ns(rule_, update); });
    };
    keep(kernel_time("optimizer", fmt::format("params={},beside=copies", elements), 0,
                     held("adam", beside_copies)));
  }

  // From the end of a task on one lane to the start of the next on another, whose thread sleeps
  // meanwhile: a thread that waits shorter than that spins, and is there at once.
  void wake_up() {
    next("waking a lane");
    constexpr std::uint32_t rounds = 121, counted = 101;
    constexpr std::int64_t asleep_ns = 300'000;  // after so long
    std::atomic<std::uint32_t> turn{0};
    std::atomic<std::int64_t> awake_ns{0};
    std::thread other([&] {
      for (std::uint32_t i = 0; i < rounds; ++i) {
        turn.wait(i);
        awake_ns = now_ns();
      }
    });
    std::vector<std::int64_t> samples;
    for (std::uint32_t i = 0; i < rounds; ++i) {
      // This thread works meanwhile, as one does that ends a task.
      for (const std::int64_t since = now_ns(); now_ns() - since < asleep_ns;)
        std::this_thread::yield();
      awake_ns = 0;
      const std::int64_t start = now_ns();
      turn.fetch_add(1);
      turn.notify_one();
      while (awake_ns == 0) std::this_thread::yield();
      samples.push_back(awake_ns - start);
    }
    other.join();
    samples.erase(samples.begin(), samples.end() - counted);
    const KernelTime& time = keep(kernel_time("barrier", "waking a waiting lane", 0, samples));
    machine_.gpu.launch_ns = time.median_ns;
    machine_.pcie.latency_ns += time.median_ns;
    source("gpu.launch", "waking a thread that sleeps");
  }

  const CalibrationOptions& options_;
  const CalibrationProgress& progress_;
  const CalibrationNote& note_;
  SamplingRule rule_;
  std::optional<SpeedGauge> gauge_;  // not of a brief calibration
  Arena host_, gpu_;
  Machine machine_;
  int done_ = 0, planned_ = 0;
};

}  // namespace

Machine calibrate(const CalibrationOptions& options, const CalibrationProgress& progress,
                  const CalibrationNote& note) {
  if (options.gpu) return calibrate_gpu(options, progress, note);
  return Calibration(options, progress, note).run();
}

}  // namespace spillway
