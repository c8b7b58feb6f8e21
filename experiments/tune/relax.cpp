#include "experiments/tune/relax.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.hpp"
#include "experiments/plan/machine_changes.hpp"
#include "experiments/plan/problem_request.hpp"

namespace spillway {

namespace {

struct Relaxed {
  Relaxation what;
  Machine machine;
};

// Bandwidths follow the number of drives: the machine file's table of them or, without one, in
// proportion.
Relaxed with_one_more_drive(const Machine& machine, int set) {
  const Machine::Ssd& before = machine.drives(set);
  const bool in_proportion = before.by_count.empty();
  const std::string which =
      machine.drive_sets() > 1 ? fmt::format(" of {}", drive_set_name(set)) : "";
  Relaxed relaxed{
      {"one more drive" + which, drive_settings(machine, set, before.count + 1, in_proportion)},
      machine};
  Machine::Ssd& ssd = relaxed.machine.drives(set);
  if (!in_proportion) {
    ssd = parse_machine(machine_to_toml(machine), machine.name,
                        {assignment(relaxed.what.changes.front())})
              .drives(set);
    // The text of a machine has no ssd.ceiling, beyond which no cache is written.
    ssd.cache_write = std::min(ssd.cache_write, std::max(before.cache_write, ssd.total));
    return relaxed;
  }
  const double more = 1 + 1 / static_cast<double>(ssd.count);
  ++ssd.count;
  ssd.capacity = static_cast<std::uint64_t>(static_cast<double>(ssd.capacity) * more);
  for (double* rate : {&ssd.read, &ssd.write, &ssd.total, &ssd.cache_write, &ssd.cache_recovery})
    *rate *= more;
  return relaxed;
}

// `limit`: the setting that limits it, empty where none does; so for the GPU's.
Relaxed with_more_host_memory(const Machine& machine, const std::string& limit) {
  Relaxed relaxed{{"64 GB more host memory", {}}, machine};
  Machine::Host& host = relaxed.machine.host;
  const std::uint64_t installed = host.memory + host.reserved + host.beside + 64'000'000'000;
  if (host.reserved_share > 0)
    host.reserved =
        static_cast<std::uint64_t>(host.reserved_share * static_cast<double>(installed));
  host.memory = installed - host.reserved - host.beside;
  relaxed.what.changes = {{limit.empty() ? "host.memory" : limit, size_setting(installed)}};
  return relaxed;
}

Relaxed with_more_gpu_memory(const Machine& machine, const std::string& limit) {
  constexpr std::uint64_t more = 8'000'000'000;
  Relaxed relaxed{{"8 GB more GPU memory", {}}, machine};
  Machine::Gpu& gpu = relaxed.machine.gpu;
  gpu.memory += more;
  if (gpu.limit > 0) gpu.limit += more;
  relaxed.what.changes = {{limit.empty() ? "gpu.memory" : limit,
                           size_setting(limit.empty() ? gpu.memory + gpu.context : gpu.limit)}};
  return relaxed;
}

Relaxed with_faster_link(const Machine& machine) {
  Relaxed relaxed{{"a PCIe link of twice the rate", {}}, machine};
  Machine::Pcie& pcie = relaxed.machine.pcie;
  for (double* rate : {&pcie.h2d, &pcie.d2h, &pcie.total, &pcie.pageable_h2d, &pcie.pageable_d2h,
                       &relaxed.machine.cluster.switch_link})
    *rate *= 2;
  relaxed.what.changes = link_settings(machine, 2);
  relaxed.machine.host.io_bandwidth *= 2;
  return relaxed;
}

Relaxed with_faster_optimizer(const Machine& machine) {
  Relaxed relaxed{{"AdamW at twice the rate on the CPU", {}}, machine};
  double& rate = relaxed.machine.host.adam_params_per_second;
  rate *= 2;
  relaxed.what.changes = {{"host.adam_rate", fmt::format("{:g}Gparam/s", rate / 1e9)}};
  return relaxed;
}

std::vector<Relaxed> all_relaxed(const Problem& problem) {
  const Machine& machine = problem.machine;
  const auto limit = [&](const char* name) -> std::string {
    const bool is_set = std::any_of(
        problem.overrides.begin(), problem.overrides.end(),
        [&](const std::string& one) { return one.starts_with(name + std::string("=")); });
    return is_set ? name : "";
  };
  std::vector<Relaxed> all;
  for (int set = 0; set < machine.drive_sets(); ++set)
    all.push_back(with_one_more_drive(machine, set));
  all.push_back(with_more_host_memory(machine, limit(host_limit)));
  all.push_back(with_more_gpu_memory(machine, limit(gpu_limit)));
  all.push_back(with_faster_link(machine));
  if (machine.host.adam_params_per_second > 0) all.push_back(with_faster_optimizer(machine));
  return all;
}

}  // namespace

std::vector<Relaxation> relax(const Problem& problem, const TuneOptions& options,
                              const Trial& best) {
  std::vector<Relaxation> all;
  const std::vector<Relaxed> machines = all_relaxed(problem);
  for (const Relaxed& relaxed : machines) {
    Problem there = problem;
    there.machine = relaxed.machine;
    Pricer pricer(there, options.threads, options.settle, options.journal);
    SearchLimits limits;
    limits.effort = std::max<std::uint64_t>(8, options.effort / 20);
    limits.tasks = default_tasks / default_effort * limits.effort;
    limits.choose_micro_batch = options.choose_micro_batch;
    limits.seed = options.seed;
    if (options.budget_seconds)
      pricer.stop_at(std::chrono::steady_clock::now() +
                     std::chrono::microseconds(static_cast<std::int64_t>(
                         1e6 * *options.budget_seconds / static_cast<double>(machines.size()))));
    const std::vector<BoundCase> bounds = bounds_of(there, options.choose_micro_batch);
    PlanSearch search(pricer, limits, bounds);
    search.run_near(best);
    Relaxation one = relaxed.what;
    const auto found = search.best();
    if (!found) continue;
    one.step_seconds = found->second.step_seconds;
    one.plan = {found->first.micro_batch, found->second.settled};
    one.bound_seconds = bounds.empty() ? 0 : bounds.front().seconds;
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace spillway
