#include "cli/train/train_events.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/units.hpp"
#include "cli/text/output.hpp"
#include "cli/train/stopped_run.hpp"
#include "cli/train/train_notes.hpp"
#include "experiments/train/training_wear.hpp"

namespace spillway::cli {

namespace fs = std::filesystem;

namespace {

// "; 132.10 ms to 141.00 ms in 90 % of runs"
std::string interval_text(const TrainPlan& plan) {
  if (!plan.uncertainty) return "";
  return fmt::format("; {} to {} in {:.0f} % of runs",
                     format_seconds(plan.uncertainty->low(*plan.predicted_step_seconds)),
                     format_seconds(plan.uncertainty->high(*plan.predicted_step_seconds)),
                     100 * interval_share);
}

}  // namespace

std::string evaluation_text(const EvaluationResult& result) {
  return fmt::format("evaluation after {} steps: loss {:.4f}, perplexity {:.2f}, in {}\n",
                     result.step, result.loss, std::exp(result.loss),
                     format_seconds(result.seconds));
}

std::string sample_text(std::int64_t step, const TrainingSample& sample) {
  const std::string after = fmt::format("after {} steps: ", step);
  if (sample.is_chat) return fmt::format("{}{}\n  {}\n", after, sample.prompt, sample.text);
  return fmt::format("{}{}|{}\n", after, sample.prompt, sample.text);
}

std::string spike_text(const LossSpike& spike) {
  return fmt::format(
      "the loss of step {} is {:.4f}, that of the steps before {:.4f}: batch {} is left out, going "
      "on from the last commit\n",
      spike.step, spike.loss, spike.average, spike.batch);
}

std::string best_text(const TrainingJob& job) {
  const EvaluationWatch& watch = job.evaluation_watch();
  if (!watch.best()) return "";
  std::string text;
  if (job.ended_early())
    text = fmt::format("ended early: {} evaluation{} in a row no better\n", watch.not_better(),
                       watch.not_better() == 1 ? "" : "s");
  if (!job.settings().keep_best && !job.ended_early()) return text;
  text += fmt::format("best evaluation: loss {:.4f} after {} steps", watch.best()->loss,
                      watch.best()->step);
  if (job.settings().keep_best && watch.best()->step > 0)
    text += fmt::format(", kept in {}", job.best_path().string());
  else if (job.settings().keep_best)
    text += ", before the first: none that was trained is better, and none is kept";
  return text + "\n";
}

std::string prediction_text(const PredictionCheck& check, bool measured) {
  std::string text =
      fmt::format("measured: {} a step over {} steps, {:.0f} % {} than predicted",
                  format_seconds(check.measured_seconds), check.steps,
                  100 * std::abs(check.error()), check.error() < 0 ? "less" : "more");
  if (check.holds() || check.lane.empty()) return text + "\n";
  text += fmt::format(
      "\n  {} differs most: its work takes {} a step, predicted were {}\n  {} no longer, or other "
      "programs are running: ",
      check.lane, format_seconds(check.lane_measured_seconds),
      format_seconds(check.lane_predicted_seconds),
      measured ? "what was measured of this machine holds" : "the machine file fits this machine");
  text += "`spillway calibrate --out machine.toml` measures all anew, for --machine machine.toml";
  if (!check.key.empty()) text += fmt::format(" (or --set {}=...)", check.key);
  return text + "\n";
}

std::string frozen_text(const Training& training) {
  if (const FrozenFiles* const files = training.frozen_files()) {
    return fmt::format("{} of them are read in place from {}, through {} of memory",
                       format_bytes(static_cast<double>(files->bytes())),
                       training.frozen_origin()->folder.string(),
                       format_bytes(static_cast<double>(files->memory_bytes())));
  }
  const std::uint64_t bytes = training.frozen_bytes_in_store();
  if (bytes == 0) return "";
  return fmt::format("{} of them are copied to the ssd tier at the start: {}",
                     format_bytes(static_cast<double>(bytes)), training.why_in_store());
}

void announce(const TrainingJob& job) {
  const Training& training = job.training();
  const TrainPlan& plan = job.plan();
  const fs::path& run = job.folder().path();
  const Schedule& schedule = training.schedule();
  const DataSummary& data = job.data().summary;
  fmt::print("{} with policy {} on {}\n", schedule.problem().model.name, schedule.policy(),
             training.device_name());
  fmt::print("  batch {} in micro-batches of {}, {} tokens a sequence; text {}: {} in {} file{}\n",
             schedule.problem().workload.batch, schedule.problem().workload.micro_batch,
             schedule.problem().workload.sequence, job.data().hash(),
             format_bytes(static_cast<double>(data.bytes)), data.files, data.files == 1 ? "" : "s");
  for (const std::string& path : shown_data(data)) fmt::print("    {}\n", path);
  if (data.skipped.count > 0) fmt::print("  {}\n", data.skipped.text());
  if (data.counts.sequences > 0) fmt::print("  {}\n", packing_text(data));
  if (job.settings().epochs > 0 || job.settings().tokens > 0)
    fmt::print("  {} steps are {:.2f} epochs\n", job.settings().steps,
               static_cast<double>(job.settings().steps) / job.data().steps_of_epoch);
  const Workload& workload = schedule.problem().workload;
  if (workload.moments == MomentWidth::bf16) fmt::print("  AdamW's moments in bf16\n");
  if (workload.precision == Precision::bf16)
    fmt::print("  bf16, {} at once\n",
               workload.sequences_at_once == 1
                   ? "1 sequence"
                   : fmt::format("{} sequences", workload.sequences_at_once));
  for (const Tier tier : memories_of(schedule.problem().machine)) {
    const bool has_store = is_drives(tier) && training.store() != nullptr;
    const std::uint64_t bytes =
        has_store ? training.store()->size_of(drive_set(tier)) : schedule.use(tier).peak_bytes;
    fmt::print(
        "  {:<4} {:>10} of {}{}\n", to_string(tier), format_bytes(static_cast<double>(bytes)),
        format_bytes(static_cast<double>(schedule.use(tier).capacity_bytes)),
        bytes > schedule.use(tier).peak_bytes ? "   with copies of optimizer state for commits"
                                              : "");
  }
  if (const std::string text = frozen_text(training); !text.empty())
    fmt::print("  frozen weights: {}\n", text);
  if (training.throttle()) fmt::print("  throttled to {}\n", to_text(training.throttle()->rates()));
  if (plan.predicted_step_seconds)
    fmt::print("  predicted: {} a step{}\n", format_seconds(*plan.predicted_step_seconds),
               interval_text(plan));
  fmt::print("  run folder: {}\n", run.string());
  flush_output();
}

void announce_end(const Training& training, const TrainingResult& result, const RunFolder& run,
                  const fs::path& trace, const fs::path& weights, const std::string& table,
                  bool stopped, bool ended_early) {
  const std::string losses =
      result.steps > training.first_step()
          ? fmt::format("loss {:.4f} to {:.4f}", result.first_loss, result.final_loss)
          : "all of them done before";
  fmt::print("{} steps, {}, weights {:016x}\n", result.steps, losses, result.weights_hash);
  fmt::print("{}", table);
  const bool has_rates = training.schedule().problem().machine.gpu.flops > 0;
  fmt::print("trace: {}   (opens in https://ui.perfetto.dev{})\n", trace.string(),
             has_rates ? "; `spillway validate " + shell_word(trace.string()) + "`" : "");
  if (!weights.empty()) fmt::print("weights: {}\n", weights.string());
  if (stopped || !run.saved().store || !run.saved().not_resumable.empty()) return;
  fmt::print("state: {} on disk, at step {}\n",
             format_bytes(static_cast<double>(training.store()->size())), result.steps);
  fmt::print("  to go on:   spillway train --resume --run {} {}\n", shell_word(run.path().string()),
             ended_early ? "--early-stop 0" : "--steps MORE");
  fmt::print("  to free it: spillway store remove {}\n", shell_word(run.path().string()));
}

}  // namespace spillway::cli
