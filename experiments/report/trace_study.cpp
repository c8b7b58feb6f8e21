#include "experiments/report/trace_study.hpp"
#include "experiments/plan/write_cache.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/errors.hpp"
#include "policies/common/run_record.hpp"
#include "sim/to_trace.hpp"

namespace spillway {

namespace {

std::string text_of(const Error& error, const StudyRequest& request) {
  const std::string hint = error.advice().text(request.write_setting);
  return error.message().text(request.write_setting) + (hint.empty() ? "" : "; " + hint);
}

// Ranks run alike, and the first one's tasks are those of the schedule: lanes of the others follow.
std::size_t lanes_of_schedule(const Schedule& schedule) {
  return lane_count_of(schedule.problem());
}

bool is_of(const Trace& trace, const Schedule& schedule) {
  const std::span<const Task> tasks = schedule.tasks();
  return std::all_of(trace.spans.begin(), trace.spans.end(), [&](const Span& span) {
    return span.lane >= lanes_of_schedule(schedule) ||
           (span.task < tasks.size() &&
            trace.kinds[span.kind] == to_string(tasks[span.task].kind) &&
            trace.lanes[span.lane] == to_string(tasks[span.task].lane));
  });
}

// One run of the schedule, as far as it was recorded.
struct RecordedRun {
  std::int64_t begin_ns = std::numeric_limits<std::int64_t>::max();
  std::vector<SimulatedTask> times;  // by task, since the start of the trace
  std::vector<bool> seen;
  std::size_t count = 0;
  bool repeated = false;

  bool is_whole() const { return count == times.size() && !repeated; }
  void shift() {
    for (SimulatedTask& one : times) {
      one.start_ns -= begin_ns;
      one.end_ns -= begin_ns;
    }
  }
};

std::map<std::int32_t, RecordedRun> whole_segments(const Trace& trace, const Schedule& schedule) {
  const std::size_t tasks = schedule.tasks().size();
  std::map<std::int32_t, std::size_t> counts;
  for (const Span& span : trace.spans) {
    if (span.lane < lanes_of_schedule(schedule)) ++counts[span.segment];
  }
  std::map<std::int32_t, RecordedRun> segments;
  for (const auto& [number, count] : counts) {
    if (count != tasks) continue;
    segments[number].times.resize(tasks);
    segments[number].seen.resize(tasks);
  }
  for (const Span& span : trace.spans) {
    const auto found = segments.find(span.segment);
    if (found == segments.end() || span.lane >= lanes_of_schedule(schedule)) continue;
    RecordedRun& segment = found->second;
    segment.repeated = segment.repeated || segment.seen[span.task];
    segment.seen[span.task] = true;
    ++segment.count;
    segment.begin_ns = std::min(segment.begin_ns, span.start_ns);
    segment.times[span.task] = {span.start_ns, span.end_ns};
  }
  std::erase_if(segments, [](const auto& one) { return !one.second.is_whole(); });
  return segments;
}

void add_memory(TraceStudy& study, const std::map<std::int32_t, RecordedRun>& segments) {
  for (const auto& [number, segment] : segments) {
    SimulationResult recorded;
    recorded.tasks = segment.times;
    for (MemorySample sample : memory_samples(*study.schedule, recorded)) {
      sample.time_ns += segment.begin_ns;
      study.trace.memory.push_back(sample);
    }
  }
  std::stable_sort(
      study.trace.memory.begin(), study.trace.memory.end(),
      [](const MemorySample& a, const MemorySample& b) { return a.time_ns < b.time_ns; });
}

void explain_last(TraceStudy& study) {
  std::map<std::int32_t, RecordedRun> segments = whole_segments(study.trace, *study.schedule);
  if (segments.empty()) {
    study.notes.push_back(
        "The trace holds no whole run of its schedule, so what the GPU waited for, the critical "
        "path and memory over time cannot be told of it.");
    return;
  }
  for (auto& [number, segment] : segments) segment.shift();
  if (study.trace.memory.empty() &&
      study.trace.tiers.size() >=
          static_cast<std::size_t>(study.schedule->problem().machine.memories()))
    add_memory(study, segments);
  auto& [last_number, last] = *std::prev(segments.end());
  study.run = TraceStudy::Run{last_number, last.begin_ns,
                              explain_recorded(*study.schedule, std::move(last.times))};
}

// The schedule is simulated some twenty times for the effects of what is assumed.
constexpr std::size_t most_tasks_for_effects = 200'000;

// As `simulate` tells them: of a training that goes on for long.
void find_effects(TraceStudy& study) {
  const Schedule& schedule = study.validation->schedule;
  if (schedule.tasks().size() > most_tasks_for_effects) return;
  try {
    study.effects =
        effects_of_assumptions(schedule, simulate_long_run(schedule, schedule.problem().machine));
  } catch (const InputError& error) {
    study.notes.push_back("What is assumed was not tried: " + std::string(error.what()));
  }
}

void rebuild(TraceStudy& study, const std::string& origin, const StudyRequest& request) {
  try {
    study.validation = validate_trace(study.trace, origin, request.machine, request.set_by_hand);
    // With other rates it may be another schedule.
    study.schedule =
        request.machine ? rebuild_schedule(study.trace, origin) : study.validation->schedule;
    study.predicted_why = explain(study.validation->schedule, study.validation->predicted);
  } catch (const InputError& error) {
    study.validation.reset();
    study.predicted_why.reset();
    study.notes.push_back("There is no prediction to hold it against: " + text_of(error, request));
    try {
      study.schedule = rebuild_schedule(study.trace, origin);
    } catch (const InputError&) {
      study.notes.push_back(
          "Without its schedule, dependencies, stalls and the critical path cannot be told.");
    }
  }
  if (study.validation) find_effects(study);
  if (study.schedule && !is_of(study.trace, *study.schedule)) {
    study.schedule.reset();
    study.notes.push_back("Its tasks are not those of the schedule that its metadata describes.");
  }
}

std::vector<TracedStep> steps_of(const Trace& trace) {
  const auto is_step = [&](const Span& span) {
    return trace.phases[span.phase] != to_string(Phase::epilogue);
  };
  std::map<std::int32_t, std::int64_t> begins;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> ends;
  for (const Span& span : trace.spans) {
    const auto [begin, is_new] = begins.emplace(span.segment, span.start_ns);
    begin->second = std::min(begin->second, span.start_ns);
    if (!is_step(span)) continue;
    std::int64_t& end = ends[{span.segment, span.step}];
    end = std::max(end, span.end_ns);
  }
  std::vector<TracedStep> steps;
  for (const auto& [place, end] : ends) {
    const bool goes_on = !steps.empty() && steps.back().segment == place.first;
    const std::int64_t begin = goes_on ? steps.back().end_ns : begins.at(place.first);
    steps.push_back({place.first, place.second, std::min(begin, end), end});
  }
  std::stable_sort(steps.begin(), steps.end(), [](const TracedStep& a, const TracedStep& b) {
    return a.begin_ns < b.begin_ns;
  });
  return steps;
}

// Times of more than a hundred days are no training's: they would be rounded on the page, whose
// scripts have doubles, and their sums could leave the range of 64 bits.
void check(const Trace& trace, const std::string& origin) {
  if (trace.spans.empty())
    throw InputError(origin + ": the trace holds no task", "record it again");
  constexpr std::int64_t most_ns = std::int64_t{1} << 53;
  const auto is_far = [](std::int64_t time) { return time < -most_ns || time > most_ns; };
  const bool any_far =
      std::any_of(trace.spans.begin(), trace.spans.end(),
                  [&](const Span& span) { return is_far(span.start_ns) || is_far(span.end_ns); }) ||
      std::any_of(trace.memory.begin(), trace.memory.end(),
                  [&](const MemorySample& sample) { return is_far(sample.time_ns); });
  if (any_far)
    throw InputError(origin + ": the trace has times of more than a hundred days",
                     "it is damaged: record it again");
}

void set_window(TraceStudy& study) {
  if (study.run) {
    const SteadyWindow& window = study.run->why.window;
    study.begin_ns = study.run->begin_ns + window.begin_ns;
    study.end_ns = study.run->begin_ns + window.end_ns;
    study.steps_in_window = window.steps;
    std::int64_t first = std::numeric_limits<std::int32_t>::max();
    for (const Span& span : study.trace.spans) {
      if (span.segment == study.run->segment) first = std::min<std::int64_t>(first, span.step);
    }
    for (int step = 0; step < window.steps; ++step)
      study.window.emplace(study.run->segment,
                           static_cast<std::int32_t>(first + window.first_step + step));
    return;
  }
  if (study.steps.empty()) {
    for (const Span& span : study.trace.spans) study.end_ns = std::max(study.end_ns, span.end_ns);
    return;
  }
  const std::size_t first = study.steps.size() > 1 ? 1 : 0;
  study.begin_ns = study.steps[first].begin_ns;
  for (const TracedStep& step : study.steps) study.end_ns = std::max(study.end_ns, step.end_ns);
  study.steps_in_window = static_cast<int>(study.steps.size() - first);
  for (std::size_t i = first; i < study.steps.size(); ++i)
    study.window.emplace(study.steps[i].segment, study.steps[i].step);
}

}  // namespace

std::optional<double> TraceStudy::step_seconds() const {
  if (validation) return validation->comparison.measured.median_seconds;
  if (steps.empty()) return std::nullopt;
  return step_times(trace).median_seconds;
}

TraceStudy study_trace(Trace trace, const std::string& origin, const std::string& name,
                       const StudyRequest& request) {
  check(trace, origin);
  TraceStudy study;
  study.name = name;
  study.trace = std::move(trace);
  const std::string* source = study.trace.find_metadata("source");
  study.recorded = source != nullptr && *source == "\"executor\"";
  rebuild(study, origin, request);
  if (study.schedule) explain_last(study);
  study.steps = steps_of(study.trace);
  set_window(study);
  return study;
}

bool is_held_against_prediction(const TraceStudy& study) {
  return study.validation && (study.recorded || study.validation->comparison.error != 0);
}

}  // namespace spillway
