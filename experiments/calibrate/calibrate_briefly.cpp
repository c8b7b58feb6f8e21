#include "experiments/calibrate/calibrate_briefly.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "exec/run/available_memory.hpp"
#include "experiments/calibrate/drive_bench.hpp"
#include "experiments/calibrate/kernel_bench.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

constexpr int brief_samples = 5;
constexpr double brief_seconds_per_figure = 0.05;
// Work of all kernels, each run once: some seconds on a slow core.
constexpr double brief_flops_per_thread = 2e11;
// Elements of a layer and of the embedding, which are made at random.
constexpr std::int64_t most_elements = std::int64_t{1} << 26;

double flops_of_kernels(const Problem& problem) {
  const Workload& w = problem.workload;
  // Two passes forward; backward with all kept, and twice with everything recomputed. In bf16 what
  // makes gradients runs with wide and with narrow ones.
  const int widths = w.precision == Precision::bf16 ? 2 : 1;
  return (2 + 8 * widths) * problem.model.layer_forward_flops(w.micro_batch, w.sequence) +
         3 * widths * problem.model.head_forward_flops(w.micro_batch, w.sequence);
}

bool elements_fit(const ModelSpec& model) { return largest_unit_elements(model) <= most_elements; }

// Whether its kernels may be timed where `flops` may be spent.
bool is_brief(const Problem& problem, double flops) {
  if (!elements_fit(problem.model)) return false;
  if (flops_of_kernels(problem) > flops) return false;
  const StreamKernelMemory memory = stream_kernel_memory(problem);  // somewhat more than it takes
  return memory.gpu + memory.host <= available_memory() / 2;
}

// Halves a model's width, or what it has of words. Heads stay as wide as they are, and as many of
// them share a key. False where nothing is left to halve.
bool narrow(ModelSpec& model) {
  const bool is_gpt = model.architecture == Architecture::gpt;
  if (model.heads > 1 && model.hidden > 1 && model.ffn > 1) {
    const std::int64_t width = model.width_of_head();
    const std::int64_t sharing = model.heads / model.kv_heads;
    if (is_gpt || model.kv_heads > 1) {
      model.kv_heads /= 2;
      model.heads = model.kv_heads * sharing;
    } else {
      model.heads /= 2;
    }
    if (!is_gpt) model.head_width = width;
    model.hidden = is_gpt ? width * model.heads : model.hidden / 2;
    model.ffn = is_gpt ? 4 * model.hidden : model.ffn / 2;
    model.lora_rank = std::min(model.lora_rank, model.hidden);
    return true;
  }
  if (model.vocabulary < 2) return false;
  model.vocabulary /= 2;
  return true;
}

// Half of what can be halved: micro-batch, then tokens, then the width of the model. False where
// nothing can.
bool halve(Problem& problem) {
  Workload& workload = problem.workload;
  if (!elements_fit(problem.model)) return narrow(problem.model);
  if (workload.micro_batch > 1) {
    workload.micro_batch /= 2;
    workload.batch = workload.micro_batch;
  } else if (workload.sequence > 1) {
    workload.sequence /= 2;
  } else {
    return narrow(problem.model);
  }
  return true;
}

}  // namespace

SamplingRule sampling_rule(const CalibrationOptions& options, int warm_up) {
  if (options.brief) return {brief_samples, 1, brief_seconds_per_figure, 1};
  return {options.samples, warm_up, options.most_seconds_per_figure};
}

std::vector<Problem> brief_problems(std::vector<Problem> problems, int threads) {
  SPILLWAY_ASSERT(!problems.empty(), "micro-batches to measure");
  std::sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
    return a.workload.micro_batch < b.workload.micro_batch;
  });
  double flops = brief_flops_per_thread * threads;
  std::vector<Problem> brief;
  for (const Problem& problem : problems) {
    if (!is_brief(problem, flops)) break;
    flops -= flops_of_kernels(problem);
    brief.push_back(problem);
  }
  if (!brief.empty()) return brief;
  Problem smaller = problems.front();
  while (!is_brief(smaller, flops) && halve(smaller)) {
  }
  return {smaller};
}

int drive_sets_figures(const CalibrationOptions& options) {
  if (options.ssd.empty()) return 0;
  const int sets = std::max(1, static_cast<int>(options.ssd_sets.size()));
  return sets * drive_figures(options.brief);
}

namespace {

// As measure_drives(), of a set but the first. Its single transfers are no kernels of the file,
// which has them by kind of task.
void measure_more_drives(int set, const std::vector<std::filesystem::path>& directories,
                         const CalibrationOptions& options, const SamplingRule& rule,
                         const Arena& memory, Machine& machine,
                         const std::function<void(const std::string&)>& next) {
  Machine alone = machine;
  alone.ssd = {};
  alone.sources.clear();
  measure_drives(
      directories, options.io, options.brief, rule, memory, alone,
      [&](const std::string& what) { next(fmt::format("{}: {}", drive_set_name(set), what)); });
  machine.drives(set) = alone.ssd;
  for (const auto& [key, source] : alone.sources) {
    if (key.rfind("ssd.", 0) == 0) machine.sources[drive_set_key(set, key.substr(4))] = source;
  }
}

}  // namespace

void measure_drives_of(const CalibrationOptions& options, const SamplingRule& rule,
                       const Arena& memory, Machine& machine,
                       const std::function<void(const std::string&)>& next,
                       const CalibrationNote& note) {
  const DriveFolders drives{options.ssd, options.ssd_sets};
  const auto measure = [&] {
    measure_drives(drives.of_set(0), options.io, options.brief, rule, memory, machine, next);
    for (std::size_t set = 1; set < drives.set_count(); ++set)
      measure_more_drives(static_cast<int>(set), drives.of_set(set), options, rule, memory, machine,
                          next);
    const DriveRoom room = room_on(drives);
    for (std::size_t set = 0; set < drives.set_count(); ++set)
      machine.drives(static_cast<int>(set)).capacity = room.free[set];
  };
  if (!options.brief) return measure();
  const std::vector<KernelTime> kernels = machine.kernels;
  try {
    measure();
  } catch (const MachineError& error) {
    machine.kernels = kernels;
    machine.ssd = {};
    machine.more_ssd = {};
    if (note)
      note(fmt::format("the drive could not be measured, and policies that use it are left out: {}",
                       error.what()));
  }
}

}  // namespace spillway
