#include "experiments/watch/training_events.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <ctime>

#include "base/text.hpp"
#include "experiments/train/training_wear.hpp"
#include "policies/model/operators.hpp"
#include "sim/result_json.hpp"

namespace spillway {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

ordered_json memory_json(const Schedule& schedule) {
  ordered_json memory;
  for (const Tier tier : memories_of(schedule.problem().machine)) {
    memory[to_string(tier)] = {{"peak_bytes", schedule.use(tier).peak_bytes},
                               {"capacity_bytes", schedule.use(tier).capacity_bytes}};
  }
  return memory;
}

// As short as the float can be read back.
double in_json(float value) { return std::stod(fmt::format("{}", value)); }

// Model FLOPs of a step, and FLOPs per second of what computes them, where that is known.
ordered_json flops_json(const TrainPlan& plan) {
  const Problem& problem = plan.problem;
  const bool known = plan.predicted_step_seconds && problem.machine.gpu.flops > 0;
  const double of_all =
      problem.machine.gpu.flops * static_cast<double>(problem.workload.processes());
  return {{"model_per_step",
           step_flops(problem.model, problem.workload.batch, problem.workload.sequence)},
          {"device_per_second", known ? ordered_json(of_all) : ordered_json()}};
}

// What a step carries on each lane that carries anything.
ordered_json lane_bytes_json(const Schedule& schedule) {
  std::array<double, lane_count> bytes{};
  for (const Task& task : schedule.tasks()) {
    if (task.step == schedule.steps() - 1)
      bytes[static_cast<std::size_t>(task.lane)] += static_cast<double>(task.bytes);
  }
  ordered_json lanes = ordered_json::object();
  for (std::size_t lane = 0; lane < bytes.size(); ++lane) {
    if (bytes[lane] > 0) lanes[to_string(static_cast<Lane>(lane))] = bytes[lane];
  }
  return lanes;
}

}  // namespace

std::vector<std::string> shown_data(const DataSummary& data) {
  constexpr std::size_t most = 3;
  std::vector<std::string> shown;
  for (const fs::path& file : data.first_files) {
    if (shown.size() == most) {
      shown.push_back(fmt::format("... and {} more", data.files - most));
      break;
    }
    shown.push_back(printable(file.string()));
  }
  return shown;
}

ordered_json packing_json(const DataSummary& data) {
  const PackingCounts& counts = data.counts;
  return {{"documents", data.documents},
          {"trained_tokens", data.trained_tokens},
          {"sequences", counts.sequences},
          {"counted_targets", counts.counted},
          {"fill_rate", data.fill_rate},
          {"long_documents",
           {{"split", counts.split}, {"cut", counts.cut}, {"dropped", counts.dropped}}},
          {"left_out", {{"too_short", counts.too_short}, {"untrained", counts.untrained}}}};
}

ordered_json data_json(const DataSummary& data) {
  ordered_json first = ordered_json::array();
  for (const SkippedFiles::One& one : data.skipped.first)
    first.push_back({{"path", one.shown()}, {"reason", one.reason}});
  ordered_json json = {
      {"files", data.files},         {"bytes", data.bytes},
      {"shown", shown_data(data)},   {"skipped", {{"files", data.skipped.count}, {"first", first}}},
      {"tokenizer", data.tokenizer}, {"packing", data.packing},
      {"tokens", data.tokens}};
  if (data.counts.sequences > 0) json.update(packing_json(data));
  return json;
}

ordered_json start_event(const TrainingJob& job) {
  const Training& training = job.training();
  const TrainPlan& plan = job.plan();
  const TrainSettings& settings = job.settings();
  const Problem& problem = training.schedule().problem();
  ordered_json event = {
      {"event", "start"},
      {"model", problem.model.name},
      {"policy", training.schedule().policy()},
      {"device", training.device_name()},
      {"steps", settings.steps},
      {"workload", to_json(problem.workload)},
      {"overrides", problem.overrides},
      {"memory", memory_json(training.schedule())},
      {"predicted_step_seconds",
       plan.predicted_step_seconds ? ordered_json(*plan.predicted_step_seconds) : ordered_json()},
      {"seed", settings.seed},
      {"data", data_json(job.data().summary)},
      {"run", job.folder().path().string()},
      {"first_step", training.first_step()},
      {"time", static_cast<std::int64_t>(std::time(nullptr))},
      {"flops", flops_json(plan)},
      {"lane_bytes", lane_bytes_json(training.schedule())},
      {"durability",
       {{"commit_every", training.commit_interval()},
        {"bytes_copied_per_commit", training.bytes_copied_per_commit()}}}};
  event["data_hash"] = job.data().hash();
  if (plan.predicted_step_seconds && plan.uncertainty) {
    event["predicted_step_seconds_interval"] = {
        plan.uncertainty->low(*plan.predicted_step_seconds),
        plan.uncertainty->high(*plan.predicted_step_seconds)};
    event["interval_share"] = interval_share;
  }
  if (const Evaluations& evaluations = training.evaluations(); evaluations.batches)
    event["evaluation"] = {{"batches", evaluations.count}, {"every", evaluations.every}};
  if (const auto& initial = job.initial_state())
    event["weights"] = {{"folder", initial->folder.string()},
                        {"hash", fmt::format("{:016x}", initial->hash)},
                        {"bytes", initial->bytes}};
  if (const FrozenFiles* const files = training.frozen_files()) {
    event["frozen_weights"] = {{"in_place_bytes", files->bytes()},
                               {"folder", training.frozen_origin()->folder.string()},
                               {"memory_bytes", files->memory_bytes()}};
  } else if (const std::uint64_t bytes = training.frozen_bytes_in_store(); bytes > 0) {
    event["frozen_weights"] = {{"copied_bytes", bytes}, {"why", training.why_in_store()}};
  }
  add_wear(event, wear_of(training, plan, settings.steps), problem.machine);
  if (const auto setup = training.host_memory_setup()) {
    const int node = training.place().node;
    event["host_memory"] = {{"bytes", setup->bytes},
                            {"take_seconds", setup->take_seconds},
                            {"pin_seconds", setup->pin_seconds},
                            {"pinned_pieces", setup->pinned_pieces},
                            {"numa_node", node < 0 ? ordered_json() : ordered_json(node)}};
  }
  if (training.throttle()) event["throttle"] = to_text(training.throttle()->rates());
  return event;
}

ordered_json step_event(const StepResult& step, const TrainingJob& job, const GpuReading& gpu) {
  const Problem& problem = job.plan().problem;
  const auto tokens = static_cast<double>(problem.workload.tokens_per_step());
  ordered_json event = {
      {"event", "step"},
      {"step", step.step},
      {"loss", step.loss},
      {"tokens_per_second", tokens / step.seconds},
      {"step_seconds", step.seconds},
      {"grad_norm", step.gradient_norm},
      {"learning_rate", in_json(job.settings().optimizer.at(step.step).learning_rate)},
      {"ssd_bytes_read", step.ssd_bytes_read},
      {"ssd_bytes_written", step.ssd_bytes_written}};
  if (gpu.power_watts) event["gpu_power_watts"] = *gpu.power_watts;
  if (gpu.clock_mhz) event["gpu_clock_mhz"] = *gpu.clock_mhz;
  if (step.skipped_unit >= 0) {
    event["skipped"] = true;
    event["layer"] = unit_name(problem.model, step.skipped_unit);
  }
  return event;
}

ordered_json evaluation_event(const EvaluationResult& result) {
  return {{"event", "evaluation"},   {"step", result.step},
          {"loss", result.loss},     {"perplexity", std::exp(result.loss)},
          {"tokens", result.tokens}, {"seconds", result.seconds}};
}

ordered_json best_event(const Best& best, const fs::path& folder) {
  return {{"event", "best"}, {"step", best.step}, {"loss", best.loss}, {"folder", folder.string()}};
}

ordered_json sample_event(std::int64_t step, const TrainingSample& sample) {
  return {
      {"event", "sample"},       {"step", step},        {"kind", sample.is_chat ? "chat" : "text"},
      {"prompt", sample.prompt}, {"text", sample.text}, {"tokens", sample.tokens}};
}

ordered_json spike_event(const LossSpike& spike) {
  return {{"event", "spike"},
          {"step", spike.step},
          {"loss", spike.loss},
          {"loss_average", spike.average},
          {"left_out", spike.batch}};
}

ordered_json kept_event(const KeptStep& kept) {
  ordered_json event = {
      {"event", "checkpoint"}, {"step", kept.step}, {"folder", kept.folder.string()}};
  if (!kept.error.empty()) event["error"] = kept.error;
  return event;
}

ordered_json prediction_json(const PredictionCheck& check) {
  return {{"steps", check.steps},
          {"predicted_step_seconds", check.predicted_seconds},
          {"measured_step_seconds", check.measured_seconds},
          {"holds", check.holds()},
          {"lane", check.lane},
          {"lane_predicted_seconds", check.lane_predicted_seconds},
          {"lane_measured_seconds", check.lane_measured_seconds}};
}

}  // namespace spillway
