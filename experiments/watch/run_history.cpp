#include "experiments/watch/run_history.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "experiments/watch/run_events.hpp"

namespace spillway {

namespace {

// What each step keeps of the average before it: about the last 20 steps count.
constexpr double average_keeps = 0.95;
constexpr double speed_keeps = 0.9;

const nlohmann::json& object_of(const nlohmann::json& event, const char* key) {
  static const nlohmann::json none = nlohmann::json::object();
  const auto found = event.find(key);
  return found != event.end() && found->is_object() ? *found : none;
}

double number_or_0(const nlohmann::json& event, const char* key) {
  return event_number(event, key).value_or(0);
}

}  // namespace

void RunHistory::take(const nlohmann::json& event) {
  if (!event.is_object()) return;
  const std::string name = event_name(event);
  if (name == "start") take_start(event);
  if (name == "step") take_step(event);
  if (name == "evaluation") take_evaluation(event);
  if (name == "end") end_ = event.contains("interrupted") ? End::interrupted : End::complete;
}

void RunHistory::take_start(const nlohmann::json& event) {
  const nlohmann::json& workload = object_of(event, "workload");
  const nlohmann::json& flops = object_of(event, "flops");
  const nlohmann::json& evaluation = object_of(event, "evaluation");
  Start start;
  start.model = event_text(event, "model");
  start.policy = event_text(event, "policy");
  start.device = event_text(event, "device");
  start.steps = event_integer(event, "steps").value_or(0);
  start.first_step = event_integer(event, "first_step").value_or(0);
  start.time = number_or_0(event, "time");
  start.tokens_per_step = number_or_0(workload, "batch") * number_or_0(workload, "sequence");
  start.model_flops = number_or_0(flops, "model_per_step");
  start.device_flops = number_or_0(flops, "device_per_second");
  start.predicted_step_seconds = event_number(event, "predicted_step_seconds");
  start.evaluates = !evaluation.empty();
  start.evaluate_every = event_integer(evaluation, "every").value_or(0);
  for (const auto& [lane, bytes] : object_of(event, "lane_bytes").items()) {
    if (bytes.is_number()) start.lane_bytes[lane] = bytes.get<double>();
  }
  for (const auto& [tier, memory] : object_of(event, "memory").items()) {
    if (memory.is_object()) start.memory_bytes[tier] = number_or_0(memory, "peak_bytes");
  }
  forget_from(start.first_step);
  start_ = std::move(start);
  begun_ = true;
  end_ = End::none;
  time_ = start_.time;
  step_seconds_ = 0;
}

void RunHistory::take_step(const nlohmann::json& event) {
  const auto step = event_integer(event, "step");
  const auto loss = event_number(event, "loss");
  if (!step || *step < 0 || !loss) return;
  if (!steps_.empty() && steps_.back().step >= *step) forget_from(*step);
  StepPoint point;
  point.step = *step;
  point.loss = *loss;
  point.seconds = std::max(0.0, number_or_0(event, "step_seconds"));
  point.tokens_per_second = number_or_0(event, "tokens_per_second");
  point.gradient_norm = event_number(event, "grad_norm");
  point.learning_rate = event_number(event, "learning_rate");
  point.gpu_power_watts = event_number(event, "gpu_power_watts");
  point.gpu_clock_mhz = event_number(event, "gpu_clock_mhz");
  point.skipped = event.contains("skipped");
  point.ssd_bytes_read = number_or_0(event, "ssd_bytes_read");
  point.ssd_bytes_written = number_or_0(event, "ssd_bytes_written");
  if (start_.model_flops > 0 && start_.device_flops > 0 && point.seconds > 0)
    point.mfu = start_.model_flops / point.seconds / start_.device_flops;
  time_ += point.seconds;
  point.time = time_;
  average_sum_ = average_keeps * average_sum_ + point.loss;
  average_weight_ = average_keeps * average_weight_ + 1;
  point.loss_average = average_sum_ / average_weight_;
  step_seconds_ = step_seconds_ == 0
                      ? point.seconds
                      : speed_keeps * step_seconds_ + (1 - speed_keeps) * point.seconds;
  steps_.push_back(point);
}

void RunHistory::take_evaluation(const nlohmann::json& event) {
  const auto step = event_integer(event, "step");
  const auto loss = event_number(event, "loss");
  if (!step || *step < 0 || !loss) return;
  while (!evaluations_.empty() && evaluations_.back().step >= *step) evaluations_.pop_back();
  EvaluationPoint point;
  point.step = *step;
  point.loss = *loss;
  point.perplexity = event_number(event, "perplexity").value_or(std::exp(*loss));
  point.seconds = std::max(0.0, number_or_0(event, "seconds"));
  time_ += point.seconds;
  point.time = time_;
  evaluations_.push_back(point);
}

// The averages go on from what is left.
void RunHistory::forget_from(std::int64_t step) {
  while (!evaluations_.empty() && evaluations_.back().step >= step) evaluations_.pop_back();
  if (steps_.empty() || steps_.back().step < step) return;
  while (!steps_.empty() && steps_.back().step >= step) steps_.pop_back();
  average_sum_ = average_weight_ = 0;
  for (const StepPoint& point : steps_) {
    average_sum_ = average_keeps * average_sum_ + point.loss;
    average_weight_ = average_keeps * average_weight_ + 1;
  }
}

std::int64_t RunHistory::steps_done() const {
  return std::max(start_.first_step, steps_.empty() ? 0 : steps_.back().step + 1);
}

std::optional<double> RunHistory::tokens_per_second() const {
  if (!(step_seconds_ > 0) || !(start_.tokens_per_step > 0)) return {};
  return start_.tokens_per_step / step_seconds_;
}

std::optional<double> RunHistory::mfu() const {
  if (!(step_seconds_ > 0) || !(start_.model_flops > 0) || !(start_.device_flops > 0)) return {};
  return start_.model_flops / step_seconds_ / start_.device_flops;
}

double RunHistory::seconds_left() const {
  const std::int64_t done = steps_done();
  double seconds =
      static_cast<double>(std::max<std::int64_t>(0, start_.steps - done)) * step_seconds_;
  if (!start_.evaluates || evaluations_.empty()) return seconds;
  // Of the steps after which an evaluation is still to come, the last one included.
  std::int64_t evaluations = 0;
  if (const std::int64_t every = start_.evaluate_every; every > 0)
    evaluations = (start_.steps - 1) / every - done / every;
  evaluations = std::max<std::int64_t>(0, evaluations) + (done < start_.steps ? 1 : 0);
  return seconds + static_cast<double>(evaluations) * evaluations_.back().seconds;
}

}  // namespace spillway
