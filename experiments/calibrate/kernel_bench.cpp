#include "experiments/calibrate/kernel_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include "base/errors.hpp"
#include "exec/cpu/bf16.hpp"
#include "exec/cpu/cpu_device.hpp"
#include "exec/cpu/initial_values.hpp"
#include "exec/run/executor.hpp"
#include "experiments/calibrate/kernel_list.hpp"
#include "experiments/calibrate/kernel_memory.hpp"
#include "experiments/calibrate/stream_timer.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/scratch.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

namespace {

// More than the caches of one core and its share of the last level.
constexpr std::uint64_t cpu_cache_bytes = std::uint64_t{64} << 20;
// Random numbers are made once for so many elements, and repeated.
constexpr std::size_t most_random = std::size_t{1} << 22;
// On streams: tasks that only load the GPU, and how many of all follow one another in place.
constexpr double most_loads = 4000;
constexpr std::size_t turns_in_place = 16;
constexpr int most_samples = 2000;
// That take turns there.
constexpr std::size_t layers_on_streams = 2;
// Run on the CPU before a sample, untimed, where something else ran after the one before.
constexpr std::size_t warming_turns = 2;

// So many that together they fill the caches of a CPU.
std::size_t layers_on_cpu(const Problem& problem) {
  return round_up(cpu_cache_bytes, layer_bytes(problem)) / layer_bytes(problem);
}

// Few samples are taken in one pass.
constexpr int most_passes = 6, samples_of_passes = 10;
int passes_of(const SamplingRule& rule) { return rule.least < samples_of_passes ? 1 : most_passes; }

// Of a rule whose samples come in passes.
SamplingRule of_one_pass(SamplingRule rule, int passes) {
  const auto share = [passes](int count) { return (count + passes - 1) / passes; };
  rule.samples = share(rule.samples);
  rule.least = share(rule.least);
  rule.warm_up = std::min(rule.warm_up, 1);
  rule.most_seconds /= passes;
  return rule;
}

// Values as the device takes them.
std::vector<std::byte> as_elements(const std::vector<float>& values, std::uint64_t element_bytes) {
  std::vector<std::byte> bytes(values.size() * element_bytes);
  if (element_bytes == sizeof(float)) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bf16 narrow = to_bf16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &narrow, sizeof narrow);
    }
  }
  return bytes;
}

void fill(std::byte* to, std::uint64_t bytes, const std::vector<std::byte>& pattern) {
  for (std::uint64_t at = 0; at < bytes; at += pattern.size())
    std::memcpy(to + at, pattern.data(), std::min<std::uint64_t>(pattern.size(), bytes - at));
}

std::uint64_t text_bytes_bound(const Problem& problem) {
  // Tokens, their order in two arrays, and targets.
  return static_cast<std::uint64_t>(problem.workload.micro_batch * problem.workload.sequence) * 16 +
         buffer_alignment;
}

// Times every kernel of one micro-batch on buffers of its own.
class KernelBench {
 public:
  // `on_streams`: whether the device has streams; `load_seconds`: how long it is kept busy with a
  // kernel before its times count.
  KernelBench(const Problem& problem, const SamplingRule& rule, const MakeDevice& make_device,
              bool on_streams, double load_seconds)
      : problem_(problem),
        rule_(rule),
        load_seconds_(load_seconds),
        layer_count_(on_streams ? layers_on_streams : layers_on_cpu(problem)),
        device_(make(problem, make_device, layer_count_)),
        memory_(carve(problem, *device_, layer_count_)) {
    SPILLWAY_ASSERT(on_streams == (device_->streams() != nullptr));
    if (on_streams) {
      timer_.emplace(*device_);
    } else {
      elsewhere_ = Arena(cpu_cache_bytes, "cooling the caches");
    }
    write_values();
    write_text();
  }

  // `in_caches`: all turns work on one layer.
  KernelTime time(const Task& task, bool in_caches = false) {
    turn_ = 0;
    layers_in_turn_ = in_caches ? 1 : memory_.layers.size();
    if (is_backward(task.kind) && task.available != saved_none) save(task.available);
    if (task.kind == TaskKind::weight_gradient) make_operands(task);
    return kernel_time(to_string(task.kind),
                       kernel_shape(problem_, task) + (in_caches ? in_caches_suffix : ""),
                       task.flops, timer_ ? sample_on_streams(task) : sample_on_cpu(task));
  }

  // Nanoseconds of tasks in a row on the CPU, on operands in no cache, then on those that are.
  std::int64_t time_row(const std::vector<Task>& tasks) {
    cool_caches();
    std::memcpy(memory_.hidden, memory_.host_upstream, checkpoint_bytes(problem_));
    const std::int64_t start = now_ns();
    for (int pass = 0; pass < 2; ++pass) {
      for (const Task& task : tasks) device_->compute(task, operands(task));
    }
    return now_ns() - start;
  }

 private:
  static std::unique_ptr<Device> make(const Problem& problem, const MakeDevice& make_device,
                                      std::size_t layer_count) {
    MemoryCarver gpu(nullptr), host(nullptr);
    const KernelMemory counted(problem, text_bytes_bound(problem), layer_count, gpu, host);
    static_cast<void>(counted);
    return make_device(problem, gpu.used(), host.used());
  }

  static KernelMemory carve(const Problem& problem, Device& device, std::size_t layer_count) {
    MemoryCarver gpu(device.gpu_memory().data()), host(device.host_memory().data());
    return KernelMemory(problem, text_bytes_bound(problem), layer_count, gpu, host);
  }

  void upload(std::byte* to, const std::vector<float>& values, std::uint64_t element_bytes) {
    device_->upload(static_cast<std::uint64_t>(to - device_->gpu_memory().data()),
                    as_elements(values, element_bytes));
  }

  void write_values() {
    const auto parameters = [&](std::int64_t unit) {
      std::vector<float> values(static_cast<std::size_t>(unit_elements(problem_.model, unit)));
      initial_values(problem_.model, unit, 1, values.data());
      return values;
    };
    const std::vector<float> layer = parameters(0),
                             zeros(KernelMemory::gradient_bytes(problem_) / sizeof(float));
    for (const LayerMemory& one : memory_.layers) {
      upload(one.parameters, layer, problem_.parameter_bytes());
      upload(one.gradient, zeros, sizeof(float));
    }
    const auto upload_unit = [&](std::byte* to, std::int64_t unit) {
      upload(to, parameters(unit), problem_.parameter_bytes());
    };
    upload_unit(memory_.embedding, embedding_unit(problem_.model));
    if (!problem_.model.tied) upload_unit(memory_.head, head_unit(problem_.model));
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    const std::uint64_t bytes = checkpoint_bytes(problem_);
    std::vector<float> values(std::min(bytes / problem_.activation_bytes(), most_random));
    for (float& value : values) value = normal(random);
    fill(memory_.host_input, bytes, as_elements(values, problem_.activation_bytes()));
    device_->upload(static_cast<std::uint64_t>(memory_.input - device_->gpu_memory().data()),
                    {memory_.host_input, bytes});
    for (float& value : values) value = 1e-3f * normal(random);
    fill(memory_.host_upstream, bytes, as_elements(values, problem_.activation_bytes()));
    const NoiseKey noise = step_noise_key(1, 1);
    std::memcpy(memory_.host_noise, &noise, sizeof noise);
  }

  void write_text() {
    std::mt19937_64 random(11);
    std::uniform_int_distribution<std::int32_t> token(
        0, static_cast<std::int32_t>(problem_.model.vocabulary - 1));
    const std::int64_t rows = problem_.workload.micro_batch * problem_.workload.sequence;
    for (std::int64_t i = 0; i < rows; ++i) tokens_.push_back(token(random));
    if (!timer_) return;
    Streams& streams = timer_->streams();
    SPILLWAY_ASSERT(streams.text_bytes(rows, false) <= text_bytes_bound(problem_));
    MicroBatchText text;
    text.tokens = text.targets = tokens_.data();
    text.sequences = problem_.workload.micro_batch;
    text.sequence_length = problem_.workload.sequence;
    text.counted_tokens = problem_.workload.tokens_per_step();
    streams.stage_text(text, memory_.host_text);
  }

  Operands operands(const Task& task, std::size_t turn = 0) const {
    const bool is_layer = is_layer_pass(task.kind);
    const bool uses_saved = task.saves != saved_none || task.available != saved_none;
    const LayerMemory& layer = memory_.layers[turn % layers_in_turn_];
    Operands o;
    o.parameters = is_layer                      ? layer.parameters
                   : task.kind == TaskKind::head ? memory_.head
                                                 : memory_.embedding;
    o.gradient = layer.gradient;
    if (trained_elements(problem_.model, head_unit(problem_.model)) > 0)
      o.head_gradient = layer.gradient;
    o.step_noise = reinterpret_cast<const NoiseKey*>(memory_.host_noise);
    o.input = memory_.input;
    o.output = memory_.output;
    o.saved = uses_saved ? layer.saved : nullptr;
    o.weight_operands = layer.weight_operands;
    o.activation_gradient = memory_.hidden;
    o.scratch = memory_.scratch;
    o.tokens = o.targets = tokens_.data();
    o.text = timer_ ? memory_.host_text : nullptr;
    o.losses = reinterpret_cast<double*>(memory_.host_losses);
    o.gradient_square_sum = reinterpret_cast<double*>(memory_.host_squares);
    return o;
  }

  // Makes the activations that a backward pass finds.
  void save(SavedMask mask) {
    Task task;
    task.kind = TaskKind::forward;
    task.lane = Lane::gpu_compute;
    task.layer = task.micro_batch = 0;
    task.saves = mask;
    for (std::size_t turn = 0; turn < layers_in_turn_; ++turn)
      device_->compute(task, operands(task, turn));
    if (timer_) timer_->finish();
  }

  // Makes what the gradient of the weights is made of.
  void make_operands(Task task) {
    task.kind = TaskKind::input_gradient;
    task.first_micro_batch = false;
    for (std::size_t turn = 0; turn < layers_in_turn_; ++turn) {
      std::memcpy(memory_.hidden, start_of(task), checkpoint_bytes(problem_));
      device_->compute(task, operands(task, turn));
    }
  }

  // In-place operands start from the same values each time.
  const std::byte* start_of(const Task& task) const {
    return task.kind == TaskKind::head ? memory_.host_input : memory_.host_upstream;
  }

  // One layer after the other, as in training: a kernel that is timed on operands which it used
  // just before is up to 15 % too fast, and one whose scratch memory was swept from the caches 5 %
  // too slow.
  std::vector<std::int64_t> sample_on_cpu(const Task& task) {
    const bool is_layer = is_layer_pass(task.kind);
    Task other = task;
    if (!is_layer) {
      other = Task();
      other.kind = TaskKind::forward;
      other.lane = Lane::gpu_compute;
      other.layer = other.micro_batch = 0;
    }
    return sample_ns(
        rule_, [&] { device_->compute(task, operands(task, turn_)); },
        [&] {
          // A single layer is larger than the caches, and takes so long that what is in them at its
          // beginning does not matter.
          const bool warms = memory_.layers.size() > 1 && (rule_.slowness || !is_layer);
          for (std::size_t i = 0; warms && i < warming_turns; ++i) {
            std::memcpy(memory_.hidden, start_of(other), checkpoint_bytes(problem_));
            device_->compute(other, operands(other, ++turn_));
          }
          std::memcpy(memory_.hidden, start_of(task), checkpoint_bytes(problem_));
          ++turn_;
        });
  }

  // Task after task, as in training: issued ahead as far as the host gets, at the clocks that the
  // GPU keeps up under this load.
  std::vector<std::int64_t> sample_on_streams(const Task& task) {
    const double seconds =
        std::max(1e-9 * static_cast<double>(run_in_a_row(task, 0, 2).back()), 1e-7);
    const auto loads = static_cast<std::size_t>(
        std::clamp(load_seconds_ / seconds, static_cast<double>(rule_.warm_up), most_loads));
    const double left = rule_.most_seconds / seconds - static_cast<double>(loads);
    const auto samples = static_cast<std::size_t>(
        std::clamp(left, static_cast<double>(rule_.least),
                   static_cast<double>(std::clamp(rule_.samples, rule_.least, most_samples))));
    return run_in_a_row(task, loads, samples);
  }

  std::vector<std::int64_t> run_in_a_row(const Task& task, std::size_t loads, std::size_t samples) {
    timer_->clear();
    for (std::size_t turn = 0; turn < loads; ++turn) {
      // Values that were worked on in place again and again would leave the range of numbers.
      if (turn % turns_in_place == 0) restart(task);
      device_->compute(task, operands(task, turn));
    }
    restart(task);
    std::vector<std::size_t> pieces;
    for (std::size_t turn = loads; turn < loads + samples; ++turn)
      pieces.push_back(timer_->issue_task(task, operands(task, turn)));
    timer_->finish();
    std::vector<std::int64_t> times;
    for (const std::size_t piece : pieces) times.push_back(timer_->duration(piece));
    return times;
  }

  // Brings the values that the task works on in place, between two tasks.
  void restart(const Task& task) {
    Task nothing;
    nothing.lane = Lane::gpu_compute;
    timer_->wait(Lane::pcie_h2d, timer_->issue(nothing, [] {}));
    timer_->wait(Lane::gpu_compute, timer_->issue_copy(Lane::pcie_h2d, memory_.hidden,
                                                       start_of(task), checkpoint_bytes(problem_)));
  }

  void cool_caches() {
    std::uint64_t* const words = reinterpret_cast<std::uint64_t*>(elsewhere_.data());
    for (std::uint64_t i = 0; i < elsewhere_.size() / 8; i += 8) words[i] += 1;
  }

  const Problem& problem_;
  const SamplingRule& rule_;
  double load_seconds_;
  std::size_t layer_count_, layers_in_turn_ = layer_count_, turn_ = 0;
  std::unique_ptr<Device> device_;
  KernelMemory memory_;
  std::optional<StreamTimer> timer_;  // of a device with streams
  Arena elsewhere_;
  std::vector<std::int32_t> tokens_;
};

// Kernels in the order in which they are timed, each by itself; in several passes over all of them,
// so that a machine which changes its speed within a second is as fast for one as for another.
std::vector<KernelTime> time_tasks(const Problem& problem, const std::vector<TimedKernel>& kernels,
                                   const std::function<void(const std::string&)>& before,
                                   KernelBench& bench, int passes) {
  std::vector<KernelTime> times;
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      const auto& [task, in_caches] = kernels[i];
      before(fmt::format("{} of {} x {} tokens{}", to_string(task.kind),
                         problem.workload.micro_batch, problem.workload.sequence,
                         in_caches ? " in caches" : ""));
      KernelTime time = bench.time(task, in_caches);
      if (pass == 0) {
        times.push_back(std::move(time));
        continue;
      }
      std::vector<std::int64_t> samples = times[i].samples_ns;
      samples.insert(samples.end(), time.samples_ns.begin(), time.samples_ns.end());
      times[i] = kernel_time(time.kind, time.shape, time.flops, std::move(samples));
    }
  }
  return times;
}

}  // namespace

int kernel_timings(const Problem& problem, const SamplingRule& rule, bool in_caches) {
  std::ptrdiff_t count = 0;
  for (const auto& [one, tasks] : kernels_by_width(problem))
    count += std::ssize(timed_kernels(one, tasks, in_caches));
  return static_cast<int>(count) * passes_of(rule);
}

std::vector<KernelTime> time_kernels(const Problem& problem, const SamplingRule& rule,
                                     const std::function<void(const std::string&)>& before,
                                     int threads, bool in_caches) {
  const MakeDevice cpu = [threads](const Problem& p, std::uint64_t gpu, std::uint64_t host) {
    return std::make_unique<CpuDevice>(p, gpu, host, threads);
  };
  const int passes = passes_of(rule);
  const SamplingRule of_pass = of_one_pass(rule, passes);
  std::vector<KernelTime> times;
  for (const auto& [one, tasks] : kernels_by_width(problem)) {
    KernelBench bench(one, of_pass, cpu, false, 0);
    for (KernelTime& time :
         time_tasks(one, timed_kernels(one, tasks, in_caches), before, bench, passes))
      times.push_back(std::move(time));
  }
  return times;
}

StreamKernelMemory stream_kernel_memory(const Problem& problem) {
  MemoryCarver gpu(nullptr), host(nullptr);
  const KernelMemory counted(problem, text_bytes_bound(problem), layers_on_streams, gpu, host);
  static_cast<void>(counted);
  return {gpu.used(), host.used()};
}

std::vector<Task> stream_kernel_tasks(const Problem& problem, std::set<std::string>& known) {
  return new_tasks(problem, kernel_tasks(problem, true), known);
}

struct ReferenceLayer::State {
  // Fixed: times of other programs' references are compared with those taken here.
  static Problem fixed() {
    Problem problem;
    problem.machine.gpu.is_cpu = true;
    problem.model = load_model("gpt-small");
    problem.workload = {2, 2, 128, Precision::fp32, GradientWidth::bits32};
    return problem;
  }
  Problem problem = fixed();
  SamplingRule rule;
  KernelBench bench{problem, rule,
                    [](const Problem& p, std::uint64_t gpu, std::uint64_t host) {
                      return std::make_unique<CpuDevice>(p, gpu, host, 1);
                    },
                    false, 0};
  std::vector<Task> passes;
};

ReferenceLayer::ReferenceLayer() : state_(std::make_unique<State>()) {
  for (const Task& task : kernel_tasks(state_->problem, false)) {
    const bool forward = task.kind == TaskKind::forward && task.saves == saved_none;
    const bool backward =
        task.kind == TaskKind::backward && task.available == saved_none && !task.recomputes_output;
    if (forward || backward) state_->passes.push_back(task);
  }
}
ReferenceLayer::~ReferenceLayer() = default;

std::int64_t ReferenceLayer::run() { return state_->bench.time_row(state_->passes); }

std::vector<KernelTime> time_stream_kernels(const Problem& problem, const std::vector<Task>& tasks,
                                            const SamplingRule& rule,
                                            const std::function<void(const std::string&)>& before,
                                            const MakeDevice& make_device, double load_seconds) {
  KernelBench bench(problem, rule, make_device, true, load_seconds);
  return time_tasks(problem, timed_kernels(problem, tasks, false), before, bench, 1);
}

}  // namespace spillway
