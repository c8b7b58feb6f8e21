#include "experiments/kernel_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/errors.hpp"
#include "exec/cpu_device.hpp"
#include "exec/gpt_init.hpp"
#include "policies/program.hpp"

namespace spillway {

namespace {

// More than the caches of one core and its share of the last level.
constexpr std::uint64_t cache_bytes = std::uint64_t{64} << 20;

// The kernels of a compute task that policies emit, as tasks with everything that decides their
// shape.
std::vector<Task> kernel_tasks(const Problem& problem) {
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
  add(TaskKind::embed_forward, 0);
  add(TaskKind::forward, block);
  add(TaskKind::forward, block).saves = saved_all;
  add(TaskKind::head, 3 * problem.model.head_forward_flops(w.micro_batch, w.sequence));
  add(TaskKind::backward, 2 * block).available = saved_all;
  add(TaskKind::backward, 2 * block + recompute_flops(problem, saved_none, false));
  add(TaskKind::backward, 2 * block + recompute_flops(problem, saved_none, true))
      .recomputes_output = true;
  add(TaskKind::embed_backward, 0);
  return tasks;
}

// Times every kernel of one micro-batch on buffers of its own.
class KernelBench {
 public:
  KernelBench(const Problem& problem, const SamplingRule& rule, int threads)
      : problem_(problem),
        rule_(rule),
        layers_(problem.model.layers),
        device_(problem, bytes_needed(problem), 4096, threads),
        elsewhere_(cache_bytes, "cooling the caches") {
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    carve();
    initial_values(problem.model, 0, 1, block_);
    initial_values(problem.model, layers_, 1, embedding_);
    std::memset(gradient_, 0, gradient_bytes());
    const std::size_t count = checkpoint_bytes(problem) / 4;
    for (std::size_t i = 0; i < count; ++i) input_[i] = normal(random);
    for (std::size_t i = 0; i < count; ++i) upstream_[i] = 1e-3f * normal(random);
    const auto tokens =
        static_cast<std::size_t>(problem.workload.micro_batch * problem.workload.sequence);
    std::uniform_int_distribution<std::int32_t> token(
        0, static_cast<std::int32_t>(problem.model.vocabulary - 1));
    for (std::size_t i = 0; i < tokens; ++i) tokens_.push_back(token(random));
    losses_.resize(static_cast<std::size_t>(problem.workload.micro_batch));
  }

  KernelTime time(const Task& task) {
    const bool is_block = task.kind == TaskKind::forward || task.kind == TaskKind::backward;
    Operands o;
    o.parameters = reinterpret_cast<std::byte*>(is_block ? block_ : embedding_);
    o.gradient = o.head_gradient = reinterpret_cast<std::byte*>(gradient_);
    o.input = reinterpret_cast<std::byte*>(input_);
    o.output = reinterpret_cast<std::byte*>(output_);
    const bool uses_saved = task.saves != saved_none || task.available != saved_none;
    o.saved = uses_saved ? saved_ : nullptr;
    o.activation_gradient = reinterpret_cast<std::byte*>(hidden_);
    o.scratch = scratch_;
    o.tokens = o.targets = tokens_.data();
    o.losses = losses_.data();
    // In-place operands start from the same values each time.
    const float* const start = task.kind == TaskKind::head ? input_ : upstream_;
    const auto prepare = [&] {
      cool_caches();
      std::memcpy(hidden_, start, checkpoint_bytes(problem_));
    };
    return kernel_time(to_string(task.kind), kernel_shape(problem_, task), task.flops,
                       sample_ns(
                           rule_, [&] { device_.compute(task, o); }, prepare));
  }

 private:
  // In training a layer's operands were last touched a whole pass ago, or written by another core:
  // not in this core's caches. Timing a kernel on operands it used just before makes it up to 15 %
  // too fast.
  void cool_caches() {
    std::uint64_t* const words = reinterpret_cast<std::uint64_t*>(elsewhere_.data());
    for (std::uint64_t i = 0; i < elsewhere_.size() / 8; i += 8) words[i] += 1;
  }
  static std::uint64_t unit_bytes(const Problem& problem, std::int64_t unit) {
    return static_cast<std::uint64_t>(unit_elements(problem.model, unit)) * 4;
  }
  std::uint64_t gradient_bytes() const {
    return std::max(unit_bytes(problem_, 0), unit_bytes(problem_, layers_));
  }
  static std::uint64_t scratch_bytes(const Problem& problem) {
    return std::max({forward_scratch_bytes(problem, saved_none),
                     forward_scratch_bytes(problem, saved_all),
                     backward_scratch_bytes(problem, saved_none),
                     backward_scratch_bytes(problem, saved_all), head_scratch_bytes(problem)});
  }
  static std::uint64_t bytes_needed(const Problem& problem) {
    const std::uint64_t block = unit_bytes(problem, 0),
                        embedding = unit_bytes(problem, problem.model.layers);
    return block + embedding + std::max(block, embedding) + 4 * checkpoint_bytes(problem) +
           saved_bytes(problem, saved_all) + scratch_bytes(problem) + 16 * buffer_alignment;
  }
  void carve() {
    std::byte* at = device_.gpu_memory().data();
    const auto take = [&](std::uint64_t bytes) {
      std::byte* const taken = at;
      at += (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
      return taken;
    };
    block_ = reinterpret_cast<float*>(take(unit_bytes(problem_, 0)));
    embedding_ = reinterpret_cast<float*>(take(unit_bytes(problem_, layers_)));
    gradient_ = reinterpret_cast<float*>(take(gradient_bytes()));
    for (float** buffer : {&input_, &output_, &hidden_, &upstream_}) {
      *buffer = reinterpret_cast<float*>(take(checkpoint_bytes(problem_)));
    }
    saved_ = take(saved_bytes(problem_, saved_all));
    scratch_ = take(scratch_bytes(problem_));
  }

  const Problem& problem_;
  const SamplingRule& rule_;
  std::int64_t layers_;
  CpuDevice device_;
  Arena elsewhere_;
  float *block_ = nullptr, *embedding_ = nullptr, *gradient_ = nullptr;
  float *input_ = nullptr, *output_ = nullptr, *hidden_ = nullptr, *upstream_ = nullptr;
  std::byte *saved_ = nullptr, *scratch_ = nullptr;
  std::vector<std::int32_t> tokens_;
  std::vector<double> losses_;
};

}  // namespace

std::vector<KernelTime> time_kernels(const Problem& problem, const SamplingRule& rule,
                                     const std::function<void(const std::string&)>& before,
                                     int threads) {
  KernelBench bench(problem, rule, threads);
  std::vector<KernelTime> times;
  for (const Task& task : kernel_tasks(problem)) {
    before(fmt::format("{} of {} x {} tokens", to_string(task.kind), problem.workload.micro_batch,
                       problem.workload.sequence));
    times.push_back(bench.time(task));
  }
  SPILLWAY_ASSERT(times.size() == kernels_per_problem);
  return times;
}

}  // namespace spillway
