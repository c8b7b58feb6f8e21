#include "experiments/report/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "experiments/report/packed.hpp"
#include "sim/task_class.hpp"
#include "sim/to_trace.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

// What many tasks of a trace have in common, numbered in order of first use.
class Classes {
 public:
  explicit Classes(const Schedule* schedule) : schedule_(schedule) {}

  std::uint64_t index_of(const Span& span) {
    const Key key = {span.kind, span.phase, span.bytes, span.flops, span.params, moved_by(span)};
    const auto [place, is_new] = numbers_.emplace(key, keys_.size());
    if (is_new) keys_.push_back(key);
    return place->second;
  }
  Json json() const {
    Json list = Json::array();
    for (const auto& [kind, phase, bytes, flops, params, moved] : keys_)
      list.push_back({kind, phase, bytes, flops, params, moved});
    return list;
  }

 private:
  using Key =
      std::tuple<std::uint16_t, std::uint16_t, std::uint64_t, double, std::uint64_t, std::string>;
  // What a copy moves; nothing of other tasks, and without a schedule.
  std::string moved_by(const Span& span) const {
    if (schedule_ == nullptr || span.task >= schedule_->tasks().size()) return "";
    const std::optional<BufferKind> moved =
        class_of(*schedule_, schedule_->tasks()[span.task]).buffer;
    std::string text = moved ? to_string(*moved) : "";
    std::replace(text.begin(), text.end(), '_', ' ');
    return text;
  }

  const Schedule* schedule_;
  std::map<Key, std::uint64_t> numbers_;
  std::vector<Key> keys_;
};

// Spans by lane, in order of time.
std::vector<std::vector<const Span*>> by_lane(const Trace& trace) {
  std::vector<std::vector<const Span*>> lanes(trace.lanes.size());
  for (const Span& span : trace.spans) lanes[span.lane].push_back(&span);
  for (std::vector<const Span*>& lane : lanes) {
    std::stable_sort(lane.begin(), lane.end(), [](const Span* a, const Span* b) {
      return std::tie(a->start_ns, a->end_ns) < std::tie(b->start_ns, b->end_ns);
    });
  }
  return lanes;
}

void add_lane(const std::vector<const Span*>& lane, Classes& classes, NumberColumn& out) {
  out.add(lane.size());
  std::int64_t before = 0;
  for (const Span* span : lane) {
    out.add_signed(span->start_ns - before);
    before = span->start_ns;
  }
  for (const Span* span : lane) out.add(static_cast<std::uint64_t>(span->end_ns - span->start_ns));
  for (const Span* span : lane) out.add(classes.index_of(*span));
  const auto differences = [&](const auto& member) {
    std::int64_t last = 0;
    for (const Span* span : lane) {
      const auto value = static_cast<std::int64_t>(member(*span));
      out.add_signed(value - last);
      last = value;
    }
  };
  differences([](const Span& span) { return span.task; });
  differences([](const Span& span) { return span.step; });
  differences([](const Span& span) { return span.layer; });
  differences([](const Span& span) { return span.micro_batch; });
  differences([](const Span& span) { return span.segment; });
}

void add_memory(const Trace& trace, NumberColumn& out) {
  for (std::size_t tier = 0; tier < trace.tiers.size(); ++tier) {
    std::vector<const MemorySample*> samples;
    for (const MemorySample& sample : trace.memory) {
      if (sample.tier == tier) samples.push_back(&sample);
    }
    std::stable_sort(samples.begin(), samples.end(),
                     [](const auto* a, const auto* b) { return a->time_ns < b->time_ns; });
    out.add(samples.size());
    std::int64_t time = 0, bytes = 0;
    for (const MemorySample* sample : samples) {
      out.add_signed(sample->time_ns - time);
      time = sample->time_ns;
    }
    for (const MemorySample* sample : samples) {
      const auto now = static_cast<std::int64_t>(sample->bytes);
      out.add_signed(now - bytes);
      bytes = now;
    }
  }
}

std::vector<std::string> printable_names(std::vector<std::string> names) {
  for (std::string& name : names) name = printable(name);
  return names;
}

void add_path(const std::vector<TaskId>& path, NumberColumn& out) {
  out.add(path.size());
  std::int64_t before = 0;
  for (const TaskId task : path) {
    out.add_signed(static_cast<std::int64_t>(task) - before);
    before = task;
  }
}

}  // namespace

// One timeline.
struct Timelines::Part {
  std::string title;
  const Trace& trace;
  const Schedule* schedule = nullptr;
  const Explanation* why = nullptr;  // of tasks that began at why_from_ns
  std::int32_t why_segment = 0;
  std::int64_t begin_ns = 0, end_ns = 0;  // of the steady steps
  int steps_in_window = 1;
  const std::vector<TracedStep>& steps;
};

void Timelines::add(const TraceStudy& study) {
  const bool has_prediction = is_held_against_prediction(study);
  const char* what = !has_prediction ? "" : study.recorded ? ": measured" : ": as it is";
  add(Part{study.name + what, study.trace, study.schedule ? &*study.schedule : nullptr,
           study.run ? &study.run->why : nullptr, study.run ? study.run->segment : 0,
           study.begin_ns, study.end_ns, study.steps_in_window, study.steps});
  if (!has_prediction) return;
  const Schedule& schedule = study.validation->schedule;
  const Trace predicted = to_trace(schedule, study.validation->predicted);
  const SteadyWindow& window = study.predicted_why->window;
  std::vector<TracedStep> steps;
  const std::vector<std::int64_t>& ends = study.validation->predicted.step_ends_ns;
  for (std::size_t i = 0; i < ends.size(); ++i)
    steps.push_back({0, static_cast<std::int32_t>(i), i > 0 ? ends[i - 1] : 0, ends[i]});
  add(Part{study.name + ": predicted", predicted, &schedule, &*study.predicted_why, 0,
           window.begin_ns, window.end_ns, window.steps, steps});
}

void Timelines::add(const Part& part) {
  const std::string number = std::to_string(blobs_.size());
  Classes classes(part.schedule);
  NumberColumn column;
  std::int64_t end_ns = 0;
  for (const std::vector<const Span*>& lane : by_lane(part.trace)) add_lane(lane, classes, column);
  for (const Span& span : part.trace.spans) end_ns = std::max(end_ns, span.end_ns);
  add_memory(part.trace, column);
  add_path(part.why ? part.why->critical_path.tasks : std::vector<TaskId>{}, column);
  Json json = {{"title", printable(part.title)},
               {"lanes", printable_names(part.trace.lanes)},
               {"kinds", printable_names(part.trace.kinds)},
               {"phases", printable_names(part.trace.phases)},
               {"tiers", printable_names(part.trace.tiers)},
               {"classes", classes.json()},
               {"tasks", part.trace.spans.size()},
               {"data", "timeline-" + number},
               {"begin_ns", part.begin_ns},
               {"end_ns", part.end_ns},
               {"window_steps", part.steps_in_window},
               {"all_ns", end_ns},
               {"path_segment", part.why_segment}};
  json["capacities"] = Json::array();
  for (std::size_t tier = 0; part.schedule && tier < part.trace.tiers.size() && tier < tier_count;
       ++tier)
    json["capacities"].push_back(part.schedule->use(static_cast<Tier>(tier)).capacity_bytes);
  json["steps"] = Json::array();
  for (const TracedStep& step : part.steps)
    json["steps"].push_back({step.segment, step.step, step.begin_ns, step.end_ns});
  blobs_.push_back({"timeline-" + number, column.bytes()});
  json["dependencies"] = part.schedule ? Json(add_dependencies(*part.schedule)) : Json(nullptr);
  list_ += (list_.empty() ? "" : ",") + json.dump();
  tasks_ += part.trace.spans.size();
}

// Returns the name of the blob; the same for the same schedule.
std::string Timelines::add_dependencies(const Schedule& schedule) {
  const std::uint64_t fingerprint = schedule.fingerprint();
  const std::string name = fmt::format("dependencies-{:016x}", fingerprint);
  const auto known = std::find(known_schedules_.begin(), known_schedules_.end(), fingerprint);
  if (known != known_schedules_.end()) return name;
  known_schedules_.push_back(fingerprint);
  NumberColumn column;
  const std::size_t tasks = schedule.tasks().size();
  column.add(tasks);
  for (TaskId task = 0; task < tasks; ++task) {
    const std::span<const TaskId> successors = schedule.successors(task);
    column.add(successors.size());
    TaskId before = task;
    for (const TaskId successor : successors) {
      const auto why = static_cast<std::uint64_t>(wait_between(schedule, task, successor));
      SPILLWAY_ASSERT(why < 4);
      column.add(static_cast<std::uint64_t>(successor - before) * 4 + why);
      before = successor;
    }
  }
  blobs_.push_back({name, column.bytes()});
  return name;
}

std::vector<Blob> Timelines::blobs() const {
  std::vector<Blob> all = {{"timelines", "[" + list_ + "]"}};
  all.insert(all.end(), blobs_.begin(), blobs_.end());
  return all;
}

}  // namespace spillway
