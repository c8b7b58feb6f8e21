// What the executor costs: schedules of tasks that do nothing, run by the real executor.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "exec/data/dataset.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/executor.hpp"
#include "experiments/calibrate/scratch_folder.hpp"
#include "experiments/speed/speed_figures.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t page = 4096;
constexpr double most_us_per_task = 20;  // wall time

// Copies nothing; asked to, it sleeps instead, which is work that takes no processor.
class IdleDevice final : public Device {
 public:
  std::string name() const override { return "idle"; }
  std::span<std::byte> gpu_memory() override { return gpu_.span(); }
  std::span<std::byte> host_memory() override { return host_.span(); }
  void compute(const Task&, const Operands&) override {}
  void copy(Lane, std::byte*, const std::byte*, std::uint64_t) override {
    if (sleep.count() > 0) std::this_thread::sleep_for(sleep);
  }
  std::chrono::milliseconds sleep{0};

 private:
  Arena gpu_{16 * page, "the benchmark's gpu tier"}, host_{16 * page, "the benchmark's host tier"};
};

// A text of one kilobyte, which the executor wants to be given and these tasks do not read.
std::shared_ptr<const Dataset> small_dataset(const ScratchFolder& folder) {
  const std::filesystem::path path = folder.path() / "text";
  std::ofstream(path) << std::string(1024, 'a');
  return std::make_shared<const Dataset>(std::vector{path}, 1);
}

Problem tiny_problem() {
  Problem problem;
  problem.model = load_model("gpt-tiny", {});
  problem.machine = load_machine("testbed", {});
  problem.workload.precision = Precision::fp32;
  return problem;
}

// `chains` pairs of a buffer in host memory and one on the GPU, each with `length` copies that wait
// for one another: to and fro, or with `one_lane` all to the GPU, so that none waits for another
// thread.
Schedule copies(int chains, int length, bool one_lane) {
  Program program(tiny_problem());
  std::vector<std::pair<Slice, Slice>> ends;
  for (int chain = 0; chain < chains; ++chain) {
    ends.emplace_back(program.persistent(Tier::host, page, BufferKind::scratch),
                      program.persistent(Tier::gpu, page, BufferKind::scratch));
  }
  program.at(0, Phase::forward);
  for (int i = 0; i < length; ++i) {
    for (const auto& [host, gpu] : ends)
      i % 2 == 0 || one_lane ? program.copy(host, gpu) : program.copy(gpu, host);
  }
  return std::move(program).finish("tasks that do nothing", 1);
}

struct Bench {
  ScratchFolder folder{std::filesystem::temp_directory_path()};
  IdleDevice device;
  Executor executor{device, nullptr, small_dataset(folder), OptimizerSettings{}};

  double run_us(const Schedule& schedule) {
    const std::int64_t start = now_ns();
    executor.run(schedule, 0, [](const StepResult&) {});
    return static_cast<double>(now_ns() - start) / 1e3;
  }
};

SpeedFigure overhead(Bench& bench, const FigureOptions& options, const char* name,
                     const std::string& what, const Schedule& schedule) {
  SpeedFigure figure;
  figure.name = name;
  figure.what = what;
  figure.unit = "us/task";
  figure.target = most_us_per_task;
  std::vector<double> values;
  bench.run_us(schedule);
  for (int round = 0; round < options.rounds; ++round)
    values.push_back(bench.run_us(schedule) / static_cast<double>(schedule.tasks().size()));
  figure.value = median(values);
  figure.note =
      fmt::format("fastest {:.2f}, slowest {:.2f}", quantile_of(values, 0), quantile_of(values, 1));
  return figure;
}

// Two lanes take turns at sleeping 50 ms, so that one always waits: waiting must take no processor.
SpeedFigure idle_share(Bench& bench, const FigureOptions& options) {
  constexpr int task_ms = 50;
  bench.device.sleep = std::chrono::milliseconds(task_ms);
  const int length = std::max(4, static_cast<int>(options.seconds * 1000) / task_ms);
  const Schedule schedule = copies(1, length, false);
  const double cpu_before = processor_seconds();
  const double wall = bench.run_us(schedule) / 1e6;
  SpeedFigure figure;
  figure.name = "executor/idle";
  figure.what = "processor time of the whole program while lanes wait for one another";
  figure.unit = "%";
  figure.value = 100 * (processor_seconds() - cpu_before) / wall;
  figure.target = 1;
  figure.note = fmt::format("{} tasks of {} ms", length, task_ms);
  bench.device.sleep = std::chrono::milliseconds(0);
  return figure;
}

}  // namespace

std::vector<SpeedFigure> measure_executor(const FigureOptions& options) {
  Bench bench;
  return {
      overhead(bench, options, "executor/one-lane", "100,000 tasks in a row on one lane",
               copies(1, 100'000, true)),
      overhead(bench, options, "executor/two-lanes",
               "20,000 tasks, each waiting for the one before on the other lane",
               copies(1, 20'000, false)),
      overhead(bench, options, "executor/eight-chains",
               "80,000 tasks in eight such chains: two lanes with work to choose from",
               copies(8, 10'000, false)),
      idle_share(bench, options),
  };
}

}  // namespace spillway
