#include "experiments/train_plan.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "base/errors.hpp"
#include "exec/arena.hpp"
#include "experiments/evaluate.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

// This computer, as far as memory goes: the CPU backend shares what is available between the two
// tiers.
Machine machine_at_hand(Machine machine, const std::vector<fs::path>& ssd, bool cuda) {
  machine.name = "this machine";
  machine.gpu.is_cpu = !cuda;
  const std::uint64_t available = available_memory();
  if (machine.gpu.memory == 0) machine.gpu.memory = available / 4;
  if (machine.host.memory == 0) machine.host.memory = available / (cuda ? 2 : 4);
  // Directories on one file system share its room.
  std::set<dev_t> file_systems;
  for (const fs::path& directory : ssd) {
    struct stat status {};
    if (stat(directory.c_str(), &status) != 0 || !file_systems.insert(status.st_dev).second)
      continue;
    std::error_code error;
    const fs::space_info space = fs::space(directory, error);
    if (!error) machine.ssd.capacity += space.available;
    machine.ssd.count += 1;
  }
  return machine;
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
  std::int64_t smallest = problem.workload.batch;
  for (const std::int64_t micro_batch : micro_batch_candidates(problem.workload.batch)) {
    if (!hardware.choose_sequences_at_once && micro_batch % problem.workload.sequences_at_once != 0)
      continue;
    smallest = problem.workload.micro_batch = micro_batch;
    if (build_schedule(settled(problem, hardware, gpu_limit), policy, 2).fits()) break;
  }
  return smallest;
}

EvaluateOne evaluation_on(const TrainHardware& hardware, std::uint64_t gpu_limit) {
  if (!hardware.cuda) return evaluate;
  return [&hardware, gpu_limit](const Problem& problem, const std::string& policy, int steps) {
    return evaluate(settled(problem, hardware, gpu_limit), policy, steps);
  };
}

// A limit can be raised by an option, the drives at hand cannot: another hint where only they are
// too small.
void require_fit_on_drives(const Problem& problem, const std::string& policy) {
  const Schedule schedule = build_schedule(problem, policy, 2);
  try {
    schedule.require_fit();
  } catch (const FitError& error) {
    for (const Tier tier : {Tier::gpu, Tier::host}) {
      if (schedule.use(tier).peak_bytes > schedule.use(tier).capacity_bytes) throw;
    }
    throw FitError(error.what(),
                   "free space there, name more or other directories with --ssd DIR[,DIR], or a "
                   "policy that keeps state in host memory");
  }
}

}  // namespace

TrainPlan plan_training(Problem problem, bool choose_micro_batch, const std::string& policy,
                        bool machine_unknown, const std::vector<fs::path>& ssd,
                        const TrainHardware& hardware) {
  const std::uint64_t gpu_limit = problem.machine.gpu.memory;
  if (machine_unknown) {
    if (policy == "auto") {
      throw InputError("--policy auto needs a machine file to compare the policies on",
                       "run `spillway calibrate --out machine.toml` and add --machine "
                       "machine.toml, or name a policy");
    }
    problem.machine = machine_at_hand(problem.machine, ssd, hardware.cuda);
    if (choose_micro_batch)
      problem.workload.micro_batch = largest_micro_batch(problem, policy, hardware, gpu_limit);
    problem = settled(problem, hardware, gpu_limit);
    require_fit_on_drives(problem, policy);
    return {problem, policy, std::nullopt};
  }
  std::vector<std::string> policies;
  if (policy != "auto") {
    policies.push_back(policy);
  } else {
    for (const PolicyInfo& info : builtin_policies()) policies.push_back(info.name);
    policies.emplace_back("fuyou:swap=auto");  // its default is what was published, not the fastest
  }
  const std::vector<Evaluation> all =
      evaluate_policies(problem, choose_micro_batch, policies, evaluation_on(hardware, gpu_limit));
  const auto best = fastest(all);
  if (!best) {
    all.back().schedule.require_fit();
    bug("a schedule without a result does not fit", __FILE__, __LINE__);
  }
  const Evaluation& chosen = all[*best];
  TrainPlan plan{chosen.schedule.problem(), chosen.schedule.policy(), chosen.result->step_seconds};
  // What the file describes is not what trains.
  if (problem.machine.gpu.is_cpu == hardware.cuda) plan.predicted_step_seconds.reset();
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
    throw InputError("Spillway's own text is not where it was built",
                     "name text to train on: --data FILE or --data FOLDER");
  }
  return paths;
}

}  // namespace spillway
