#include "experiments/kernel_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include "base/errors.hpp"
#include "exec/bf16.hpp"
#include "exec/cpu_device.hpp"
#include "exec/gpt_init.hpp"
#include "experiments/stream_timer.hpp"
#include "policies/program.hpp"

namespace spillway {

namespace {

// More than the caches of one core and its share of the last level.
constexpr std::uint64_t cpu_cache_bytes = std::uint64_t{64} << 20;
// Random numbers are made once for so many elements, and repeated.
constexpr std::size_t most_random = std::size_t{1} << 22;

// The kernels of a compute task that policies emit, as tasks with everything that decides their
// shape; with `groups` also backward passes that recompute one group of tensors.
std::vector<Task> kernel_tasks(const Problem& problem, bool groups) {
  const Workload& w = problem.workload;
  const double block = problem.model.block_forward_flops(w.micro_batch, w.sequence);
  std::vector<Task> tasks;
  const auto add = [&](TaskKind kind, double flops) -> Task& {
    Task task;
    task.kind = kind;
    task.lane = Lane::gpu_compute;
    task.flops = flops;
    task.layer = 0;
    task.micro_batch = 0;
    return tasks.emplace_back(task);
  };
  const auto backward = [&](std::uint8_t available, bool output) -> Task& {
    Task& task = add(TaskKind::backward, 2 * block + recompute_flops(problem, available, output));
    task.available = available;
    task.recomputes_output = output;
    return task;
  };
  add(TaskKind::embed_forward, 0);
  add(TaskKind::forward, block);
  add(TaskKind::forward, block).saves = saved_all;
  add(TaskKind::head, 3 * problem.model.head_forward_flops(w.micro_batch, w.sequence));
  backward(saved_all, false);
  if (groups) {
    for (const std::uint8_t group : recompute_groups)
      backward(static_cast<std::uint8_t>(saved_all & ~group), false);
  }
  backward(saved_none, false);
  backward(saved_none, true);
  add(TaskKind::embed_backward, 0);
  return tasks;
}

// Takes runs of bytes from a tier's memory, or only counts them.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  std::byte* take(std::uint64_t bytes) {
    std::byte* const taken = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
    return taken;
  }
  std::uint64_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::uint64_t used_ = 0;
};

// What the kernels of one micro-batch work on.
struct Memory {
  std::byte *block, *embedding, *gradient, *input, *output, *hidden, *saved, *scratch, *cold;
  std::byte *host_input, *host_upstream, *host_text, *host_losses, *host_squares, *host_cold;

  Memory(const Problem& problem, std::uint64_t text_bytes, std::uint64_t cold_bytes, Carver& gpu,
         Carver& host) {
    const std::int64_t layers = problem.model.layers;
    const std::uint64_t activations = checkpoint_bytes(problem);
    block = gpu.take(parameter_bytes(problem, 0));
    embedding = gpu.take(parameter_bytes(problem, layers));
    gradient = gpu.take(gradient_bytes(problem));
    for (std::byte** buffer : {&input, &output, &hidden}) *buffer = gpu.take(activations);
    saved = gpu.take(saved_bytes(problem, saved_all));
    scratch = gpu.take(scratch_bytes(problem));
    cold = gpu.take(cold_bytes);
    for (std::byte** buffer : {&host_input, &host_upstream}) *buffer = host.take(activations);
    host_text = host.take(text_bytes);
    host_losses = host.take(static_cast<std::uint64_t>(problem.workload.micro_batch) * 8);
    host_squares = host.take(8);
    host_cold = host.take(cold_bytes);
  }

  static std::uint64_t parameter_bytes(const Problem& problem, std::int64_t unit) {
    return static_cast<std::uint64_t>(unit_elements(problem.model, unit)) *
           problem.parameter_bytes();
  }
  static std::uint64_t gradient_bytes(const Problem& problem) {
    return static_cast<std::uint64_t>(
               std::max(unit_elements(problem.model, 0),
                        unit_elements(problem.model, problem.model.layers))) *
           problem.gradient_bytes();
  }
  static std::uint64_t scratch_bytes(const Problem& problem) {
    return std::max({forward_scratch_bytes(problem, saved_none),
                     forward_scratch_bytes(problem, saved_all),
                     backward_scratch_bytes(problem, saved_none),
                     backward_scratch_bytes(problem, saved_all), head_scratch_bytes(problem)});
  }
};

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
  // `cold_bytes`: copied to a device with streams before each sample.
  KernelBench(const Problem& problem, const SamplingRule& rule, const MakeDevice& make_device,
              std::uint64_t cold_bytes)
      : problem_(problem),
        rule_(rule),
        cold_bytes_(cold_bytes),
        device_(make(problem, make_device, cold_bytes)),
        memory_(carve(problem, *device_, cold_bytes)) {
    if (device_->streams()) {
      timer_.emplace(*device_);
    } else {
      elsewhere_ = Arena(cpu_cache_bytes, "cooling the caches");
    }
    write_values();
    write_text();
  }

  KernelTime time(const Task& task) {
    if (task.kind == TaskKind::backward && task.available != saved_none) save(task.available);
    const Operands o = operands(task);
    // In-place operands start from the same values each time.
    const std::byte* const start =
        task.kind == TaskKind::head ? memory_.host_input : memory_.host_upstream;
    std::vector<std::int64_t> samples;
    if (timer_) {
      samples = collect_ns(rule_, [&] { return run_on_streams(task, o, start); });
    } else {
      samples = sample_ns(
          rule_, [&] { device_->compute(task, o); },
          [&] {
            cool_caches();
            std::memcpy(memory_.hidden, start, checkpoint_bytes(problem_));
          });
    }
    return kernel_time(to_string(task.kind), kernel_shape(problem_, task), task.flops,
                       std::move(samples));
  }

 private:
  static std::unique_ptr<Device> make(const Problem& problem, const MakeDevice& make_device,
                                      std::uint64_t cold_bytes) {
    Carver gpu(nullptr), host(nullptr);
    const Memory counted(problem, text_bytes_bound(problem), cold_bytes, gpu, host);
    static_cast<void>(counted);
    return make_device(problem, gpu.used(), host.used());
  }

  static Memory carve(const Problem& problem, Device& device, std::uint64_t cold_bytes) {
    Carver gpu(device.gpu_memory().data()), host(device.host_memory().data());
    return Memory(problem, text_bytes_bound(problem), cold_bytes, gpu, host);
  }

  void upload(std::byte* to, const std::vector<float>& values, std::uint64_t element_bytes) {
    device_->upload(static_cast<std::uint64_t>(to - device_->gpu_memory().data()),
                    as_elements(values, element_bytes));
  }

  void write_values() {
    for (const std::int64_t unit : {std::int64_t{0}, problem_.model.layers}) {
      std::vector<float> values(static_cast<std::size_t>(unit_elements(problem_.model, unit)));
      initial_values(problem_.model, unit, 1, values.data());
      upload(unit == 0 ? memory_.block : memory_.embedding, values, problem_.parameter_bytes());
    }
    const std::uint64_t gradient_bytes = Memory::gradient_bytes(problem_);
    upload(memory_.gradient, std::vector<float>(gradient_bytes / sizeof(float)), sizeof(float));
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
    if (cold_bytes_ > 0) std::memset(memory_.host_cold, 0, cold_bytes_);
  }

  void write_text() {
    std::mt19937_64 random(11);
    std::uniform_int_distribution<std::int32_t> token(
        0, static_cast<std::int32_t>(problem_.model.vocabulary - 1));
    const std::int64_t rows = problem_.workload.micro_batch * problem_.workload.sequence;
    for (std::int64_t i = 0; i < rows; ++i) tokens_.push_back(token(random));
    if (!timer_) return;
    Streams& streams = timer_->streams();
    SPILLWAY_ASSERT(streams.text_bytes(rows) <= text_bytes_bound(problem_));
    streams.stage_text(tokens_.data(), tokens_.data(), rows, memory_.host_text);
  }

  Operands operands(const Task& task) const {
    const bool is_block = task.kind == TaskKind::forward || task.kind == TaskKind::backward;
    const bool uses_saved = task.saves != saved_none || task.available != saved_none;
    Operands o;
    o.parameters = is_block ? memory_.block : memory_.embedding;
    o.gradient = o.head_gradient = memory_.gradient;
    o.input = memory_.input;
    o.output = memory_.output;
    o.saved = uses_saved ? memory_.saved : nullptr;
    o.activation_gradient = memory_.hidden;
    o.scratch = memory_.scratch;
    o.tokens = o.targets = tokens_.data();
    o.text = timer_ ? memory_.host_text : nullptr;
    o.losses = reinterpret_cast<double*>(memory_.host_losses);
    o.gradient_square_sum = reinterpret_cast<double*>(memory_.host_squares);
    return o;
  }

  // Makes the activations that a backward pass finds.
  void save(std::uint8_t mask) {
    Task task;
    task.kind = TaskKind::forward;
    task.lane = Lane::gpu_compute;
    task.layer = task.micro_batch = 0;
    task.saves = mask;
    device_->compute(task, operands(task));
    if (timer_) timer_->finish();
  }

  // The copies that come first give the host time to issue the kernels, which then follow one
  // another as in training.
  std::int64_t run_on_streams(const Task& task, const Operands& o, const std::byte* start) {
    timer_->clear();
    timer_->issue_copy(Lane::pcie_h2d, memory_.hidden, start, checkpoint_bytes(problem_));
    const std::size_t cooled =
        timer_->issue_copy(Lane::pcie_h2d, memory_.cold, memory_.host_cold, cold_bytes_);
    timer_->wait(Lane::gpu_compute, cooled);
    const std::size_t piece = timer_->issue_task(task, o);
    timer_->finish();
    return timer_->duration(piece);
  }

  // In training a layer's operands were last touched a whole pass ago, or written by another core:
  // not in this core's caches. Timing a kernel on operands it used just before makes it up to 15 %
  // too fast.
  void cool_caches() {
    std::uint64_t* const words = reinterpret_cast<std::uint64_t*>(elsewhere_.data());
    for (std::uint64_t i = 0; i < elsewhere_.size() / 8; i += 8) words[i] += 1;
  }

  const Problem& problem_;
  const SamplingRule& rule_;
  std::uint64_t cold_bytes_;
  std::unique_ptr<Device> device_;
  Memory memory_;
  std::optional<StreamTimer> timer_;  // of a device with streams
  Arena elsewhere_;
  std::vector<std::int32_t> tokens_;
};

std::vector<KernelTime> time_tasks(const Problem& problem, const std::vector<Task>& tasks,
                                   const std::function<void(const std::string&)>& before,
                                   KernelBench& bench) {
  std::vector<KernelTime> times;
  for (const Task& task : tasks) {
    before(fmt::format("{} of {} x {} tokens", to_string(task.kind), problem.workload.micro_batch,
                       problem.workload.sequence));
    times.push_back(bench.time(task));
  }
  return times;
}

}  // namespace

std::vector<KernelTime> time_kernels(const Problem& problem, const SamplingRule& rule,
                                     const std::function<void(const std::string&)>& before,
                                     int threads) {
  const MakeDevice cpu = [threads](const Problem& p, std::uint64_t gpu, std::uint64_t host) {
    return std::make_unique<CpuDevice>(p, gpu, host, threads);
  };
  KernelBench bench(problem, rule, cpu, 0);
  std::vector<KernelTime> times = time_tasks(problem, kernel_tasks(problem, false), before, bench);
  SPILLWAY_ASSERT(times.size() == kernels_per_problem);
  return times;
}

std::vector<Task> stream_kernel_tasks(const Problem& problem, std::set<std::string>& known) {
  std::vector<Task> tasks = kernel_tasks(problem, true);
  std::erase_if(tasks, [&](const Task& task) {
    const std::string name = to_string(task.kind) + (" " + kernel_shape(problem, task));
    return !known.insert(name).second;
  });
  return tasks;
}

std::vector<KernelTime> time_stream_kernels(const Problem& problem, const std::vector<Task>& tasks,
                                            const SamplingRule& rule,
                                            const std::function<void(const std::string&)>& before,
                                            const MakeDevice& make_device,
                                            std::uint64_t cache_bytes) {
  KernelBench bench(problem, rule, make_device, cache_bytes);
  return time_tasks(problem, tasks, before, bench);
}

}  // namespace spillway
