#include "experiments/calibrate/link_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/cpu/thread_pool.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/executor.hpp"
#include "experiments/calibrate/stream_timer.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t kibi = 1 << 10, mebi = 1 << 20;
constexpr std::uint64_t smallest_copy = 64 * kibi;
constexpr int other_figures = 11;  // beside copies by size
// Copies in a row, of which a sample is the average: enough that the first and last do not matter.
constexpr int fewest_copies = 4, most_copies = 64;
constexpr int tasks_in_a_row = 64;
constexpr std::uint64_t numbers_bytes = buffer_alignment;

std::vector<std::uint64_t> copy_sizes(const CalibrationOptions& options) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t bytes = smallest_copy; bytes <= options.gpu_sizes.largest_copy; bytes *= 4)
    sizes.push_back(bytes);
  return sizes;
}

// Hands out ranges of a tier's memory in turn, so that each sample works on memory not touched just
// before.
class Turn {
 public:
  Turn(std::span<std::byte> memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes) {
    SPILLWAY_ASSERT(bytes_ <= memory_.size());
  }
  std::byte* next() {
    if (at_ + bytes_ > memory_.size()) at_ = 0;
    std::byte* const taken = memory_.data() + at_;
    at_ += bytes_;
    return taken;
  }

 private:
  std::span<std::byte> memory_;
  std::uint64_t bytes_, at_ = 0;
};

class LinkBench {
 public:
  LinkBench(const Problem& problem, const CalibrationOptions& options, const SamplingRule& rule,
            Machine& machine, const std::function<void(const std::string&)>& next)
      : problem_(problem),
        options_(options),
        rule_(rule),
        machine_(machine),
        next_(next),
        elements_(unit_elements(problem.model, 0)),
        device_(options.gpu->make_device(problem, arena_bytes(), numbers_bytes + arena_bytes())),
        timer_(*device_),
        gpu_(device_->gpu_memory().first(arena_bytes())),
        host_(device_->host_memory().subspan(numbers_bytes, arena_bytes())) {
    // No NaNs, no denormal numbers; every page there.
    std::memset(device_->host_memory().data(), 0, numbers_bytes + arena_bytes());
    for (std::uint64_t at = 0; at < gpu_.size(); at += host_.size())
      device_->upload(at, host_.first(std::min<std::uint64_t>(host_.size(), gpu_.size() - at)));
    const AdamConstants constants = adam_constants(AdamStep{});
    std::memcpy(device_->host_memory().data() + sizeof(double) * 2, &constants, sizeof constants);
  }

  void run() {
    launch();
    waking();
    machine_.pcie.h2d = one_way(Lane::pcie_h2d, "h2d");
    machine_.pcie.d2h = one_way(Lane::pcie_d2h, "d2h");
    both_ways();
    gpu_optimizer();
    host_optimizer();
    host_bandwidth();
  }

 private:
  std::uint64_t arena_bytes() const {
    const std::uint64_t sizes[] = {options_.gpu_sizes.link_bytes, 2 * operand_bytes(),
                                   2 * options_.gpu_sizes.largest_copy,
                                   options_.gpu_sizes.cache_bytes};
    return round_down(*std::max_element(std::begin(sizes), std::end(sizes)), buffer_alignment);
  }
  // Of an update of a layer: master, m, v, gradient, parameters.
  std::uint64_t operand_bytes() const {
    return static_cast<std::uint64_t>(elements_) *
           (12 + problem_.gradient_bytes() + problem_.parameter_bytes());
  }
  void source(const char* key, const std::string& text) { machine_.sources[key] = text; }
  const KernelTime& keep(const std::string& kind, const std::string& shape,
                         std::vector<std::int64_t> samples) {
    return machine_.kernels.emplace_back(kernel_time(kind, shape, 0, std::move(samples)));
  }

  // The times of pieces issued in a row on one lane, as one: from the start of the first to the end
  // of the last.
  Streams::Times span_of(std::size_t first, std::size_t last) {
    return {timer_.times(first).start_ns, timer_.times(last).end_ns};
  }

  Task task_of(TaskKind kind, Lane lane) const {
    Task task;
    task.kind = kind;
    task.lane = lane;
    task.layer = 0;
    task.update = 0;
    task.params = static_cast<std::uint64_t>(elements_);
    task.bytes = task.params * problem_.gradient_bytes();
    return task;
  }

  // An update of task.params elements, or a norm, on memory at `at`.
  Operands operands(std::byte* at, const Task& task) {
    const std::uint64_t elements = task.params;
    auto* const numbers = reinterpret_cast<double*>(device_->host_memory().data());
    Operands o;
    o.optimizer_state = at;
    o.gradient = at + 12 * elements;
    o.parameters = o.gradient + problem_.gradient_bytes() * elements;
    o.gradient_square_sum = numbers;
    o.adam = AdamStep{};
    o.adam_constants = reinterpret_cast<const AdamConstants*>(numbers + 2);
    // The norms lie in the memory of the tier where the gradient is; updates take none here.
    if (task.kind == TaskKind::gradient_norm) {
      o.norms = {
          task.lane == Lane::gpu_compute ? reinterpret_cast<double*>(o.parameters) : numbers + 1,
          1};
    }
    return o;
  }

  // What is issued to gpu.compute after this starts some milliseconds later: enough time to issue.
  std::size_t hold_compute() {
    const std::uint64_t bytes = options_.gpu_sizes.cache_bytes;
    const std::size_t copy =
        timer_.issue_copy(Lane::pcie_h2d, gpu_.data() + gpu_.size() - bytes, host_.data(), bytes);
    timer_.wait(Lane::gpu_compute, copy);
    return copy;
  }

  // Between tasks on one stream that follow one another at once.
  void launch() {
    next_("gaps between kernels");
    Task task = task_of(TaskKind::optimizer, Lane::gpu_compute);
    task.params = element_alignment;
    const Operands o = operands(gpu_.data(), task);
    const KernelTime& time =
        keep("barrier", "from task to task on a stream", collect_ns(rule_, [&] {
               timer_.clear();
               hold_compute();
               std::vector<std::size_t> pieces;
               for (int i = 0; i < tasks_in_a_row; ++i)
                 pieces.push_back(timer_.issue_task(task, o));
               timer_.finish();
               const Streams::Times all = span_of(pieces.front(), pieces.back());
               std::int64_t gaps = all.end_ns - all.start_ns;
               for (const std::size_t piece : pieces) gaps -= timer_.duration(piece);
               return std::max<std::int64_t>(0, gaps / (tasks_in_a_row - 1));
             }));
    machine_.gpu.launch_ns = time.median_ns;
    source("gpu.launch",
           "from the end of a kernel to the start of the next one on its stream, "
           "which was issued long before");
  }

  // A thread gives a stream a task, and sleeps until it is told that the task is done.
  void waking() {
    next_("waking a lane of the host");
    Task task = task_of(TaskKind::optimizer, Lane::gpu_compute);
    task.params = element_alignment;
    const Operands o = operands(gpu_.data(), task);
    struct Bell {
      std::atomic<std::uint32_t> rung{0};
      std::exception_ptr failure;
      void ring() {
        rung.fetch_add(1);
        rung.notify_one();
      }
    } bell;
    // Failed work tells nobody that it is done.
    timer_.streams().on_failure([&](std::exception_ptr failure) {
      bell.failure = failure;
      bell.ring();
    });
    const auto samples = collect_ns(rule_, [&] {
      timer_.clear();
      const std::uint32_t before = bell.rung.load();
      const std::int64_t start = now_ns();
      const std::size_t piece = timer_.issue_task(task, o);
      timer_.streams().notify(
          Lane::gpu_compute, [](void* argument) { static_cast<Bell*>(argument)->ring(); }, &bell);
      bell.rung.wait(before);
      const std::int64_t whole = now_ns() - start;
      if (bell.failure) std::rethrow_exception(bell.failure);
      timer_.finish();
      return std::max<std::int64_t>(0, whole - timer_.duration(piece)) / 2;
    });
    timer_.streams().on_failure({});
    const KernelTime& time = keep("barrier", "half of the way to a stream and back", samples);
    machine_.host.wake_ns = time.median_ns;
    machine_.host.sync_ns = 2 * time.median_ns;
    source("host.wake",
           "half of the time to issue a task and to be told that it is done, without "
           "the task");
    source("host.sync", "all of that time");
  }

  // Copies in a row, as a lane issues them.
  void issue_copies(Lane lane, std::uint64_t bytes, int count, Turn& gpu, Turn& host,
                    std::vector<std::size_t>& pieces) {
    for (int i = 0; i < count; ++i) {
      std::byte* const on_gpu = gpu.next();
      std::byte* const on_host = host.next();
      pieces.push_back(lane == Lane::pcie_h2d ? timer_.issue_copy(lane, on_gpu, on_host, bytes)
                                              : timer_.issue_copy(lane, on_host, on_gpu, bytes));
    }
  }
  int copies_of(std::uint64_t bytes) const {
    return static_cast<int>(std::clamp<std::uint64_t>(options_.gpu_sizes.largest_copy / bytes,
                                                      fewest_copies, most_copies));
  }

  double one_way(Lane lane, const char* kind) {
    std::vector<std::pair<double, double>> points;
    for (const std::uint64_t bytes : copy_sizes(options_)) {
      next_(fmt::format("copies {} of {} KiB", kind, bytes / kibi));
      Turn gpu(gpu_, bytes), host(host_, bytes);
      const int count = copies_of(bytes);
      const KernelTime& time = keep(kind, fmt::format("bytes={}", bytes), collect_ns(rule_, [&] {
                                      timer_.clear();
                                      std::vector<std::size_t> pieces;
                                      issue_copies(lane, bytes, count, gpu, host, pieces);
                                      timer_.finish();
                                      const auto all = span_of(pieces.front(), pieces.back());
                                      return (all.end_ns - all.start_ns) / count;
                                    }));
      points.emplace_back(static_cast<double>(bytes), seconds_of(time));
    }
    const LatencyAndRate fit = fit_latency_and_rate(points);
    machine_.pcie.latency_ns =
        std::max(machine_.pcie.latency_ns, static_cast<std::int64_t>(fit.latency_seconds * 1e9));
    source(lane == Lane::pcie_h2d ? "pcie.h2d" : "pcie.d2h",
           fmt::format("copies of pinned memory in a row, {} KiB to {} MiB", smallest_copy / kibi,
                       copy_sizes(options_).back() / mebi));
    source("pcie.latency", "the line latency + bytes / rate through them, per copy");
    return fit.rate;
  }

  // Both directions at once: from the first start to the last end, while both had copies to do.
  void both_ways() {
    const std::uint64_t bytes = std::min(16 * mebi, options_.gpu_sizes.largest_copy);
    next_("copies both ways at once");
    const std::uint64_t half = round_down(gpu_.size() / 2, buffer_alignment);
    Turn down_gpu(gpu_.first(half), bytes), up_gpu(gpu_.subspan(half), bytes);
    Turn down_host(host_.first(half), bytes), up_host(host_.subspan(half), bytes);
    const int count = copies_of(bytes);
    const KernelTime& time = keep(
        "h2d", fmt::format("bytes={},beside=d2h", bytes), collect_ns(rule_, [&] {
          timer_.clear();
          std::vector<std::size_t> to, from;
          for (int i = 0; i < count; ++i) {
            issue_copies(Lane::pcie_h2d, bytes, 1, up_gpu, up_host, to);
            issue_copies(Lane::pcie_d2h, bytes, 1, down_gpu, down_host, from);
          }
          timer_.finish();
          const auto up = span_of(to.front(), to.back()), down = span_of(from.front(), from.back());
          return (std::max(up.end_ns, down.end_ns) - std::min(up.start_ns, down.start_ns)) / count;
        }));
    const double both = 2 * static_cast<double>(bytes) / seconds_of(time);
    const double sum = machine_.pcie.h2d + machine_.pcie.d2h;
    // Within a few per cent of the sum, the directions do not disturb one another.
    machine_.pcie.total =
        both < 0.97 * sum ? std::max(both, std::max(machine_.pcie.h2d, machine_.pcie.d2h)) : 0;
    source("pcie.total", fmt::format("copies of {} MiB both ways at once: {:.1f} GB/s together",
                                     bytes / mebi, both / 1e9));
    copies_both_ways_ = std::min(both, sum);
  }

  void gpu_optimizer() {
    const Task update = task_of(TaskKind::optimizer, Lane::gpu_compute);
    const double params = static_cast<double>(elements_);
    const Operands o = operands(gpu_.data(), update);
    const auto alone = [&](const Task& task, const Operands& with) {
      return collect_ns(rule_, [&] {
        timer_.clear();
        hold_compute();
        const std::size_t piece = timer_.issue_task(task, with);
        timer_.finish();
        return timer_.duration(piece);
      });
    };
    next_("optimizer on the GPU");
    const std::string shape = fmt::format("gpu.compute,params={}", elements_);
    const KernelTime& time = keep("optimizer", shape, alone(update, o));
    machine_.gpu.adam_params_per_second = params / seconds_of(time);
    machine_.gpu.memory_bandwidth =
        machine_.gpu.adam_params_per_second * static_cast<double>(adam_bytes());
    source("gpu.adam_rate", "AdamW of a layer's parameters, in no cache");
    source("gpu.memory_bandwidth",
           fmt::format("what AdamW reads and writes, {} bytes a parameter", adam_bytes()));
    next_("gradient norm on the GPU");
    const Task norm = task_of(TaskKind::gradient_norm, Lane::gpu_compute);
    keep(to_string(TaskKind::gradient_norm), gradient_norm_shape(norm.lane, norm.bytes),
         alone(norm, operands(gpu_.data(), norm)));
    // What is bound by memory shows most whether copies disturb kernels.
    next_("optimizer on the GPU beside copies");
    const std::uint64_t bytes = std::min(16 * mebi, options_.gpu_sizes.largest_copy);
    const std::uint64_t half = round_down(host_.size() / 2, buffer_alignment);
    Turn gpu(gpu_.subspan(half), bytes), to(host_.first(half), bytes),
        from(host_.subspan(half), bytes);
    keep("optimizer", shape + ",beside=copies", collect_ns(rule_, [&] {
           timer_.clear();
           timer_.wait(Lane::pcie_d2h, hold_compute());
           std::vector<std::size_t> copies;
           const std::size_t piece = timer_.issue_task(update, o);
           issue_copies(Lane::pcie_h2d, bytes, fewest_copies, gpu, from, copies);
           issue_copies(Lane::pcie_d2h, bytes, fewest_copies, gpu, to, copies);
           timer_.finish();
           return timer_.duration(piece);
         }));
  }

  // Master, m and v read and written, the gradient read, the parameters written.
  std::uint64_t adam_bytes() const {
    return 24 + problem_.gradient_bytes() + problem_.parameter_bytes();
  }

  void host_optimizer() {
    const Task update = task_of(TaskKind::optimizer, Lane::cpu_optimizer),
               norm = task_of(TaskKind::gradient_norm, Lane::cpu_optimizer);
    const std::uint64_t each = round_up(operand_bytes(), buffer_alignment);
    const std::uint64_t half = round_down(host_.size() / 2, buffer_alignment);
    const auto on = [&](const Task& task, Turn& memory) {
      device_->compute(task, operands(memory.next(), task));
    };
    Turn memory(host_, each);
    next_("optimizer on the CPU");
    const std::string shape = fmt::format("params={}", elements_);
    const KernelTime& alone =
        keep("optimizer", shape, sample_ns(rule_, [&] { on(update, memory); }));
    machine_.host.adam_params_per_second = static_cast<double>(elements_) / seconds_of(alone);
    machine_.host.adam_cores = options_.threads;
    machine_.host.adam_bytes_per_param = static_cast<double>(adam_bytes());
    source("host.adam_rate", fmt::format("AdamW of a layer's parameters, threads: {}, {}-bit "
                                         "gradients, {}-bit parameters",
                                         options_.threads, 8 * problem_.gradient_bytes(),
                                         8 * problem_.parameter_bytes()));
    next_("gradient norm on the CPU");
    keep(to_string(TaskKind::gradient_norm), gradient_norm_shape(norm.lane, norm.bytes),
         sample_ns(rule_, [&] { on(norm, memory); }));
    // Copies go on over the streams while this thread updates.
    next_("optimizer on the CPU beside copies");
    const std::uint64_t bytes = std::min(16 * mebi, options_.gpu_sizes.largest_copy);
    Turn updated(host_.first(std::max(half, each)), each), gpu(gpu_, bytes),
        copied(host_.subspan(half), bytes);
    keep("optimizer", shape + ",beside=copies",
         beside(
             [&] {
               timer_.clear();
               std::vector<std::size_t> pieces;
               for (int i = 0; i < fewest_copies; ++i) {
                 issue_copies(Lane::pcie_h2d, bytes, 1, gpu, copied, pieces);
                 issue_copies(Lane::pcie_d2h, bytes, 1, gpu, copied, pieces);
               }
               timer_.finish();
             },
             [&] { return sample_ns(rule_, [&] { on(update, updated); }); }));
  }

  // Bytes per second of so many cores that copy: each byte is read and written.
  double copies_by(int cores) {
    next_(cores == 1 ? "memory of the host, one core" : "memory of the host, all cores");
    ThreadPool pool(cores);
    const std::uint64_t half = host_.size() / 2, each = half / static_cast<std::uint64_t>(cores);
    const auto samples = sample_ns(rule_, [&] {
      pool.run(cores, [&](std::int64_t core) {
        const std::uint64_t at = static_cast<std::uint64_t>(core) * each;
        std::memcpy(host_.data() + half + at, host_.data() + at, each);
      });
    });
    const std::uint64_t bytes = 2 * each * static_cast<std::uint64_t>(cores);
    return static_cast<double>(bytes) /
           seconds_of(keep("barrier",
                           fmt::format("copies in host memory,bytes={},threads={}", bytes, cores),
                           samples));
  }

  void host_bandwidth() {
    const int cores = std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
    const double one = copies_by(1), all = copies_by(cores);
    const double optimizer =
        machine_.host.adam_params_per_second * machine_.host.adam_bytes_per_param;
    machine_.host.core_bandwidth = std::max(one, optimizer / machine_.host.adam_cores);
    source("host.core_bandwidth",
           "one core copying, each byte read and written, or a thread of the optimizer");
    machine_.host.bandwidth = std::max({all, optimizer, copies_both_ways_});
    source("host.bandwidth",
           "all cores copying, each byte read and written; at least what the "
           "optimizer or copies both ways were seen to take");
  }

  const Problem& problem_;
  const CalibrationOptions& options_;
  const SamplingRule& rule_;
  Machine& machine_;
  const std::function<void(const std::string&)>& next_;
  std::int64_t elements_;  // of a layer
  std::unique_ptr<Device> device_;
  StreamTimer timer_;
  std::span<std::byte> gpu_, host_;
  double copies_both_ways_ = 0;
};

}  // namespace

void measure_links(const Problem& problem, const CalibrationOptions& options,
                   const SamplingRule& rule, Machine& machine,
                   const std::function<void(const std::string&)>& next) {
  LinkBench(problem, options, rule, machine, next).run();
}

int link_figures(const CalibrationOptions& options) {
  return 2 * static_cast<int>(copy_sizes(options).size()) + other_figures;
}

}  // namespace spillway
