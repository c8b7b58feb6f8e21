#include "traces/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr double ns_per_second = 1e9;

// The middle value; of an even number of values, the mean of the two in the middle. 0 of none.
double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double relative_error(double predicted, double measured) {
  if (predicted == measured) return 0;
  if (measured == 0) return std::numeric_limits<double>::infinity();
  return predicted / measured - 1;
}

// One run of the schedule inside a trace.
struct Segment {
  std::int64_t start_ns = std::numeric_limits<std::int64_t>::max();
  std::map<std::int32_t, std::int64_t> step_end_ns;  // step -> D_k
};

// A trace with its segments found.
class Reading {
 public:
  explicit Reading(const Trace& trace) : trace_(trace) {
    for (const Span& span : trace.spans) {
      if (!counts(span)) continue;
      Segment& segment = segments_[span.segment];
      segment.start_ns = std::min(segment.start_ns, span.start_ns);
      const auto [end, fresh] = segment.step_end_ns.emplace(span.step, span.end_ns);
      if (!fresh) end->second = std::max(end->second, span.end_ns);
    }
    if (segments_.empty())
      throw InputError("the trace has no steps in it", "record at least one step");
    filling_ = std::none_of(segments_.begin(), segments_.end(),
                            [](const auto& entry) { return entry.second.step_end_ns.size() > 1; });
  }

  const Trace& trace() const { return trace_; }

  StepTimes step_times() const {
    StepTimes times;
    times.filling = filling_;
    for (const auto& [id, segment] : segments_) {
      std::int64_t previous_ns = segment.start_ns;
      for (const auto& [step, end_ns] : segment.step_end_ns) {
        if (steady(segment, step)) {
          times.seconds.push_back(static_cast<double>(end_ns - previous_ns) / ns_per_second);
        }
        previous_ns = end_ns;
      }
    }
    times.median_seconds = median(times.seconds);
    return times;
  }

  // What is counted of every name: per steady step, the median over segments.
  struct Share {
    double seconds = 0;
    double count = 0;
  };

  // Shares by name; `name_of` gives a span's lane or kind.
  template <class NameOf>
  std::map<std::string, Share> shares(NameOf name_of) const {
    std::map<std::string, std::map<std::int32_t, Share>> totals;  // name -> segment -> sum
    for (const Span& span : trace_.spans) {
      if (!counts(span) || !steady(segments_.at(span.segment), span.step)) continue;
      Share& share = totals[name_of(span)][span.segment];
      share.seconds += static_cast<double>(span.end_ns - span.start_ns) / ns_per_second;
      share.count += 1;
    }
    std::map<std::string, Share> result;
    for (const auto& [name, by_segment] : totals) {
      std::vector<double> seconds, counts;
      for (const auto& [id, segment] : segments_) {
        const double steps = steady_steps(segment);
        if (steps == 0) continue;
        const auto found = by_segment.find(id);
        seconds.push_back(found == by_segment.end() ? 0 : found->second.seconds / steps);
        counts.push_back(found == by_segment.end() ? 0 : found->second.count / steps);
      }
      result[name] = {median(seconds), median(counts)};
    }
    return result;
  }

  // Tasks by id, each with its spans of all segments; the epilogue's tasks too.
  std::map<std::uint32_t, std::vector<const Span*>> tasks() const {
    std::map<std::uint32_t, std::vector<const Span*>> result;
    for (const Span& span : trace_.spans) result[span.task].push_back(&span);
    return result;
  }

 private:
  bool counts(const Span& span) const { return trace_.phases[span.phase] != "epilogue"; }

  bool steady(const Segment& segment, std::int32_t step) const {
    return filling_ || step != segment.step_end_ns.begin()->first;
  }
  double steady_steps(const Segment& segment) const {
    return static_cast<double>(segment.step_end_ns.size() - (filling_ ? 0 : 1));
  }

  const Trace& trace_;
  std::map<std::int32_t, Segment> segments_;
  bool filling_ = false;
};

std::string describe(const Trace& trace, const Span& span) {
  std::string text = trace.kinds[span.kind];
  if (span.layer >= 0) text += fmt::format(" L{}", span.layer);
  if (span.micro_batch >= 0) text += fmt::format(" m{}", span.micro_batch);
  return text + fmt::format(" on {}", trace.lanes[span.lane]);
}

std::int64_t median_duration_ns(const std::vector<const Span*>& spans) {
  std::vector<double> durations;
  for (const Span* span : spans)
    durations.push_back(static_cast<double>(span->end_ns - span->start_ns));
  return std::llround(median(std::move(durations)));
}

bool diverges(std::int64_t predicted_ns, std::int64_t measured_ns, DivergenceThreshold threshold) {
  const std::int64_t difference = std::abs(predicted_ns - measured_ns);
  return difference > threshold.absolute_ns &&
         static_cast<double>(difference) > threshold.relative * static_cast<double>(measured_ns);
}

void compare_tasks(const Reading& predicted, const Reading& measured, DivergenceThreshold threshold,
                   TraceComparison& result) {
  const auto predicted_tasks = predicted.tasks();
  const auto measured_tasks = measured.tasks();
  for (const auto& [task, predicted_spans] : predicted_tasks) {
    const auto found = measured_tasks.find(task);
    if (found == measured_tasks.end()) continue;
    const Span& span = *predicted_spans.front();
    const std::string description = describe(predicted.trace(), span);
    const std::string other = describe(measured.trace(), *found->second.front());
    if (description != other) {
      throw InputError(
          fmt::format("task {} is \"{}\" in the prediction and \"{}\" in the measurement", task,
                      description, other),
          "compare two traces of the same schedule: same model, workload, policy and steps");
    }
    ++result.matched_tasks;
    const std::int64_t predicted_ns = median_duration_ns(predicted_spans);
    const std::int64_t measured_ns = median_duration_ns(found->second);
    if (!diverges(predicted_ns, measured_ns, threshold)) continue;
    ++result.diverging_tasks;
    if (!result.first_divergence) {
      result.first_divergence = Divergence{task, fmt::format("{}, step {}", description, span.step),
                                           predicted_ns, measured_ns};
    }
  }
  result.predicted_only_tasks = predicted_tasks.size() - result.matched_tasks;
  result.measured_only_tasks = measured_tasks.size() - result.matched_tasks;
}

// The shares of both traces under every name that either has, most measured seconds first.
template <class Row>
std::vector<Row> merge(const std::map<std::string, Reading::Share>& predicted,
                       const std::map<std::string, Reading::Share>& measured) {
  std::set<std::string> names;
  for (const auto& [name, share] : predicted) names.insert(name);
  for (const auto& [name, share] : measured) names.insert(name);
  const auto share_of = [](const auto& shares, const std::string& name) {
    const auto found = shares.find(name);
    return found == shares.end() ? Reading::Share{} : found->second;
  };
  std::vector<Row> rows;
  for (const std::string& name : names) {
    const Reading::Share before = share_of(predicted, name);
    const Reading::Share after = share_of(measured, name);
    Row row;
    row.name = name;
    row.predicted_count = static_cast<std::size_t>(std::llround(before.count));
    row.measured_count = static_cast<std::size_t>(std::llround(after.count));
    row.predicted_seconds = before.seconds;
    row.measured_seconds = after.seconds;
    row.error = relative_error(before.seconds, after.seconds);
    rows.push_back(row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.measured_seconds > b.measured_seconds;
  });
  return rows;
}

}  // namespace

StepTimes step_times(const Trace& trace) { return Reading(trace).step_times(); }

TraceComparison compare_traces(const Trace& predicted, const Trace& measured,
                               DivergenceThreshold threshold) {
  const Reading before(predicted), after(measured);
  TraceComparison result;
  result.predicted = before.step_times();
  result.measured = after.step_times();
  result.error = relative_error(result.predicted.median_seconds, result.measured.median_seconds);
  compare_tasks(before, after, threshold, result);

  const auto kind_shares = [](const Reading& reading) {
    return reading.shares(
        [&](const Span& span) -> const std::string& { return reading.trace().kinds[span.kind]; });
  };
  const auto lane_shares = [](const Reading& reading) {
    return reading.shares(
        [&](const Span& span) -> const std::string& { return reading.trace().lanes[span.lane]; });
  };
  result.kinds = merge<Quantity>(kind_shares(before), kind_shares(after));
  result.lanes = merge<LaneQuantity>(lane_shares(before), lane_shares(after));
  for (LaneQuantity& lane : result.lanes) {
    // A lane runs one task at a time; medians of the parts may add up to a little more than the
    // median whole.
    const auto fraction = [](double seconds, double step) {
      return step > 0 ? std::min(1.0, seconds / step) : 0;
    };
    lane.predicted_busy = fraction(lane.predicted_seconds, result.predicted.median_seconds);
    lane.measured_busy = fraction(lane.measured_seconds, result.measured.median_seconds);
  }
  return result;
}

}  // namespace spillway
