// A real training run whose steps the SSD bounds: how much of the step the SSD lanes are at work.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "exec/run/training.hpp"
#include "experiments/calibrate/scratch_folder.hpp"
#include "experiments/speed/speed_figures.hpp"

namespace spillway {

namespace {

constexpr int warm_up_steps = 2;

// Few tokens and all model states on the SSD: 25 million parameters, and some 36 bytes of each go
// over the SSD lanes in a step.
TrainingOptions ssd_bound_run(const FigureOptions& figure) {
  TrainingOptions options;
  Problem& problem = options.problem;
  problem.model = load_model("gpt-small", {"layers=8", "hidden=512", "heads=8"});
  problem.machine = load_machine("testbed", {});
  problem.machine.gpu.memory = std::uint64_t{256} << 20;
  problem.machine.host.memory = std::uint64_t{512} << 20;
  problem.machine.ssd.capacity = std::uint64_t{8} << 30;
  problem.workload.precision = Precision::fp32;
  problem.workload.batch = problem.workload.micro_batch = 1;
  problem.workload.sequence = 16;
  options.policy = "greedysnake:optimizer_ssd=1,parameters_ssd=1";
  options.durability = {DurabilityMode::on, 1};  // as `train` does unless told otherwise
  options.steps = warm_up_steps + std::max(8, figure.rounds);
  return options;
}

using Interval = std::pair<std::int64_t, std::int64_t>;

// Time within `window` covered by at least one of the spans.
std::int64_t covered(std::vector<Interval> spans, Interval window) {
  std::sort(spans.begin(), spans.end());
  std::int64_t sum = 0, reached = window.first;
  for (const auto& [start, end] : spans) {
    const std::int64_t from = std::max(start, reached), to = std::min(end, window.second);
    if (to > from) sum += to - from;
    reached = std::max(reached, to);
  }
  return sum;
}

}  // namespace

std::vector<SpeedFigure> measure_training(const FigureOptions& options) {
  const ScratchFolder folder(options.ssd.front());
  const std::filesystem::path text = folder.path() / "text";
  {
    std::mt19937_64 random(1);
    std::string bytes(1 << 16, ' ');
    for (char& byte : bytes) byte = static_cast<char>('a' + random() % 26);
    std::ofstream(text, std::ios::binary) << bytes;
  }
  TrainingOptions run = ssd_bound_run(options);
  run.data = {text};
  run.make_ring = options.io.make_ring;
  std::vector<ScratchFolder> drives;
  for (const auto& directory : options.ssd) {
    drives.emplace_back(directory);
    run.ssd.push_back(drives.back().path());
  }
  Trace trace;
  Training training(run);
  std::vector<double> seconds;
  training.run([&](const StepResult& step) { seconds.push_back(step.seconds); }, &trace);

  // From the end of the last warm-up step to the end of the last but one: what the end of the run
  // alone does is no step.
  std::vector<std::int64_t> ends(static_cast<std::size_t>(run.steps), 0);
  for (const Span& span : trace.spans) {
    const auto step = static_cast<std::size_t>(span.step);
    if (step < ends.size()) ends[step] = std::max(ends[step], span.end_ns);
  }
  const Interval window{ends[warm_up_steps - 1], ends[ends.size() - 2]};
  const auto busy = [&](std::initializer_list<Lane> lanes) {
    std::vector<Interval> spans;
    for (const Span& span : trace.spans) {
      if (std::find(lanes.begin(), lanes.end(), static_cast<Lane>(span.lane)) != lanes.end())
        spans.emplace_back(span.start_ns, span.end_ns);
    }
    return static_cast<double>(covered(std::move(spans), window)) /
           static_cast<double>(window.second - window.first);
  };
  SpeedFigure figure;
  figure.name = "training/ssd-bound";
  figure.what = fmt::format("share of a step in which an SSD lane is at work, {} with {}",
                            training.schedule().problem().model.name, training.schedule().policy());
  figure.unit = "%";
  figure.value = 100 * busy({Lane::ssd_read, Lane::ssd_write});
  figure.roofline_what = "the whole step";
  figure.roofline = 100;
  figure.ratios = {figure.value / 100};
  const double compute = busy({Lane::gpu_compute});
  figure.note =
      fmt::format("read lane {:.0f} %, write lane {:.0f} %, compute {:.0f} %, step {:.0f} ms",
                  100 * busy({Lane::ssd_read}), 100 * busy({Lane::ssd_write}), 100 * compute,
                  1e3 * median(seconds));
  // Where a busy machine computes so slowly that the drive is not the bound, there is no target.
  if (compute < 0.9) {
    figure.target = 0.95;
  } else {
    figure.note += ": bound by compute here, not by the SSD";
  }
  return {figure};
}

}  // namespace spillway
