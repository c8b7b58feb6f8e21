#include "experiments/validate/validate.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "experiments/calibrate/reference_kernels.hpp"
#include "experiments/calibrate/sampler.hpp"
#include "experiments/plan/all_ranks.hpp"
#include "experiments/testbed/throttled_machine.hpp"
#include "policies/common/policy.hpp"
#include "policies/common/run_record.hpp"
#include "policies/machine/rank_share.hpp"
#include "sim/to_trace.hpp"

namespace spillway {

namespace {

// Time by kind on the longest chain of tasks of one run of the schedule, which weigh `weights`, per
// step: of the steps that count in traces/compare.hpp, too.
std::map<std::string, double> critical_seconds(const Schedule& schedule,
                                               std::span<const std::int64_t> weights) {
  const int first = schedule.steps() > 1 ? 1 : 0;  // the first one fills the pipeline
  std::map<std::string, double> seconds;
  for (const TaskId id : schedule.critical_path(weights)) {
    const Task& task = schedule.tasks()[id];
    if (task.step < first || task.phase == Phase::epilogue) continue;
    seconds[to_string(task.kind)] +=
        static_cast<double>(weights[id]) / 1e9 / (schedule.steps() - first);
  }
  return seconds;
}

// Durations by task: the median over the segments that recorded it.
std::vector<std::int64_t> durations(const Schedule& schedule, const Trace& trace) {
  std::vector<std::vector<std::int64_t>> samples(schedule.tasks().size());
  for (const Span& span : trace.spans) {
    if (span.task < samples.size()) samples[span.task].push_back(span.end_ns - span.start_ns);
  }
  std::vector<std::int64_t> medians(samples.size(), 0);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    auto& s = samples[i];
    if (s.empty()) continue;
    std::nth_element(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(s.size() / 2), s.end());
    medians[i] = s[s.size() / 2];
  }
  return medians;
}

std::vector<CriticalShare> critical_paths(const Schedule& schedule, const Trace& predicted,
                                          const Trace& measured) {
  std::map<std::string, CriticalShare> shares;
  for (const auto& [kind, seconds] : critical_seconds(schedule, durations(schedule, predicted))) {
    shares[kind].predicted_seconds = seconds;
  }
  for (const auto& [kind, seconds] : critical_seconds(schedule, durations(schedule, measured))) {
    shares[kind].measured_seconds = seconds;
  }
  std::vector<CriticalShare> list;
  for (auto& [kind, share] : shares) {
    share.kind = kind;
    if (share.predicted_seconds > 0 || share.measured_seconds > 0) list.push_back(share);
  }
  std::stable_sort(list.begin(), list.end(), [](const CriticalShare& a, const CriticalShare& b) {
    return a.measured_seconds > b.measured_seconds;
  });
  return list;
}

nlohmann::ordered_json references_json(const std::vector<KernelTime>& references) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const KernelTime& one : references)
    list.push_back({{"kind", one.kind}, {"shape", one.shape}, {"samples_ns", one.samples_ns}});
  return list;
}

std::vector<KernelTime> references_from(const nlohmann::json& list) {
  std::vector<KernelTime> references;
  for (const auto& one : list) {
    const auto samples = one.at("samples_ns").get<std::vector<std::int64_t>>();
    if (samples.empty()) continue;
    references.push_back(kernel_time(one.at("kind"), one.at("shape"), 0, samples));
  }
  return references;
}

std::optional<DriftCorrection> corrected_for_drift(const Schedule& schedule, const Trace& measured,
                                                   double measured_seconds) {
  const Machine& machine = schedule.problem().machine;
  if (recorded_throttle(measured).any()) return std::nullopt;
  DriftCorrection correction;
  const std::vector<KernelTime> references = recorded_references(measured);
  correction.drift = drift_between(machine.references, references);
  if (correction.drift.empty()) return std::nullopt;
  for (const KernelTime& one : references)
    if (correction.drift.contains(one.kind)) correction.samples[one.kind] = one.samples_ns.size();
  const SimulationResult now =
      simulate_stages(stages_of(schedule), drifted_machine(machine, correction.drift));
  correction.predicted_seconds = step_times(to_trace(schedule, now)).median_seconds;
  correction.error = correction.predicted_seconds / measured_seconds - 1;
  return correction;
}

}  // namespace

namespace {

// Ranks run alike, each a schedule of its own: the first one's is held against its prediction. So
// is that of a pipeline's first stage, which is simulated with the others.
Trace of_first_rank(const Trace& all, const Schedule& schedule) {
  if (schedule.problem().workload.processes() == 1) return all;
  const std::size_t lanes = lane_count_of(schedule.problem());
  Trace first = all;
  first.lanes.resize(std::min(first.lanes.size(), lanes));
  std::erase_if(first.spans, [&](const Span& span) { return span.lane >= lanes; });
  return first;
}

}  // namespace

void record_references(Trace& trace, const std::vector<KernelTime>& before,
                       const std::vector<KernelTime>& after) {
  trace.set_metadata("references", nlohmann::ordered_json{{"before", references_json(before)},
                                                          {"after", references_json(after)}}
                                       .dump());
}

std::vector<KernelTime> recorded_references(const Trace& trace) {
  const std::string* text = trace.find_metadata("references");
  if (text == nullptr) return {};
  try {
    const auto json = nlohmann::json::parse(*text);
    return joined(references_from(json.at("before")), references_from(json.at("after")));
  } catch (const nlohmann::json::exception& error) {
    throw InputError(std::string("damaged metadata: references: ") + error.what(),
                     "record the trace again");
  }
}

Validation validate_trace(const Trace& all, const std::string& origin,
                          const std::optional<Machine>& machine,
                          const std::vector<std::string>& set_by_hand) {
  Schedule schedule = rebuild_schedule(all, origin);
  const Trace measured = of_first_rank(all, schedule);
  if (!machine && schedule.problem().machine.gpu.flops == 0) {
    throw InputError(
        origin + ": recorded without a machine file, so there are no rates to predict with",
        "name one: " + Setting{"machine", "machine.toml"} + " (from `spillway calibrate`)");
  }
  if (machine) {
    Problem problem = schedule.problem();
    Machine rates = throttled_machine(*machine, recorded_throttle(measured));
    // A file of one GPU describes a computer whose processes are as many GPUs, as training has it.
    if (problem.workload.processes() > rates.cluster.count())
      rates.cluster.gpus = problem.workload.processes(), rates.cluster.nodes = 1;
    if (rates.cluster.nvlink == 0) {
      rates.cluster.nvlink = problem.machine.cluster.nvlink;
      rates.cluster.nvlink_latency_ns = problem.machine.cluster.nvlink_latency_ns;
      rates.cluster.cores = problem.machine.cluster.cores;
    }
    if (rates.cluster.sharing == 1)
      rates = rank_share(rates, std::min(problem.workload.processes(), rates.cluster.gpus));
    rates.gpu.memory = problem.machine.gpu.memory;
    rates.host.memory = problem.machine.host.memory;
    const int sets = std::max(1, problem.machine.drive_sets());
    if (sets > std::max(1, rates.drive_sets()))
      throw InputError(fmt::format("{}: recorded on {} sets of drives, and machine {} has {}",
                                   origin, sets, rates.name, std::max(1, rates.drive_sets())),
                       "describe them: ssd2.count, ssd2.capacity, ssd2.read and ssd2.write");
    for (int set = 0; set < most_drive_sets; ++set) {
      rates.drives(set).capacity = problem.machine.drives(set).capacity;
      if (set >= sets) rates.drives(set) = {};
    }
    problem.machine = std::move(rates);
    const auto is_kept = [](const std::string& setting) {
      const std::array<const char*, 6> kept = {
          "model.", "gpu_memory=", "host_memory=", "gpu.memory=", "host.memory=", "ssd.capacity="};
      return std::any_of(kept.begin(), kept.end(),
                         [&](const char* key) { return setting.starts_with(key); });
    };
    std::erase_if(problem.overrides, [&](const std::string& one) { return !is_kept(one); });
    problem.overrides.insert(problem.overrides.end(), set_by_hand.begin(), set_by_hand.end());
    // What rests on which set of drives follows from the rates that it was planned with.
    schedule = sets > 1 ? schedule.of(problem)
                        : build_schedule(problem, schedule.policy(), schedule.steps());
  }
  SimulationResult predicted = simulate_stages(stages_of(schedule), schedule.problem().machine);
  const Trace predicted_trace = to_trace(schedule, predicted);
  TraceComparison comparison = compare_traces(predicted_trace, measured);
  std::vector<CriticalShare> critical = critical_paths(schedule, predicted_trace, measured);
  auto corrected = corrected_for_drift(schedule, measured, comparison.measured.median_seconds);
  auto uncertainty = step_uncertainty(schedule, predicted, schedule.problem().machine);
  if (uncertainty && corrected) uncertainty = uncertainty->corrected(corrected->samples);
  return {std::move(schedule), std::move(predicted), std::move(comparison),
          std::move(critical), std::move(corrected), uncertainty};
}

}  // namespace spillway
