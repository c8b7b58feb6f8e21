// Results: what a simulation tells, and its schedule as arrays.
#include "python/result.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/new_file.hpp"
#include "experiments/plots/gantt.hpp"
#include "experiments/questions/questions_json.hpp"
#include "policies/common/run_record.hpp"
#include "python/records.hpp"
#include "sim/task_class.hpp"
#include "sim/to_trace.hpp"
#include "traces/perfetto.hpp"

namespace spillway::python {

namespace {

struct TaskRow {
  std::uint32_t task;
  std::uint8_t kind, lane, phase;
  std::int8_t moves;
  std::int32_t step, layer, micro_batch;
  std::int64_t start_ns, end_ns;
  std::uint64_t bytes;
  double flops;
  std::uint64_t params;
};
constexpr std::array task_columns = {
    SPILLWAY_COLUMN(TaskRow, task),     SPILLWAY_COLUMN(TaskRow, kind),
    SPILLWAY_COLUMN(TaskRow, lane),     SPILLWAY_COLUMN(TaskRow, phase),
    SPILLWAY_COLUMN(TaskRow, moves),    SPILLWAY_COLUMN(TaskRow, step),
    SPILLWAY_COLUMN(TaskRow, layer),    SPILLWAY_COLUMN(TaskRow, micro_batch),
    SPILLWAY_COLUMN(TaskRow, start_ns), SPILLWAY_COLUMN(TaskRow, end_ns),
    SPILLWAY_COLUMN(TaskRow, bytes),    SPILLWAY_COLUMN(TaskRow, flops),
    SPILLWAY_COLUMN(TaskRow, params)};

nb::tuple tasks(const Result& result) {
  const std::span<const Task> all = result.schedule().tasks();
  const auto& simulated = result.candidate.evaluation.result;
  return records<TaskRow>(all.size(), task_columns, [&](std::size_t i) {
    const Task& task = all[i];
    const SimulatedTask when = simulated ? simulated->tasks[i] : SimulatedTask{-1, -1};
    const std::optional<BufferKind> moved = class_of(result.schedule(), task).buffer;
    return TaskRow{static_cast<std::uint32_t>(i),
                   static_cast<std::uint8_t>(task.kind),
                   static_cast<std::uint8_t>(task.lane),
                   static_cast<std::uint8_t>(task.phase),
                   static_cast<std::int8_t>(moved ? static_cast<int>(*moved) : -1),
                   task.step,
                   task.layer,
                   task.micro_batch,
                   when.start_ns,
                   when.end_ns,
                   task.bytes,
                   task.flops,
                   task.params};
  });
}

struct EdgeRow {
  std::uint32_t before, after;
};
constexpr std::array edge_columns = {SPILLWAY_COLUMN(EdgeRow, before),
                                     SPILLWAY_COLUMN(EdgeRow, after)};

nb::tuple edges(const Result& result) {
  const Schedule& schedule = result.schedule();
  const Schedule::Successors successors = schedule.successors();
  std::uint32_t task = 0;
  return records<EdgeRow>(successors.all.size(), edge_columns, [&](std::size_t i) {
    while (successors.begins[task + 1] <= i) ++task;
    return EdgeRow{task, successors.all[i]};
  });
}

struct BufferRow {
  std::uint32_t buffer;
  std::uint8_t kind, tier, persistent, unused;
  std::int32_t layer, micro_batch;
  std::uint64_t bytes, offset;
  std::uint32_t first_task, last_task;
};
constexpr std::array buffer_columns = {
    SPILLWAY_COLUMN(BufferRow, buffer),     SPILLWAY_COLUMN(BufferRow, kind),
    SPILLWAY_COLUMN(BufferRow, tier),       SPILLWAY_COLUMN(BufferRow, persistent),
    SPILLWAY_COLUMN(BufferRow, layer),      SPILLWAY_COLUMN(BufferRow, micro_batch),
    SPILLWAY_COLUMN(BufferRow, bytes),      SPILLWAY_COLUMN(BufferRow, offset),
    SPILLWAY_COLUMN(BufferRow, first_task), SPILLWAY_COLUMN(BufferRow, last_task)};

nb::tuple buffers(const Result& result) {
  const std::span<const BufferInfo> all = result.schedule().buffers();
  return records<BufferRow>(all.size(), buffer_columns, [&](std::size_t i) {
    const BufferInfo& one = all[i];
    return BufferRow{static_cast<std::uint32_t>(i),
                     static_cast<std::uint8_t>(one.kind),
                     static_cast<std::uint8_t>(one.tier),
                     one.persistent,
                     0,
                     one.layer,
                     one.micro_batch,
                     one.bytes,
                     one.offset,
                     one.first_use,
                     one.last_use};
  });
}

nb::object metrics(const Result& result, bool explains) {
  nlohmann::ordered_json json;
  {
    const nb::gil_scoped_release others_may_work;
    const auto& simulated = result.candidate.evaluation.result;
    std::optional<Explanation> explanation;
    if (explains && simulated) explanation = explain(result.schedule(), *simulated);
    json = to_json(result.candidate, explanation ? &*explanation : nullptr);
    json["assumed"] = to_json(assumed_values(result.schedule().problem().machine));
  }
  return to_python(json);
}

Trace trace_of(const Result& result) {
  Trace trace = to_trace(result.schedule(), result.simulation());
  trace.metadata = make_trace(result.schedule(), "simulator").metadata;
  return trace;
}

std::string gantt(const Result& result, const std::string& format) {
  return draw(gantt_of(result.schedule(), result.simulation(), "gantt"), format);
}

std::string schedule_text(const Result& result) {
  std::ostringstream text;
  result.schedule().write_explain(text);
  return text.str();
}

nb::object step_seconds(const Result& result) {
  const auto& simulated = result.candidate.evaluation.result;
  return simulated ? nb::object(nb::float_(simulated->step_seconds)) : nb::none();
}

template <class Kind>
void add_names(nb::module_& module, const char* name, int count) {
  nb::list names;
  for (int i = 0; i < count; ++i) names.append(to_string(static_cast<Kind>(i)));
  module.attr(name) = nb::tuple(names);
}

}  // namespace

const SimulationResult& Result::simulation() const {
  if (!candidate.evaluation.result) require_fit(candidate);
  return *candidate.evaluation.result;
}

void bind_results(nb::module_& module) {
  add_names<Lane>(module, "lanes", lane_count);
  add_names<TaskKind>(module, "task_kinds", task_kind_count);
  add_names<Phase>(module, "phases", phase_count);
  add_names<Tier>(module, "tiers", tier_count);
  add_names<BufferKind>(module, "buffer_kinds", buffer_kind_count);
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Result>(module, "Result")
      .def_prop_ro("policy", [](const Result& r) { return r.schedule().policy(); })
      .def_prop_ro("fits",
                   [](const Result& r) { return r.candidate.evaluation.result.has_value(); })
      .def_prop_ro("step_seconds", &step_seconds)
      .def_prop_ro("problem", [](const Result& r) { return r.schedule().problem(); })
      .def_prop_ro("steps", [](const Result& r) { return r.schedule().steps(); })
      .def_prop_ro("fingerprint", [](const Result& r) { return r.schedule().fingerprint(); })
      .def("metrics", &metrics, nb::arg("explains") = true)
      .def("tasks", &tasks)
      .def("edges", &edges)
      .def("buffers", &buffers)
      .def("trace", &trace_of, released)
      .def(
          "gantt",
          [](const Result& r, const std::string& format) {
            std::string picture;
            {
              const nb::gil_scoped_release others_may_work;
              picture = gantt(r, format);
            }
            return nb::bytes(picture.data(), picture.size());
          },
          nb::arg("format"))
      .def("schedule_text", &schedule_text, released)
      .def(
          "require_fit", [](const Result& r) { require_fit(r.candidate); }, released);
}

}  // namespace spillway::python
