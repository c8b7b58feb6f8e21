// Traces: of a simulation, or read from a file.
#include <nanobind/stl/string.h>

#include <array>
#include <nlohmann/json.hpp>

#include "python/records.hpp"
#include "traces/perfetto.hpp"
#include "traces/trace.hpp"

namespace spillway::python {

namespace {

struct SpanRow {
  std::uint32_t task;
  std::uint16_t kind, lane, phase, unused;
  std::int32_t segment, step, layer, micro_batch;
  std::int64_t start_ns, end_ns;
  std::uint64_t bytes;
  double flops;
  std::uint64_t params;
};
constexpr std::array span_columns = {
    SPILLWAY_COLUMN(SpanRow, task),     SPILLWAY_COLUMN(SpanRow, kind),
    SPILLWAY_COLUMN(SpanRow, lane),     SPILLWAY_COLUMN(SpanRow, phase),
    SPILLWAY_COLUMN(SpanRow, segment),  SPILLWAY_COLUMN(SpanRow, step),
    SPILLWAY_COLUMN(SpanRow, layer),    SPILLWAY_COLUMN(SpanRow, micro_batch),
    SPILLWAY_COLUMN(SpanRow, start_ns), SPILLWAY_COLUMN(SpanRow, end_ns),
    SPILLWAY_COLUMN(SpanRow, bytes),    SPILLWAY_COLUMN(SpanRow, flops),
    SPILLWAY_COLUMN(SpanRow, params)};

nb::tuple spans(const Trace& trace) {
  return records<SpanRow>(trace.spans.size(), span_columns, [&](std::size_t i) {
    const Span& span = trace.spans[i];
    return SpanRow{span.task,    span.kind,  span.lane,  span.phase,       0,
                   span.segment, span.step,  span.layer, span.micro_batch, span.start_ns,
                   span.end_ns,  span.bytes, span.flops, span.params};
  });
}

struct MemoryRow {
  std::int64_t time_ns;
  std::uint64_t bytes;
  std::uint16_t tier;
  std::uint16_t unused[3];
};
constexpr std::array memory_columns = {SPILLWAY_COLUMN(MemoryRow, time_ns),
                                       SPILLWAY_COLUMN(MemoryRow, tier),
                                       SPILLWAY_COLUMN(MemoryRow, bytes)};

nb::tuple memory(const Trace& trace) {
  return records<MemoryRow>(trace.memory.size(), memory_columns, [&](std::size_t i) {
    const MemorySample& sample = trace.memory[i];
    return MemoryRow{sample.time_ns, sample.bytes, sample.tier, {}};
  });
}

nb::list names(const std::vector<std::string>& all) {
  nb::list list;
  for (const std::string& one : all) list.append(one);
  return list;
}

nb::dict metadata(const Trace& trace) {
  nb::dict all;
  for (const auto& [key, text] : trace.metadata)
    all[key.c_str()] = to_python(nlohmann::ordered_json::parse(text));
  return all;
}

}  // namespace

void bind_traces(nb::module_& module) {
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Trace>(module, "Trace")
      .def("spans", &spans)
      .def("memory", &memory)
      .def_prop_ro("lanes", [](const Trace& t) { return names(t.lanes); })
      .def_prop_ro("kinds", [](const Trace& t) { return names(t.kinds); })
      .def_prop_ro("phases", [](const Trace& t) { return names(t.phases); })
      .def_prop_ro("tiers", [](const Trace& t) { return names(t.tiers); })
      .def_prop_ro("metadata", &metadata)
      .def(
          "write", [](const Trace& trace, const std::string& path) { write_trace(trace, path); },
          nb::arg("path"), released);
  module.def("read_trace", &read_trace, nb::arg("path"), released);
}

}  // namespace spillway::python
