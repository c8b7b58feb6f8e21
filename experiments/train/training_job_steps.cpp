// A training while it goes on: what is done at each step, each evaluation and each sample.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "exec/data/left_out_batches.hpp"
#include "experiments/calibrate/reference_kernels.hpp"
#include "experiments/train/training_job.hpp"
#include "experiments/validate/validate.hpp"
#include "experiments/watch/run_events.hpp"
#include "experiments/watch/run_history.hpp"

namespace spillway {

namespace {

constexpr std::int64_t most_skipped_in_a_row = 100;
constexpr std::uint64_t longest_metrics = std::uint64_t{1} << 30;

// Ends the run in which it is met.
struct SpikeMet {};

}  // namespace

// Calls take(event) for the events of this run before `first_step`, and for spikes after it.
template <class Take>
void TrainingJob::for_events_before(std::int64_t first_step, const Take& take) const {
  const std::string all =
      folder_->directory().read(RunFolder::metrics, longest_metrics).value_or("");
  const std::string before = events_before(all, first_step);
  for (std::size_t begin = 0; begin < before.size();) {
    const std::size_t end = before.find('\n', begin);
    if (const auto event = read_event(std::string_view(before).substr(begin, end - begin)))
      take(*event);
    begin = end + 1;
  }
}

// Batches that the run has said it leaves out: it may have been killed before it wrote down more.
void TrainingJob::adopt_left_out(std::int64_t first_step) {
  std::vector<std::int64_t>& all = settings_.left_out;
  for_events_before(first_step, [&](const nlohmann::json& event) {
    if (event_name(event) != "spike") return;
    const auto batch = event_integer(event, "left_out");
    if (batch && std::find(all.begin(), all.end(), *batch) == all.end()) all.push_back(*batch);
  });
  std::sort(all.begin(), all.end());
  if (!all.empty()) given_["left_out"] = left_out_texts();
}

// What the watches know of the steps before the first one.
void TrainingJob::look_back() {
  evaluation_watch_ = EvaluationWatch(settings_.early_stop, settings_.early_stop_margin);
  spike_watch_ = SpikeWatch(settings_.spike_guard);
  const std::int64_t first = training_->first_step();
  if (first == 0 || !leads() || (settings_.spike_guard <= 0 && !training_->evaluations().batches))
    return;
  RunHistory history;
  for_events_before(first, [&](const nlohmann::json& event) { history.take(event); });
  for (const EvaluationPoint& point : history.evaluations())
    evaluation_watch_.take(point.step, point.loss);
  for (const StepPoint& point : history.steps())
    if (!point.skipped) spike_watch_.take(point.loss);
  if (history.steps_done() != first && listener_.note)
    listener_.note(
        fmt::format("note: {} does not have the steps before step {}: what goes by losses before "
                    "(early stop, the best, spikes) begins anew",
                    folder_->file(RunFolder::metrics).string(), first));
}

void TrainingJob::check_step(const StepResult& step, std::int64_t& skipped_in_a_row) {
  const bool skipped = step.skipped_unit >= 0;
  if (skipped) ++skipped_steps_;
  skipped_in_a_row = skipped ? skipped_in_a_row + 1 : 0;
  if (skipped_in_a_row == most_skipped_in_a_row) {
    throw MachineError(fmt::format("{} steps in a row had a gradient that is not finite, up to "
                                   "step {}: nothing is learned any more",
                                   most_skipped_in_a_row, step.step),
                       "use a smaller " + Setting{"learning_rate"} + ", a longer " +
                           Setting{"warmup"} + ", or look at the text");
  }
  if (skipped) return;
  if (!spike_watch_.is_spike(step.loss)) return spike_watch_.take(step.loss);
  const std::int64_t batch = LeftOutBatches::source_of(step.step, settings_.left_out);
  std::vector<std::int64_t> left_out = settings_.left_out;
  std::erase_if(left_out, [&](std::int64_t later) { return later > batch; });
  left_out.push_back(batch);
  if (left_out_in_a_row(left_out) > SpikeWatch::most_left_out) {
    throw MachineError(
        fmt::format("the loss of step {} is {:.4f}, that of the steps before {:.4f}, and so it was "
                    "with the {} batches before: it is not the batch",
                    step.step, step.loss, spike_watch_.average(), SpikeWatch::most_left_out),
        "use a smaller " + Setting{"learning_rate"} + ", or a larger " + Setting{"spike_guard"});
  }
  spike_ = LossSpike{step.step, batch, step.loss, spike_watch_.average()};
  settings_.left_out = std::move(left_out);
  throw SpikeMet();
}

bool TrainingJob::take_evaluation(const EvaluationResult& result, const TrainReports& reports) {
  const bool is_best = as_first(evaluation_watch_.take(result.step, result.loss));
  if (reports.evaluated) reports.evaluated(result);
  if (is_best && settings_.keep_best && result.step > 0) {
    write_best();
    if (reports.best) reports.best({result.step, result.loss});
  }
  ended_early_ = result.step < settings_.steps && as_first(evaluation_watch_.out_of_patience());
  return !ended_early_;
}

// Times of this computer's reference kernels, where a machine file has some to compare with: half a
// second, before the first step and after the last. Nothing where a throttle sets the speed, or
// where memory or drives have no room for them.
std::vector<KernelTime> TrainingJob::take_references() const {
  const Machine& machine = training_->schedule().problem().machine;
  if (settings_.problem.machine.empty() || machine.references.empty() || device_.gpu ||
      training_->throttle() || request_.team)
    return {};
  const bool drives = training_->store() != nullptr;
  try {
    return ReferenceKernels(drives ? options_.ssd : std::vector<std::filesystem::path>(),
                            request_.io)
        .take(reference_rounds);
  } catch (const MachineError&) {
    return {};
  }
}

TrainingResult TrainingJob::train(const TrainReports& reports) {
  look_back();
  std::int64_t skipped_in_a_row = 0;
  training_->on_evaluation(
      [&](const EvaluationResult& result) { return take_evaluation(result, reports); });
  if (samples_)
    training_->on_sample(
        [&](std::int64_t step, const StateValues& weights, const std::function<bool()>& stops) {
          const std::vector<TrainingSample> written = samples_->write(weights, stops);
          if (!written.empty() && reports.sampled) reports.sampled(step, written);
        });
  TrainingResult result;
  const std::vector<KernelTime> references = take_references();
  try {
    result = training_->run(
        [&](const StepResult& step) {
          check_step(step, skipped_in_a_row);
          check_prediction(step.seconds);
          if (request_.retune && !retunes_ && prediction_check_ && !prediction_check_->holds()) {
            retunes_ = true;
            training_->request_stop();
          }
          if (reports.step) reports.step(step);
        },
        &trace_, reports.committed);
  } catch (const SpikeMet&) {
    result.steps = spike_->step;
    return result;
  }
  if (!references.empty()) record_references(trace_, references, take_references());
  look_at_lanes();
  steps_done_ = result.steps;
  if (kept_) {
    const auto wait = [&] {
      if (kept_->writing()) say_what_waits();
      kept_->wait();
    };
    wait();
    kept_->committed(result.steps);  // where somebody read what was committed before
    wait();
  }
  return result;
}

// Soon by the time of steps alone, and by what each lane did once that is recorded.
void TrainingJob::check_prediction(double step_seconds) {
  if (!plan_.predicted_step_seconds) return;
  first_steps_.push_back(step_seconds);
  // The very first step fills the pipeline.
  if (first_steps_.size() == fewest_steps_checked + 1)
    prediction_check_ =
        check_steps({first_steps_.begin() + 1, first_steps_.end()}, *plan_.predicted_step_seconds);
  if (first_steps_.size() > fewest_steps_checked) look_at_lanes();
}

void TrainingJob::look_at_lanes() {
  if (!plan_.predicted_step_seconds || (prediction_check_ && !prediction_check_->lanes.empty()))
    return;
  const auto check = spillway::check_prediction(training_->schedule(), trace_);
  if (check) prediction_check_ = check;
}

}  // namespace spillway
