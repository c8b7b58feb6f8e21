#include "cli/train/dry_run.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/train/train_notes.hpp"
#include "sim/result_json.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

std::string size_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

ordered_json number(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

std::optional<double> tokens_per_second(const TrainPlan& plan) {
  if (!plan.predicted_step_seconds) return {};
  return static_cast<double>(plan.problem.workload.tokens_per_step()) /
         *plan.predicted_step_seconds;
}

std::string device_of(const TrainingJob& job) {
  return job.device().gpu ? job.device().gpu->name : "the CPU";
}

double epochs_of(const TrainingJob& job) {
  return static_cast<double>(job.settings().steps) / job.data().steps_of_epoch;
}

std::string parts_text(const std::vector<MemoryPart>& parts) {
  std::string text;
  for (const MemoryPart& part : parts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", size_text(part.bytes),
                        to_string(part.kind));
  return text;
}

// Of the drives: what the store takes of them beside what the schedules have planned.
std::string store_text(const StoreBytes& store) {
  std::string text = fmt::format("{} in all", size_text(store.all()));
  const auto add = [&](std::uint64_t bytes, const char* what) {
    if (bytes > 0) text += fmt::format(", {} of it {}", size_text(bytes), what);
  };
  add(store.second_copies, "second copies of optimizer state");
  add(store.memory_copies, "copies of what rests in memory");
  return text;
}

std::string data_text(const TrainingJob& job) {
  const DataSummary& data = job.data().summary;
  std::string text = fmt::format("  data: {} in {} file{}\n", size_text(data.bytes), data.files,
                                 data.files == 1 ? "" : "s");
  for (const std::string& path : shown_data(data)) text += fmt::format("    {}\n", path);
  if (data.skipped.count > 0) text += fmt::format("  {}\n", data.skipped.text());
  if (data.counts.sequences > 0) text += fmt::format("  {}\n", packing_text(data));
  return text + fmt::format("  hash of the data: {}\n", job.data().hash());
}

std::string time_text(const TrainingJob& job, const TrainingOutlook& outlook) {
  const TrainPlan& plan = job.plan();
  const Workload& workload = plan.problem.workload;
  std::string text = fmt::format("  {} steps of {} tokens, {:.2f} epochs", job.settings().steps,
                                 workload.tokens_per_step(), epochs_of(job));
  if (outlook.start.first > 0) text += fmt::format("; {} of them are done", outlook.start.first);
  if (!plan.predicted_step_seconds)
    return text +
           "\n  no step time is predicted: this machine is not known (add --machine, or use "
           "--policy auto)\n";
  return text + fmt::format("\n  predicted: {} a step, {:.0f} tokens/s, {} for {} steps{}\n",
                            format_seconds(*plan.predicted_step_seconds), *tokens_per_second(plan),
                            long_time(*outlook.wear.run_seconds()), outlook.steps_left(),
                            job.data().validation ? ", evaluations beside" : "");
}

}  // namespace

std::string memory_text(const TrainingOutlook& outlook) {
  std::string text;
  for (const TierOutlook& tier : outlook.memory) {
    if (tier.limit == 0 && tier.peak == 0) continue;
    text += fmt::format("  {:<4} {:>10} of {}{}{}\n", to_string(tier.tier), size_text(tier.peak),
                        size_text(tier.limit), tier.of_evaluation ? ", in evaluations" : "",
                        tier.parts.empty() ? "" : ": " + parts_text(tier.parts));
    if (tier.set_aside > 0)
      text += fmt::format("       {} more are set aside for {}\n", size_text(tier.set_aside),
                          tier.tier == Tier::gpu ? "workspaces" : "what works beside the schedule");
  }
  return text;
}

ordered_json outlook_json(const TrainingJob& job, const TrainingOutlook& outlook) {
  const TrainPlan& plan = job.plan();
  const Schedule& schedule = outlook.start.schedules->usual();
  ordered_json memory;
  for (const TierOutlook& tier : outlook.memory) {
    ordered_json parts = ordered_json::object();
    for (const MemoryPart& part : tier.parts) parts[to_string(part.kind)] = part.bytes;
    memory[to_string(tier.tier)] = {{"peak_bytes", tier.peak},
                                    {"capacity_bytes", tier.limit},
                                    {"set_aside_bytes", tier.set_aside},
                                    {"in_evaluations", tier.of_evaluation},
                                    {"parts", parts}};
  }
  ordered_json json = {{"dry_run", true},
                       {"model", plan.problem.model.name},
                       {"policy", schedule.policy()},
                       {"device", device_of(job)},
                       {"steps", job.settings().steps},
                       {"first_step", outlook.start.first},
                       {"epochs", epochs_of(job)},
                       {"workload", to_json(plan.problem.workload)},
                       {"overrides", plan.problem.overrides},
                       {"memory", memory},
                       {"store_bytes", outlook.start.store_bytes.all()},
                       {"predicted_step_seconds", number(plan.predicted_step_seconds)},
                       {"tokens_per_second", number(tokens_per_second(plan))},
                       {"run_seconds", number(outlook.wear.run_seconds())},
                       {"seed", job.settings().seed},
                       {"data", data_json(job.data().summary)},
                       {"data_hash", job.data().hash()}};
  if (job.data().validation)
    json["evaluation"] = {{"batches", job.evaluations().count}, {"every", job.evaluations().every}};
  ordered_json outputs = ordered_json::array();
  for (const TrainingOutlook::Output& output : outlook.outputs)
    outputs.push_back({{"path", output.path.string()}, {"bytes", output.bytes}});
  json["outputs"] = outputs;
  add_wear(json, outlook.wear, plan.problem.machine);
  return json;
}

std::string outlook_text(const TrainingJob& job, const TrainingOutlook& outlook) {
  const TrainPlan& plan = job.plan();
  const Schedule& schedule = outlook.start.schedules->usual();
  const Workload& workload = plan.problem.workload;
  std::string text =
      fmt::format("{} with policy {} on {}\n", plan.problem.model.name, schedule.policy(),
                  device_of(job)) +
      fmt::format("  batch {} in micro-batches of {}, {} tokens a sequence, {}\n", workload.batch,
                  workload.micro_batch, workload.sequence, assumptions_text(plan.problem, 0));
  text += data_text(job) + time_text(job, outlook);
  if (const Evaluations& evaluations = job.evaluations(); evaluations.batches)
    text += fmt::format("  evaluations: {} batch{}, {}\n", evaluations.count,
                        evaluations.count == 1 ? "" : "es",
                        evaluations.every == 0 ? "before the first step and after the last"
                                               : fmt::format("every {} steps", evaluations.every));
  text += memory_text(outlook);
  const StoreBytes& store = outlook.start.store_bytes;
  if (store.all() > 0) text += fmt::format("  {:<13}{}\n", "ssd space", store_text(store));
  text += wear_text(outlook.wear, plan.problem.machine, "  ");
  for (const TrainingOutlook::Output& output : outlook.outputs)
    text += fmt::format("  {:<13}{}: {}{}\n", "writes", printable(output.path.string()),
                        size_text(output.bytes), output.what);
  return text;
}

}  // namespace spillway::cli
