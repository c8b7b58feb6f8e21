#include "experiments/calibrate/trials.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>

#include "base/errors.hpp"
#include "exec/data/batches.hpp"
#include "exec/run/training.hpp"
#include "experiments/calibrate/drift.hpp"
#include "experiments/calibrate/normal_priority.hpp"
#include "experiments/calibrate/sampler.hpp"
#include "experiments/calibrate/scratch_folder.hpp"
#include "experiments/calibrate/statistics.hpp"
#include "policies/common/policy.hpp"
#include "sim/simulate.hpp"

namespace spillway {

namespace {

struct TrialPolicy {
  const char* text;
  bool uses_drives;
};
constexpr std::array<TrialPolicy, most_trials / trial_rounds> trial_policies = {
    {{"resident", false},
     {"zero-offload", false},
     {"zero-infinity", true},
     {"fuyou", true},
     {"greedysnake:optimizer_ssd=1", true},
     {"fuyou:swap=auto", true}}};

constexpr int predicted_steps = 6;
constexpr int least_steps = 6, most_steps = 40;       // that are trained; the first does not count
constexpr double usual_seconds = 1.5;                 // of a trial
constexpr double usual_step = 0.5, longest_step = 4;  // seconds

// Tokens without a meaning: arithmetic takes as long with any.
class TrialBatches : public Batches {
 public:
  explicit TrialBatches(std::int64_t vocabulary)
      : vocabulary_(static_cast<std::uint64_t>(vocabulary)) {}
  void require(std::int64_t, std::int64_t) const override {}
  void batch(std::int64_t step, std::int64_t first, std::int64_t sequences, std::int64_t length,
             std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) const override {
    for (std::int64_t i = 0; i < sequences * length; ++i) {
      const std::int64_t at = (step * 64 + first) * length + i;
      tokens[i] = token(at);
      targets[i] = token(at + 1);
      if (starts != nullptr) starts[i] = 0;
    }
  }
  std::uint64_t size() const override { return vocabulary_; }
  std::uint64_t hash() const override { return vocabulary_; }

 private:
  std::int32_t token(std::int64_t at) const {
    return static_cast<std::int32_t>(static_cast<std::uint64_t>(at) * 2654435761U % vocabulary_);
  }
  std::uint64_t vocabulary_;
};

class Trials {
 public:
  Trials(const CalibrationOptions& options, const Machine& machine, ReferenceKernels& references)
      : options_(options), references_(references) {
    problem_.model = options.model;
    problem_.machine = machine;
    std::vector<std::int64_t> sizes = options.micro_batches;
    std::sort(sizes.begin(), sizes.end());
    use_micro_batch(sizes.front());
    for (const std::int64_t size : sizes) {
      const std::int64_t before = problem_.workload.micro_batch;
      use_micro_batch(size);
      if (predicted_seconds(trial_policies.front().text, {}).value_or(0) > usual_step)
        use_micro_batch(before);
    }
  }

  // Nothing where it does not fit, or would take long.
  std::optional<TrialTime> run(const std::string& policy) const {
    auto predicted = predicted_seconds(policy, {});
    if (!predicted || *predicted > longest_step) return std::nullopt;
    const int steps = std::clamp(static_cast<int>(std::lround(usual_seconds / *predicted)) + 1,
                                 least_steps, most_steps);
    const std::vector<KernelTime> before = references_.before_training();
    std::vector<std::int64_t> samples = trained_ns(policy, steps);
    const Drift drift =
        drift_between(problem_.machine.references, joined(before, references_.after_training()));
    predicted = predicted_seconds(policy, drift);
    TrialTime trial = {policy, problem_.workload.batch, problem_.workload.micro_batch};
    trial.predicted_ns = std::llround(*predicted * 1e9);
    trial.median_ns = median_ns(samples);
    trial.spread = spread(samples);
    trial.samples_ns = std::move(samples);
    return trial;
  }

 private:
  void use_micro_batch(std::int64_t size) {
    problem_.workload = {2 * size, size, options_.sequence, options_.precision,
                         GradientWidth::automatic};
  }

  std::optional<double> predicted_seconds(const std::string& policy, const Drift& drift) const {
    try {
      const Schedule schedule = build_schedule(problem_, policy, predicted_steps);
      if (schedule.fits())
        return simulate(schedule, drifted_machine(problem_.machine, drift)).step_seconds;
    } catch (const InputError&) {  // not for this model
    }
    return std::nullopt;
  }

  std::vector<std::int64_t> trained_ns(const std::string& policy, int steps) const {
    std::vector<ScratchFolder> folders;
    TrainingOptions training;
    training.problem = problem_;
    training.policy = policy;
    training.steps = steps;
    training.batches = std::make_shared<TrialBatches>(problem_.model.vocabulary);
    training.threads = options_.threads;
    training.make_ring = options_.io.make_ring;
    for (const auto& directory : options_.ssd)
      training.ssd.push_back(folders.emplace_back(directory).path());
    training.ssd_sets = options_.ssd_sets;
    std::vector<std::int64_t> samples;
    const auto keep = [&](const StepResult& step) {
      samples.push_back(std::llround(step.seconds * 1e9));
    };
    Training(training).run(keep, nullptr);
    samples.erase(samples.begin());
    return samples;
  }

  const CalibrationOptions& options_;
  ReferenceKernels& references_;
  Problem problem_;
};

}  // namespace

std::vector<TrialTime> run_trials(const CalibrationOptions& options, const Machine& machine,
                                  ReferenceKernels& references,
                                  const std::function<void(const std::string&)>& next,
                                  const CalibrationNote& note) {
  const NormalPriority normal(true);
  const Trials trials(options, machine, references);
  std::vector<TrialTime> all;
  for (int round = 0; round < trial_rounds; ++round) {
    for (const TrialPolicy& policy : trial_policies) {
      next(fmt::format("a trial of {}", policy.text));
      if (policy.uses_drives && options.ssd.empty()) continue;
      try {
        if (auto trial = trials.run(policy.text)) all.push_back(std::move(*trial));
      } catch (const Error& error) {
        if (note) note(fmt::format("a trial of {} is left out: {}", policy.text, error.what()));
      }
    }
  }
  return all;
}

}  // namespace spillway
