// Traces, as JSON: read, compared with themselves, written and read again, and, where they say that
// they are of a small training, validated and made a timeline: their schedule is built again and
// simulated.
#include "traces/trace.hpp"

#include <nlohmann/json.hpp>
#include <optional>

#include "experiments/report/timeline.hpp"
#include "experiments/report/trace_study.hpp"
#include "experiments/validate/validate.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/support/traces.hpp"
#include "traces/compare.hpp"
#include "traces/perfetto.hpp"

using namespace spillway;

namespace {

// Whether what it says of its training is not known to be large: a schedule takes memory and time
// with the size of the training, not of the file.
bool is_small(const Trace& trace) {
  const auto json = [&](const char* key) {
    const std::string* text = trace.find_metadata(key);
    return text ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  };
  const auto up_to = [](const nlohmann::json& number, double most) {
    return !number.is_number() || number.get<double>() <= most;
  };
  const nlohmann::json model = json("model"), workload = json("workload");
  bool is_small_model = true;
  if (model.is_string()) {
    fuzz::accepted([&] {
      const ModelSpec spec = parse_model(model.get<std::string>(), "model");
      is_small_model = spec.layers <= 16 && spec.parameters() <= 10'000'000;
    });
  }
  if (!is_small_model || !up_to(json("steps"), 8)) return false;
  return !workload.is_object() || !workload.contains("batch") || up_to(workload.at("batch"), 64);
}

}  // namespace

SPILLWAY_FUZZ_TARGET(trace) {
  static const fuzz::ScratchFolder folder;
  static const std::optional<Machine> testbed = load_machine("testbed");
  const std::string path = folder.write("in.json", input).string();
  Trace trace;
  if (!fuzz::accepted([&] { trace = read_trace(path); })) return;
  for (const Span& span : trace.spans) {
    fuzz::require(span.lane < trace.lanes.size() && span.kind < trace.kinds.size() &&
                      span.phase < trace.phases.size() && span.start_ns <= span.end_ns,
                  "a span has a lane, a kind, a phase, and does not end before it starts");
  }
  for (const MemorySample& sample : trace.memory) {
    fuzz::require(sample.tier < trace.tiers.size(), "a memory sample has a tier");
  }
  fuzz::check_round_trip(trace, folder.path() / "out.json");
  TraceComparison comparison;
  if (fuzz::accepted([&] { comparison = compare_traces(trace, trace); })) {
    fuzz::require(!comparison.first_divergence && comparison.predicted_only_tasks == 0 &&
                      comparison.measured_only_tasks == 0,
                  "a trace does not diverge from itself");
  }
  if (!is_small(trace)) return;
  for (const std::optional<Machine>& machine : {std::optional<Machine>(), testbed}) {
    fuzz::accepted([&] { static_cast<void>(validate_trace(trace, path, machine)); });
  }
  fuzz::accepted([&] {
    Timelines timelines;
    timelines.add(study_trace(trace, path, "trace", {}));
    fuzz::require(timelines.tasks() >= trace.spans.size(), "a timeline has every task");
  });
}
