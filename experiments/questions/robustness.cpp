#include "experiments/questions/robustness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "base/errors.hpp"
#include "experiments/plan/write_cache.hpp"
#include "experiments/questions/assumptions.hpp"

namespace spillway {

namespace {

// Kernels that are timed by shape. The samples of the others are behind the machine's rates.
bool is_compute(const KernelTime& kernel) {
  static constexpr std::array<const char*, 6> of_rates = {"h2d",   "d2h",       "read",
                                                          "write", "optimizer", "gradient_norm"};
  return std::find(of_rates.begin(), of_rates.end(), kernel.kind) == of_rates.end();
}

std::int64_t percentile(std::vector<std::int64_t> samples, double share) {
  std::sort(samples.begin(), samples.end());
  const auto last = static_cast<double>(samples.size() - 1);
  return samples[static_cast<std::size_t>(std::lround(share * last))];
}

bool has_samples(const KernelTime& kernel) {
  return kernel.samples_ns.size() > 1 && kernel.median_ns > 0;
}

// Of the longest measurement of its kind alone: the time at that share of its samples over the
// median; 1 where there is none.
double stretch(const Machine& machine, const char* kind, double share) {
  const KernelTime* longest = nullptr;
  for (const KernelTime& kernel : machine.kernels) {
    const bool alone = kernel.shape.find("beside=") == std::string::npos;
    if (kernel.kind != kind || !alone || !has_samples(kernel)) continue;
    if (longest == nullptr || kernel.median_ns > longest->median_ns) longest = &kernel;
  }
  if (longest == nullptr) return 1;
  const std::int64_t at_share = std::max<std::int64_t>(1, percentile(longest->samples_ns, share));
  return static_cast<double>(at_share) / static_cast<double>(longest->median_ns);
}

// Everything that was measured, as slow as at that share of its samples.
Machine at_percentile(Machine machine, double share) {
  const std::array<std::pair<const char*, double*>, 5> rates = {
      {{"h2d", &machine.pcie.h2d},
       {"d2h", &machine.pcie.d2h},
       {"read", &machine.ssd.read},
       {"write", &machine.ssd.write},
       {"optimizer", &machine.host.adam_params_per_second}}};
  for (const auto& [kind, rate] : rates) *rate /= stretch(machine, kind, share);
  // Of other sets of drives no samples are kept: they are taken to vary as the first does.
  for (Machine::Ssd& more : machine.more_ssd) {
    more.read /= stretch(machine, "read", share);
    more.write /= stretch(machine, "write", share);
  }
  for (KernelTime& kernel : machine.kernels) {
    if (is_compute(kernel) && has_samples(kernel))
      kernel.median_ns = std::max<std::int64_t>(1, percentile(kernel.samples_ns, share));
  }
  return machine;
}

// Uniform between 1 - rate_margin and 1 + rate_margin; the same on every platform, which
// std::uniform_real_distribution does not promise.
double random_factor(std::mt19937_64& random) {
  const double share = static_cast<double>(random() >> 11) * 0x1p-53;
  return 1 - rate_margin + 2 * rate_margin * share;
}

// False where the rate is not one of drives.
bool scale_drives(Machine& machine, const std::string& rate, double factor) {
  for (int set = 0; set < most_drive_sets; ++set) {
    Machine::Ssd& drives = machine.drives(set);
    const auto is = [&](const char* key) { return rate == drive_set_key(set, key); };
    if (is("read")) {
      drives.read *= factor;
    } else if (is("write")) {
      drives.write *= factor;
    } else if (is("total")) {
      drives.total *= factor;
    } else if (is("mixed")) {
      const auto scale = [&](double& gain) { gain = std::clamp(gain * factor, 1.0, 2.0); };
      scale(drives.mixed_gain);
      for (auto& [share, gain] : drives.by_read_share) scale(gain);
      for (auto& [depth, gains] : drives.read_share_by_depth) {
        for (auto& [share, gain] : gains) scale(gain);
      }
    } else {
      continue;
    }
    return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> scalable_rates(const Machine& machine) {
  std::vector<std::string> rates = {"gpu", "pcie"};
  for (int set = 0; set < machine.drive_sets(); ++set) {
    const Machine::Ssd& drives = machine.drives(set);
    rates.insert(rates.end(), {drive_set_key(set, "read"), drive_set_key(set, "write")});
    if (drives.law == SsdLaw::capped && drives.total > 0)
      rates.push_back(drive_set_key(set, "total"));
    if (drives.law == SsdLaw::mixed) rates.push_back(drive_set_key(set, "mixed"));
  }
  rates.insert(rates.end(), {"cpu", "dram"});
  return rates;
}

Machine with_scaled_rate(Machine machine, const std::string& rate, double factor) {
  if (rate == "gpu") {
    machine.gpu.flops *= factor;
    machine.gpu.attention_flops *= factor;
    machine.gpu.memory_bandwidth *= factor;
    machine.gpu.adam_params_per_second *= factor;
    for (KernelTime& kernel : machine.kernels) {
      if (is_compute(kernel))
        kernel.median_ns = std::llround(static_cast<double>(kernel.median_ns) / factor);
    }
  } else if (rate == "pcie") {
    for (double* one : {&machine.pcie.h2d, &machine.pcie.d2h, &machine.pcie.total,
                        &machine.pcie.pageable_h2d, &machine.pcie.pageable_d2h})
      *one *= factor;
  } else if (scale_drives(machine, rate, factor)) {
    return machine;
  } else if (rate == "cpu") {
    machine.host.adam_params_per_second *= factor;
    machine.host.core_bandwidth *= factor;
  } else if (rate == "dram") {
    machine.host.bandwidth *= factor;
  } else {
    throw InputError(fmt::format("no rate of a machine is called {}", rate));
  }
  return machine;
}

double Robustness::worst_seconds() const {
  double worst = std::max(step_seconds, all_slower_seconds);
  for (const RateEffect& one : rates) worst = std::max(worst, one.slower_step_seconds);
  for (const double seconds : random_seconds) worst = std::max(worst, seconds);
  worst = std::max(worst, assumed_slow_seconds.value_or(0));
  return std::max(worst, measured_slow_seconds.value_or(0));
}

Robustness robustness(const Schedule& schedule, const SimulationResult& result, std::uint64_t seed,
                      const std::function<void(const std::string&)>& say) {
  const Machine& machine = schedule.problem().machine;
  const std::vector<Schedule> stages = stages_of(schedule);
  const auto seconds = [&](const Machine& other, const std::string& what) {
    if (say) say("simulating " + what);
    return simulate_long_run(stages, other).step_seconds;
  };
  const std::vector<std::string> rates = scalable_rates(machine);
  // A gain is a ratio of rates, and stays where all of them change.
  std::vector<std::string> together = rates;
  together.erase(std::remove(together.begin(), together.end(), "ssd.mixed"), together.end());
  const auto with_all = [&](double factor) {
    Machine all = machine;
    for (const std::string& rate : together) all = with_scaled_rate(std::move(all), rate, factor);
    return all;
  };
  Robustness answer;
  answer.policy = schedule.policy();
  answer.micro_batch = schedule.problem().workload.micro_batch;
  answer.step_seconds = result.step_seconds;
  answer.seed = seed;
  for (const std::string& rate : rates) {
    answer.rates.push_back(
        {rate, seconds(with_scaled_rate(machine, rate, 1 - rate_margin), "a lower " + rate),
         seconds(with_scaled_rate(machine, rate, 1 + rate_margin), "a higher " + rate)});
  }
  std::stable_sort(answer.rates.begin(), answer.rates.end(),
                   [](const RateEffect& a, const RateEffect& b) {
                     return a.slower_step_seconds > b.slower_step_seconds;
                   });
  answer.all_slower_seconds = seconds(with_all(1 - rate_margin), "all rates lower");
  answer.all_faster_seconds = seconds(with_all(1 + rate_margin), "all rates higher");
  std::mt19937_64 random(seed);
  for (int i = 0; i < random_machines; ++i) {
    Machine other = machine;
    for (const std::string& rate : together)
      other = with_scaled_rate(std::move(other), rate, random_factor(random));
    answer.random_seconds.push_back(
        seconds(other, fmt::format("random rates, {} of {}", i + 1, random_machines)));
  }
  std::sort(answer.random_seconds.begin(), answer.random_seconds.end());
  if (std::any_of(machine.kernels.begin(), machine.kernels.end(), has_samples)) {
    answer.measured_slow_seconds = seconds(at_percentile(machine, 0.8), "what was measured, slow");
    answer.measured_fast_seconds = seconds(at_percentile(machine, 0.2), "what was measured, fast");
  }
  const AssumptionEffects assumed = effects_of_assumptions(schedule, result, say);
  if (assumed.slowest_seconds != assumed.fastest_seconds) {
    answer.assumed_slow_seconds = assumed.slowest_seconds;
    answer.assumed_fast_seconds = assumed.fastest_seconds;
  }
  return answer;
}

std::optional<Robustness> robustness(const Problem& problem, const std::string& policy,
                                     std::uint64_t seed, const EvaluateOne& evaluate_one) {
  const Evaluation evaluation = evaluate_one(problem, policy, default_steps);
  if (!evaluation.result) return {};
  return robustness(evaluation.schedule, *evaluation.result, seed);
}

}  // namespace spillway
