#include "experiments/train/train_plan.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "exec/run/available_memory.hpp"
#include "experiments/plan/all_ranks.hpp"
#include "experiments/plan/candidates.hpp"
#include "experiments/plan/hints.hpp"
#include "experiments/tune/plan_space.hpp"
#include "policies/machine/memory_beside.hpp"
#include "policies/machine/rank_share.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

// A hint is verified with as long a schedule as training begins with.
constexpr int steps_to_verify = 10;

// This computer, as far as memory goes: the CPU backend shares what is available between the two
// tiers.
// Ranks have equal parts of it.
Machine machine_at_hand(Machine machine, const DriveFolders& ssd, bool cuda) {
  machine.name = "this machine";
  const auto ranks = static_cast<std::uint64_t>(machine.cluster.sharing);
  const std::uint64_t available = available_memory() / ranks;
  if (machine.gpu.memory == 0) machine.gpu.memory = available / 4;
  if (machine.host.memory == 0) machine.host.memory = available / (cuda ? 2 : 4);
  const DriveRoom room = room_on(ssd);
  for (std::size_t set = 0; set < ssd.set_count(); ++set) {
    Machine::Ssd& drives = machine.drives(static_cast<int>(set));
    drives.capacity += room.free[set] / ranks;
    drives.count += room.file_systems[set];
  }
  return machine;
}

// This computer's rates, as measured, and its limits.
Machine measured_at_hand(Machine measured, const Machine& limits, const DriveFolders& ssd,
                         bool cuda) {
  const Machine here = machine_at_hand(limits, ssd, cuda);
  measured.name = here.name;
  measured.gpu.memory = here.gpu.memory;
  measured.gpu.workspaces = here.gpu.workspaces;
  measured.gpu.limit = here.gpu.limit;
  measured.host.memory = here.host.memory;
  measured.host.beside = here.host.beside;
  // A drive that was not measured has no rates: nothing can be planned on it.
  for (int set = 0; set < most_drive_sets; ++set) {
    Machine::Ssd& drives = measured.drives(set);
    drives.capacity = drives.count > 0 ? here.drives(set).capacity : 0;
  }
  measured.cluster = limits.cluster;
  for (const char* key : {"gpu.memory", "host.memory", "ssd.capacity"}) {
    const auto given = limits.sources.find(key);
    measured.sources[key] =
        given != limits.sources.end() ? given->second : "what this computer has";
  }
  return measured;
}

std::vector<std::int64_t> micro_batches_of(const Problem& problem, bool choose) {
  if (choose) return micro_batch_candidates(problem.workload.rank_batch());
  return {problem.workload.micro_batch};
}

void limit_gpu(Problem& problem, const TrainHardware& hardware) {
  if (!hardware.gpu_bytes) return;
  std::uint64_t& limit = problem.machine.gpu.memory;
  const std::uint64_t most = hardware.gpu_bytes(problem);
  limit = limit == 0 ? most : std::min(limit, most);
}

// The problem as it is trained there, `gpu_limit` being the limit that was set.
Problem settled(Problem problem, const TrainHardware& hardware, std::uint64_t gpu_limit) {
  if (hardware.cuda) {
    problem.use_gpu_sequences_at_once(
        hardware.choose_sequences_at_once ? 0 : problem.workload.sequences_at_once);
  }
  if (hardware.gpu_bytes) problem.machine.gpu.memory = gpu_limit;
  limit_gpu(problem, hardware);
  return problem;
}

// Without a machine file nothing can be timed: the largest micro-batch that fits, else the
// smallest there can be.
std::int64_t largest_micro_batch(Problem problem, const std::string& policy,
                                 const TrainHardware& hardware, std::uint64_t gpu_limit) {
  std::int64_t smallest = problem.workload.rank_batch();
  for (const std::int64_t micro_batch : micro_batch_candidates(problem.workload.rank_batch())) {
    if (!hardware.choose_sequences_at_once && micro_batch % problem.workload.sequences_at_once != 0)
      continue;
    smallest = problem.workload.micro_batch = micro_batch;
    if (stage_that_lacks(settled(problem, hardware, gpu_limit), policy, 2).fits()) break;
  }
  return smallest;
}

EvaluateOne evaluation_on(const TrainHardware& hardware, std::uint64_t gpu_limit) {
  return [&hardware, gpu_limit](const Problem& problem, const std::string& policy, int steps) {
    if (!hardware.cuda) return evaluate(problem, policy, steps);
    return evaluate(settled(problem, hardware, gpu_limit), policy, steps);
  };
}

// Throws where the plan does not fit. A limit can be raised by an option, the drives at hand
// cannot: another hint where only they are too small. Whether they have room for second copies,
// too, shows when the store is made.
void require_fit_at_hand(const Problem& problem, const FitQuestion& question) {
  Schedule schedule = stage_that_lacks(problem, question.policies[0], 2);
  if (schedule.fits()) return;
  const auto fits = [&](Tier tier) {
    return schedule.use(tier).peak_bytes <= schedule.use(tier).capacity_bytes;
  };
  if (!fits(Tier::gpu) || !fits(Tier::host)) {
    const Wear wear = wear_of(schedule, nullptr, {question.durability, {}});
    Candidates candidates;
    candidates.all.push_back(
        {{std::move(schedule), std::nullopt, 0, 0, 0}, wear, question.policies[0]});
    fail_to_fit(candidates, question);
  }
  try {
    schedule.require_fit();
  } catch (const FitError& error) {
    throw FitError(error.message(), "free space there, name more or other directories with " +
                                        Setting{"ssd", "DIR[,DIR]"} +
                                        ", or a policy that keeps state in host memory");
  }
}

// In snake order micro-batches descend in every second layer; in any other they ascend.
Allows same_sums(const std::string& policy) {
  return [policy](const Problem& problem, const std::string& other) {
    const auto order = [&](const std::string& text) {
      const auto snake = plan_of(problem, text).order;
      const auto micro_batches = static_cast<int>(problem.workload.micro_batches());
      const int row = snake.row == 0 ? micro_batches : std::min(snake.row, micro_batches);
      return snake.snake ? row : 1;
    };
    return order(policy) == order(other);
  };
}

}  // namespace

TrainPlan plan_training(Problem problem, bool choose_micro_batch, const std::string& policy,
                        bool machine_unknown, const DriveFolders& ssd,
                        const TrainHardware& hardware, const WholeRun& run,
                        const std::string& sums_of) {
  const std::uint64_t gpu_limit = problem.machine.gpu.memory;
  problem.trains_on = hardware.cuda ? Backend::cuda : Backend::cpu;
  FitQuestion question;
  question.choose_micro_batch = choose_micro_batch;
  question.policies = policies_named(policy);
  // On drives that nobody has described only the store knows what is free.
  question.durability = machine_unknown ? Durability{} : run.durability;
  question.steps = steps_to_verify;
  question.settle = [&hardware](Problem& tried) {
    tried = settled(tried, hardware, tried.machine.gpu.memory);
  };
  if (machine_unknown && policy == "auto") {
    if (!hardware.measure) {
      throw InputError(
          Setting{"policy", "auto"} + " needs a machine file to compare the policies on",
          "measure one (`spillway calibrate`) and add " + Setting{"machine", "machine.toml"} +
              ", or name a policy");
    }
    const Machine measured =
        hardware.measure(problem, micro_batches_of(problem, choose_micro_batch));
    problem.machine = measured_at_hand(rank_share(measured, problem.gpus_of_node()),
                                       problem.machine, ssd, hardware.cuda);
    set_memory_beside(problem, problem.frozen_in_place);  // of memory that is known only now
  } else if (machine_unknown) {
    problem.machine = machine_at_hand(problem.machine, ssd, hardware.cuda);
    set_memory_beside(problem, problem.frozen_in_place);
    question.problem = problem;
    if (choose_micro_batch)
      problem.workload.micro_batch = largest_micro_batch(problem, policy, hardware, gpu_limit);
    problem = settled(problem, hardware, gpu_limit);
    require_fit_at_hand(problem, question);
    return {problem, policy, std::nullopt};
  }
  question.problem = problem;
  const Candidates candidates =
      evaluate_candidates(problem, choose_micro_batch, question.policies, run, default_steps,
                          evaluation_on(hardware, gpu_limit), question.settle,
                          sums_of.empty() ? Allows() : same_sums(sums_of));
  if (!candidates.chosen) fail_to_fit(candidates, question);
  const Evaluation& chosen = candidates.all[*candidates.chosen].evaluation;
  TrainPlan plan{chosen.schedule.problem(), chosen.schedule.policy(), chosen.result->step_seconds,
                 step_uncertainty(chosen.schedule, *chosen.result, problem.machine)};
  // What the file describes is not what trains.
  if (problem.machine.backend() != problem.backend())
    plan.predicted_step_seconds.reset(), plan.uncertainty.reset();
  return plan;
}

std::vector<fs::path> default_text() {
  const fs::path root = SPILLWAY_SOURCE_DIR;
  std::vector<fs::path> paths;
  for (const char* name :
       {"README.md", "docs", "base", "traces", "policies", "sim", "exec", "experiments", "cli"}) {
    if (fs::exists(root / name)) paths.push_back(root / name);
  }
  if (paths.empty()) {
    throw InputError(
        "Spillway's own text is not where it was built",
        "name text to train on: " + Setting{"data", "FILE"} + " or " + Setting{"data", "FOLDER"});
  }
  return paths;
}

}  // namespace spillway
