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

// Numbers of files that come from somebody else: what no training has counts as missing, so that
// neither sums nor differences of them leave the range of a double.
constexpr double largest_number = 1e30;
constexpr std::int64_t most_steps = std::int64_t{1} << 50;

std::optional<double> number_of(const nlohmann::json& event, const char* key) {
  const auto value = event_number(event, key);
  return value && std::abs(*value) <= largest_number ? value : std::nullopt;
}

double number_or_0(const nlohmann::json& event, const char* key) {
  return number_of(event, key).value_or(0);
}

double positive_or_0(const nlohmann::json& event, const char* key) {
  return std::max(0.0, number_or_0(event, key));
}

std::optional<std::int64_t> count_of(const nlohmann::json& event, const char* key) {
  const auto value = event_integer(event, key);
  return value && *value >= 0 && *value <= most_steps ? value : std::nullopt;
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
  start.steps = count_of(event, "steps").value_or(0);
  start.first_step = count_of(event, "first_step").value_or(0);
  start.time = number_or_0(event, "time");
  start.tokens_per_step = positive_or_0(workload, "batch") * positive_or_0(workload, "sequence");
  start.model_flops = number_or_0(flops, "model_per_step");
  start.device_flops = number_or_0(flops, "device_per_second");
  start.predicted_step_seconds = number_of(event, "predicted_step_seconds");
  start.evaluates = !evaluation.empty();
  start.evaluate_every = count_of(evaluation, "every").value_or(0);
  const nlohmann::json& lanes = object_of(event, "lane_bytes");
  for (const auto& [lane, bytes] : lanes.items()) {
    start.lane_bytes[lane] = positive_or_0(lanes, lane.c_str());
  }
  for (const auto& [tier, memory] : object_of(event, "memory").items()) {
    if (memory.is_object()) start.memory_bytes[tier] = positive_or_0(memory, "peak_bytes");
  }
  forget_from(start.first_step);
  start_ = std::move(start);
  begun_ = true;
  end_ = End::none;
  time_ = start_.time;
  step_seconds_ = seconds_sum_ = seconds_weight_ = 0;
}

void RunHistory::take_step(const nlohmann::json& event) {
  const auto step = count_of(event, "step");
  const auto loss = number_of(event, "loss");
  if (!step || !loss) return;
  if (!steps_.empty() && steps_.back().step >= *step) forget_from(*step);
  StepPoint point;
  point.step = *step;
  point.loss = *loss;
  point.seconds = positive_or_0(event, "step_seconds");
  point.tokens_per_second = number_or_0(event, "tokens_per_second");
  point.gradient_norm = number_of(event, "grad_norm");
  point.learning_rate = number_of(event, "learning_rate");
  point.gpu_power_watts = number_of(event, "gpu_power_watts");
  point.gpu_clock_mhz = number_of(event, "gpu_clock_mhz");
  point.skipped = event.contains("skipped");
  point.ssd_bytes_read = number_or_0(event, "ssd_bytes_read");
  point.ssd_bytes_written = number_or_0(event, "ssd_bytes_written");
  if (start_.model_flops > 0 && start_.device_flops > 0 && point.seconds > 0)
    point.mfu = start_.model_flops / point.seconds / start_.device_flops;
  time_ += point.seconds;
  point.time = time_;
  const StepPoint before = steps_.empty() ? StepPoint() : steps_.back();
  point.loss_sum = average_keeps * before.loss_sum + point.loss;
  point.loss_weight = average_keeps * before.loss_weight + 1;
  point.loss_average = point.loss_sum / point.loss_weight;
  // The first steps, often slow ones, weigh no more than those after them.
  seconds_sum_ = speed_keeps * seconds_sum_ + point.seconds;
  seconds_weight_ = speed_keeps * seconds_weight_ + 1;
  step_seconds_ = seconds_sum_ / seconds_weight_;
  steps_.push_back(point);
}

void RunHistory::take_evaluation(const nlohmann::json& event) {
  const auto step = count_of(event, "step");
  const auto loss = number_of(event, "loss");
  if (!step || !loss) return;
  while (!evaluations_.empty() && evaluations_.back().step >= *step) evaluations_.pop_back();
  EvaluationPoint point;
  point.step = *step;
  point.loss = *loss;
  point.perplexity = number_of(event, "perplexity").value_or(std::exp(*loss));
  point.seconds = positive_or_0(event, "seconds");
  time_ += point.seconds;
  point.time = time_;
  evaluations_.push_back(point);
}

void RunHistory::forget_from(std::int64_t step) {
  while (!evaluations_.empty() && evaluations_.back().step >= step) evaluations_.pop_back();
  while (!steps_.empty() && steps_.back().step >= step) steps_.pop_back();
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
