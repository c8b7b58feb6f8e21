#include "policies/cost/commit_interval.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "policies/cost/costs.hpp"
#include "policies/model/operators.hpp"

namespace spillway {

namespace {

// The size of drives without rates is what happens to be free on them: it says nothing of their
// life.
bool has_rates(const Machine::Ssd& ssd) { return ssd.count > 0 && ssd.write > 0; }

double rated_or_assumed(const Machine& machine) {
  const double rated = rated_bytes(machine);
  if (rated > 0) return rated;
  namespace assumed = commit_assumptions;
  return assumed::rewrites * (has_rates(machine.ssd) ? static_cast<double>(machine.ssd.capacity)
                                                     : assumed::drive_bytes);
}

// To which commits copy what rests in memory.
DriveRates first_drives(const Problem& problem) {
  const Machine::Ssd& ssd = problem.machine.ssd;
  return problem.machine.drive_sets() > 1 ? drive_rates(ssd, ssd.at_queue_depth())
                                          : Costs(problem).drives();
}

double assumed_step_seconds(const Problem& problem) {
  namespace assumed = commit_assumptions;
  const double given = problem.machine.gpu.flops;
  const double of_backend =
      problem.backend() == Backend::cpu ? assumed::cpu_flops : assumed::gpu_flops;
  return step_flops(problem.model, problem.workload.batch, problem.workload.sequence) /
         (given > 0 ? given : of_backend);
}

}  // namespace

double rated_bytes(const Machine& machine) {
  const auto shares = speed_shares(machine);
  double least = std::numeric_limits<double>::infinity();
  for (int set = 0; set < std::max(1, machine.drive_sets()); ++set) {
    const Machine::Ssd& ssd = machine.drives(set);
    least = std::min(least, static_cast<double>(ssd.tbw) * static_cast<double>(ssd.count) /
                                shares[static_cast<std::size_t>(set)]);
  }
  return least;
}

CommitInterval commit_interval(const StoreBytes& bytes, const Problem& problem,
                               double step_seconds) {
  namespace assumed = commit_assumptions;
  if (!(step_seconds > 0)) step_seconds = assumed_step_seconds(problem);
  CommitInterval interval;
  interval.seconds = step_seconds;
  if (bytes.captured() == 0) return interval;
  const auto captured = static_cast<double>(bytes.captured());
  interval.cost_seconds = has_rates(problem.machine.ssd)
                              ? first_drives(problem).seconds(0, captured)
                              : captured / assumed::write_rate;
  const double least_lost =
      std::sqrt(2 * interval.cost_seconds * assumed::seconds_between_failures);
  const double wear_rate =
      rated_or_assumed(problem.machine) / (assumed::years_of_drive_life * seconds_per_year);
  const double steps = std::ceil(std::max(least_lost, captured / wear_rate) / step_seconds);
  constexpr double most = 1e15;  // steps; nobody gets there, and products of it stay whole
  interval.steps = static_cast<std::int64_t>(std::clamp(steps, 1.0, most));
  interval.seconds = static_cast<double>(interval.steps) * step_seconds;
  return interval;
}

}  // namespace spillway
