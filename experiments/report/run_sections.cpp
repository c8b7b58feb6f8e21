#include "experiments/report/run_sections.hpp"

#include <algorithm>

#include "base/units.hpp"

namespace spillway {

namespace {

template <class Value>
std::vector<std::pair<double, double>> over_steps(const std::vector<StepPoint>& steps,
                                                  const Value& value) {
  std::vector<std::pair<double, double>> points;
  for (const StepPoint& step : steps) {
    const std::optional<double> y = value(step);
    if (y) points.emplace_back(static_cast<double>(step.step + 1), *y);
  }
  return points;
}

// Of all steps but the first of a start, which fills the pipeline; nothing of less than two.
std::optional<double> median_seconds(const std::vector<StepPoint>& steps) {
  if (steps.size() < 2) return std::nullopt;
  std::vector<double> seconds;
  for (std::size_t i = 1; i < steps.size(); ++i) seconds.push_back(steps[i].seconds);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

void add_losses(const RunHistory& history, Facts& facts) {
  const std::vector<StepPoint>& steps = history.steps();
  if (steps.empty()) return;
  facts.push_back(
      {"first_loss", "loss, first step", number_text(steps.front().loss, 5), steps.front().loss});
  facts.push_back({"loss", "loss, last step", number_text(steps.back().loss, 5), steps.back().loss,
                   "average " + number_text(steps.back().loss_average, 5)});
  if (history.evaluations().empty()) return;
  const EvaluationPoint& last = history.evaluations().back();
  facts.push_back({"evaluation_loss", "evaluation loss", number_text(last.loss, 5), last.loss,
                   "perplexity " + number_text(last.perplexity)});
}

}  // namespace

Facts facts_of(const SeenRun& run) {
  const RunHistory& history = run.history;
  const RunHistory::Start& start = history.start();
  Facts facts = {{"state", "state", to_string(run.state), to_string(run.state)}};
  if (history.begun()) {
    facts.push_back({"model", "model", start.model, start.model});
    facts.push_back({"policy", "policy", start.policy, start.policy});
    facts.push_back({"device", "device", start.device, start.device});
    facts.push_back(
        {"steps_done", "steps done", number_text(static_cast<double>(history.steps_done()), 9),
         history.steps_done(), "of " + number_text(static_cast<double>(start.steps), 9)});
  }
  add_losses(history, facts);
  if (const auto speed = history.tokens_per_second())
    facts.push_back({"tokens_per_second", "tokens/s", number_text(*speed), *speed,
                     "average of the last steps"});
  if (const auto median = median_seconds(history.steps()))
    facts.push_back({"step_seconds", "step", format_seconds(*median), *median,
                     start.predicted_step_seconds
                         ? "median; predicted " + format_seconds(*start.predicted_step_seconds)
                         : "median"});
  if (const auto mfu = history.mfu())
    facts.push_back({"mfu", "MFU", percentage_text(*mfu), *mfu,
                     "of the rate of the machine file, or as it was measured"});
  return facts;
}

std::vector<Chart> charts_of(const RunHistory& history) {
  using Style = Series::Style;
  const std::vector<StepPoint>& steps = history.steps();
  if (steps.empty()) return {};
  std::vector<std::pair<double, double>> evaluations;
  for (const EvaluationPoint& point : history.evaluations())
    evaluations.emplace_back(static_cast<double>(point.step), point.loss);
  std::vector<Chart> charts;
  charts.push_back(
      {"loss",
       "Loss",
       "step",
       "nats",
       {{"loss", Style::thin_line,
         over_steps(steps, [](const auto& s) { return std::optional(s.loss); })},
        {"its average", Style::line,
         over_steps(steps, [](const auto& s) { return std::optional(s.loss_average); })},
        {"evaluation loss", Style::line, evaluations}}});
  charts.push_back(
      {"throughput",
       "Throughput",
       "step",
       "tokens/s",
       {{"tokens/s", Style::line,
         over_steps(steps, [](const auto& s) { return std::optional(s.tokens_per_second); })}},
       false,
       false,
       true});
  Chart time = {"step-time",
                "Step time",
                "step",
                "seconds",
                {{"measured", Style::line,
                  over_steps(steps, [](const auto& s) { return std::optional(s.seconds); })}},
                false,
                false,
                true};
  if (const auto predicted = history.start().predicted_step_seconds) {
    const auto first = static_cast<double>(steps.front().step + 1);
    const auto last = static_cast<double>(steps.back().step + 1);
    time.series.push_back(
        {"predicted", Style::dashed_line, {{first, *predicted}, {last, *predicted}}});
  }
  charts.push_back(std::move(time));
  const auto add = [&](const char* id, const char* title, const char* unit, const auto& member) {
    auto points = over_steps(steps, [&](const StepPoint& s) { return s.*member; });
    if (!points.empty())
      charts.push_back(
          {id, title, "step", unit, {{title, Style::line, std::move(points)}}, false, false, true});
  };
  add("learning-rate", "Learning rate", "", &StepPoint::learning_rate);
  add("gradient-norm", "Norm of the gradient", "2-norm, before clipping",
      &StepPoint::gradient_norm);
  return charts;
}

}  // namespace spillway
