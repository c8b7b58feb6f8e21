#include "experiments/calibrate.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <random>
#include <thread>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/cpu_device.hpp"
#include "exec/executor.hpp"
#include "exec/gpt_init.hpp"
#include "exec/ssd_store.hpp"
#include "experiments/sampler.hpp"
#include "policies/program.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t mebi = 1 << 20;
constexpr std::uint64_t arena_bytes =
    96 * mebi;  // beyond a last-level cache, so that copies come from memory
constexpr std::uint64_t cache_bytes =
    64 * mebi;  // more than the caches of one core and its share of the last level
constexpr std::uint64_t store_bytes = 256 * mebi;

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
  add(TaskKind::forward, block).saves = true;
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
  KernelBench(const Problem& problem, const SamplingRule& rule)
      : problem_(problem),
        rule_(rule),
        layers_(problem.model.layers),
        device_(problem, bytes_needed(problem), 4096),
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
    const bool uses_saved = task.saves || task.available != saved_none;
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
  static std::uint64_t saved_bytes(const Problem& problem) {
    return static_cast<std::uint64_t>(problem.workload.micro_batch) *
           saved_bytes_per_sequence(problem);
  }
  static std::uint64_t scratch_bytes(const Problem& problem) {
    return std::max({forward_scratch_bytes(problem, false), forward_scratch_bytes(problem, true),
                     backward_scratch_bytes(problem, saved_none),
                     backward_scratch_bytes(problem, saved_all), head_scratch_bytes(problem)});
  }
  static std::uint64_t bytes_needed(const Problem& problem) {
    const std::uint64_t block = unit_bytes(problem, 0),
                        embedding = unit_bytes(problem, problem.model.layers);
    return block + embedding + std::max(block, embedding) + 4 * checkpoint_bytes(problem) +
           saved_bytes(problem) + scratch_bytes(problem) + 16 * buffer_alignment;
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
    saved_ = take(saved_bytes(problem_));
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

double seconds_of(const KernelTime& time) { return static_cast<double>(time.median_ns) / 1e9; }

// Runs `other` over and over on a second thread while `measure` runs.
template <class Other, class Measure>
auto beside(Other other, Measure measure) {
  std::atomic<bool> stop{false}, running{false};
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      while (!stop.load(std::memory_order_relaxed)) {
        other();
        running = true;
      }
    } catch (...) {
      failure = std::current_exception();
      running = true;
    }
  });
  while (!running) std::this_thread::yield();
  auto result = measure();
  stop = true;
  thread.join();
  if (failure) std::rethrow_exception(failure);
  return result;
}

class Calibration {
 public:
  Calibration(const CalibrationOptions& options, const CalibrationProgress& progress)
      : options_(options),
        progress_(progress),
        rule_{options.samples, 2, options.most_seconds_per_figure},
        host_(arena_bytes, "the host side of copies"),
        gpu_(arena_bytes, "the gpu side of copies") {}

  Machine run() {
    describe();
    planned_ = 8 * static_cast<int>(options_.micro_batches.size()) + 3 + 9 + 2 + 1;
    kernels();
    copies();
    optimizer();
    wake_up();
    if (!options_.ssd.empty()) ssd();
    return machine_;
  }

 private:
  void next(const std::string& what) { progress_(what, done_++, planned_); }
  void source(const char* key, const std::string& text) { machine_.sources[key] = text; }
  const KernelTime& keep(KernelTime time) { return machine_.kernels.emplace_back(std::move(time)); }

  void describe() {
    char name[256] = "this machine";
    gethostname(name, sizeof(name) - 1);
    machine_.name = name;
    machine_.description =
        fmt::format("measured by spillway calibrate {} with the CPU backend", SPILLWAY_VERSION);
    machine_.gpu.is_cpu = true;
    const std::uint64_t available = available_memory();
    machine_.gpu.memory = available / 4 / buffer_alignment * buffer_alignment;
    machine_.host.memory = available / 2 / buffer_alignment * buffer_alignment;
    machine_.host.cores = static_cast<double>(std::max(1u, std::thread::hardware_concurrency()));
    source("gpu.memory", "a quarter of the memory available when calibrated");
    source("host.memory", "half of the memory available when calibrated");
  }

  void kernels() {
    double flops = 0;
    for (const std::int64_t micro_batch : options_.micro_batches) {
      Problem problem;
      problem.model = options_.model;
      problem.machine = machine_;
      problem.workload = {micro_batch, micro_batch, options_.sequence, Precision::fp32,
                          GradientWidth::automatic};
      problem.validate();
      KernelBench bench(problem, rule_);
      for (const Task& task : kernel_tasks(problem)) {
        next(fmt::format("{} of {} x {} tokens", to_string(task.kind), micro_batch,
                         options_.sequence));
        const KernelTime& time = keep(bench.time(task));
        if (task.kind == TaskKind::forward) flops = std::max(flops, time.flops / seconds_of(time));
      }
    }
    machine_.gpu.flops = flops;
    source("gpu.flops", "the fastest measured block forward; kernels are timed by shape");
  }

  void copies() {
    machine_.pcie.h2d = one_way("h2d", host_, gpu_);
    machine_.pcie.d2h = one_way("d2h", gpu_, host_);
    // Both ways at once, on two threads: what the memory gives in all.
    constexpr std::uint64_t bytes = 8 * mebi;
    next("copies both ways at once");
    Rotation from(host_, bytes), to(gpu_, bytes), back_from(gpu_, bytes), back_to(host_, bytes);
    const KernelTime& both = keep(kernel_time(
        "h2d", fmt::format("bytes={},beside=d2h", bytes), 0,
        beside([&] { std::memcpy(back_to.next(), back_from.next(), bytes); },
               [&] {
                 return sample_ns(rule_, [&] { std::memcpy(to.next(), from.next(), bytes); });
               })));
    machine_.host.bandwidth = std::max(2 * 2 * static_cast<double>(bytes) / seconds_of(both),
                                       2 * std::max(machine_.pcie.h2d, machine_.pcie.d2h));
    source("host.bandwidth", "two threads copying at once, each byte read and written");
  }

  double one_way(const char* kind, const Arena& source_arena, const Arena& target_arena) {
    next(fmt::format("copies {}", kind));
    std::vector<std::pair<double, double>> points;
    for (const std::uint64_t bytes : {mebi / 16, mebi, 4 * mebi, 16 * mebi}) {
      Rotation from(source_arena, bytes), to(target_arena, bytes);
      const KernelTime& time =
          keep(kernel_time(kind, fmt::format("bytes={}", bytes), 0,
                           sample_ns(rule_, [&] { std::memcpy(to.next(), from.next(), bytes); })));
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
    std::memset(host_.data(), 0, host_.size());
    Rotation state(host_, state_bytes);
    const auto update = [&] {
      float* const p = reinterpret_cast<float*>(state.next());
      adamw_update_unit(p, p + elements, p + 2 * elements, p + 3 * elements, nullptr,
                        p + 4 * elements, 0, elements, {tensor}, step);
    };
    next("optimizer");
    const KernelTime& alone = keep(
        kernel_time("optimizer", fmt::format("params={}", elements), 0, sample_ns(rule_, update)));
    machine_.host.adam_params_per_second = machine_.gpu.adam_params_per_second =
        static_cast<double>(elements) / seconds_of(alone);
    machine_.host.adam_cores = 1;
    machine_.host.adam_bytes_per_param =
        28 + 4;  // fp32: master, m, v read and written, gradient read, parameter written
    source("host.adam_rate", "AdamW on one thread, 2^20 elements, memory not in cache");
    next("optimizer beside copies");
    constexpr std::uint64_t bytes = 8 * mebi;
    Rotation from(gpu_, bytes);
    std::vector<std::byte> target(bytes);
    keep(kernel_time("optimizer", fmt::format("params={},beside=copies", elements), 0,
                     beside([&] { std::memcpy(target.data(), from.next(), bytes); },
                            [&] { return sample_ns(rule_, update); })));
  }

  // From the end of a task on one lane to the start of the next on another: a futex round trip,
  // halved.
  void wake_up() {
    next("waking a lane");
    std::atomic<std::uint32_t> ping{0}, pong{0};
    constexpr std::uint32_t rounds = 2000;
    std::thread other([&] {
      for (std::uint32_t i = 0; i < rounds; ++i) {
        ping.wait(i);
        pong.fetch_add(1);
        pong.notify_one();
      }
    });
    std::vector<std::int64_t> samples;
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const std::int64_t start = now_ns();
      ping.fetch_add(1);
      ping.notify_one();
      pong.wait(i);
      samples.push_back((now_ns() - start) / 2);
    }
    other.join();
    samples.erase(samples.begin(), samples.begin() + rounds / 2);
    samples.resize(101);
    const KernelTime& time = keep(kernel_time("barrier", "waking a waiting lane", 0, samples));
    machine_.gpu.launch_ns = time.median_ns;
    machine_.pcie.latency_ns += time.median_ns;
    source("gpu.launch", "half a round trip between two waiting threads");
  }

  void ssd();

  const CalibrationOptions& options_;
  const CalibrationProgress& progress_;
  SamplingRule rule_;
  Arena host_, gpu_;
  Machine machine_;
  int done_ = 0, planned_ = 0;
};

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

void Calibration::ssd() {
  const auto open = [&](unsigned depth) {
    SsdStoreOptions options;
    options.queue_depth = depth;
    return SsdStore(options_.ssd, store_bytes, options);
  };
  const auto rotate = [](std::uint64_t& at, std::uint64_t bytes) {
    const std::uint64_t offset = at;
    at = at + 2 * bytes > store_bytes ? 0 : at + bytes;
    return offset;
  };
  const SsdStore store = open(SsdStoreOptions{}.queue_depth);
  SsdStore::Channel channel(store);
  channel.register_memory(host_.span());
  // Blocks that were never written may be read faster than the drive reads: write all of them
  // first.
  next("filling the SSD's test file");
  for (std::uint64_t at = 0; at < store_bytes; at += 16 * mebi)
    channel.write(at, host_.data(), 16 * mebi);
  channel.sync();

  std::vector<std::pair<double, double>> reads, writes;
  const double cpu_before = thread_cpu_seconds();
  const std::int64_t wall_before = now_ns();
  for (const std::uint64_t bytes : {mebi / 4, mebi, 4 * mebi, 16 * mebi}) {
    std::uint64_t at = 0;
    next(fmt::format("SSD reads and writes of {}", format_bytes(static_cast<double>(bytes))));
    const std::string shape = fmt::format("bytes={},depth={}", bytes, store.options().queue_depth);
    reads.emplace_back(static_cast<double>(bytes),
                       seconds_of(keep(kernel_time("read", shape, 0, sample_ns(rule_, [&] {
                                                     channel.read(rotate(at, bytes), host_.data(),
                                                                  bytes);
                                                   })))));
    writes.emplace_back(static_cast<double>(bytes),
                        seconds_of(keep(kernel_time("write", shape, 0, sample_ns(rule_, [&] {
                                                      channel.write(rotate(at, bytes), host_.data(),
                                                                    bytes);
                                                    })))));
  }
  const double wall = static_cast<double>(now_ns() - wall_before) / 1e9;
  machine_.ssd.cores = std::clamp((thread_cpu_seconds() - cpu_before) / wall, 0.01, 1.0);
  const LatencyAndRate read = fit_latency_and_rate(reads), write = fit_latency_and_rate(writes);
  machine_.ssd.read = read.rate;
  machine_.ssd.write = write.rate;
  machine_.ssd.read_latency_ns =
      static_cast<std::int64_t>(read.latency_seconds * 1e9) + machine_.gpu.launch_ns;
  machine_.ssd.write_latency_ns =
      static_cast<std::int64_t>(write.latency_seconds * 1e9) + machine_.gpu.launch_ns;

  // Depths, for the record: the store uses the deepest.
  for (const unsigned depth : {1u, 8u}) {
    next(fmt::format("SSD at queue depth {}", depth));
    std::filesystem::path shallow_dir = options_.ssd.front() / "spillway-calibrate";
    std::filesystem::create_directories(shallow_dir);
    {
      SsdStoreOptions options;
      options.queue_depth = depth;
      const SsdStore shallow({shallow_dir}, 64 * mebi, options);
      SsdStore::Channel lane(shallow);
      for (std::uint64_t at = 0; at < 64 * mebi; at += 16 * mebi)
        lane.write(at, host_.data(), 16 * mebi);
      std::uint64_t at = 0;
      const auto turn = [&] {
        at = (at + 16 * mebi) % (64 * mebi);
        return at;
      };
      const std::string shape = fmt::format("bytes={},depth={}", 16 * mebi, depth);
      keep(kernel_time("read", shape, 0,
                       sample_ns(rule_, [&] { lane.read(turn(), host_.data(), 16 * mebi); })));
      keep(kernel_time("write", shape, 0,
                       sample_ns(rule_, [&] { lane.write(turn(), host_.data(), 16 * mebi); })));
    }
    std::error_code ignored;
    std::filesystem::remove(shallow_dir, ignored);
  }

  // Reads while another lane writes, and the other way round.
  constexpr std::uint64_t bytes = 4 * mebi;
  std::uint64_t read_at = 0, write_at = 0;
  std::unique_ptr<SsdStore::Channel> other;  // made on the thread that uses it
  const auto mixed = [&](bool measure_reads) {
    const char* const kind = measure_reads ? "read" : "write";
    next(fmt::format("SSD {}s beside {}s", kind, measure_reads ? "write" : "read"));
    other.reset();
    const auto one = [&](SsdStore::Channel& lane, bool reads_now, std::byte* memory) {
      if (reads_now)
        lane.read(rotate(read_at, bytes), memory, bytes);
      else
        lane.write(rotate(write_at, bytes), memory, bytes);
    };
    const auto samples = beside(
        [&] {
          if (!other) other = std::make_unique<SsdStore::Channel>(store);
          one(*other, !measure_reads, host_.data() + 32 * mebi);
        },
        [&] { return sample_ns(rule_, [&] { one(channel, measure_reads, host_.data()); }); });
    other.reset();
    return static_cast<double>(bytes) /
           seconds_of(keep(kernel_time(
               kind, fmt::format("bytes={},beside={}", bytes, measure_reads ? "write" : "read"), 0,
               samples)));
  };
  const double mixed_read = mixed(true);
  const double mixed_write = mixed(false);
  machine_.ssd.law = SsdLaw::capped;
  machine_.ssd.total =
      std::max(mixed_read + mixed_write, std::max(machine_.ssd.read, machine_.ssd.write) * 0.5);
  machine_.ssd.count = static_cast<std::int64_t>(options_.ssd.size());
  for (const auto& directory : options_.ssd)
    machine_.ssd.capacity += std::filesystem::space(directory).available;
  source("ssd.read", "O_DIRECT io_uring, 256 KiB to 16 MiB, one lane");
  source("ssd.write", "O_DIRECT io_uring, 256 KiB to 16 MiB, one lane");
  source("ssd.total", "reads beside writes plus writes beside reads, 4 MiB each");
  source("ssd.capacity", "free space when calibrated");
}

}  // namespace

Machine calibrate(const CalibrationOptions& options, const CalibrationProgress& progress) {
  return Calibration(options, progress).run();
}

}  // namespace spillway
