#include "experiments/report/trace_sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/units.hpp"
#include "experiments/report/assumptions.hpp"
#include "experiments/report/explanation_tables.hpp"
#include "experiments/report/prediction_section.hpp"
#include "policies/schedule/task.hpp"

namespace spillway {

namespace {

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// The part of a span that lies in the study's window.
std::int64_t inside_ns(const Span& span, const TraceStudy& study) {
  return std::max<std::int64_t>(
      0, std::min(span.end_ns, study.end_ns) - std::max(span.start_ns, study.begin_ns));
}

struct TaskTime {
  double seconds = 0;           // in a step, in the window
  double bytes = 0, flops = 0;  // of a step
  double tasks = 0;             // of a step
  double whole_seconds = 0;     // of these tasks, from beginning to end
  bool is_there = false;        // in some step of the trace
};

// Lanes that compute touch bytes, but move none (docs/metrics.md).
bool moves_bytes(const std::string& lane) {
  return lane != to_string(Lane::gpu_compute) && lane != to_string(Lane::cpu_optimizer);
}

// Sums by an index of spans, per step. Time is what lies in the window; tasks and what they move
// are those of the window's steps, which may have begun before it.
template <class Index>
std::vector<TaskTime> work_by(const TraceStudy& study, std::size_t count, const Index& index) {
  std::vector<TaskTime> all(count);
  const double steps = study.steps_in_window;
  const auto is_epilogue = [&](const Span& span) {
    return !study.window.empty() && span.phase < study.trace.phases.size() &&
           study.trace.phases[span.phase] == to_string(Phase::epilogue);
  };
  for (const Span& span : study.trace.spans) {
    TaskTime& work = all[index(span)];
    work.is_there = true;
    work.seconds += seconds_of(inside_ns(span, study)) / steps;
    if (!study.counts(span) || is_epilogue(span)) continue;
    work.tasks += 1;
    work.whole_seconds += seconds_of(span.end_ns - span.start_ns);
    if (moves_bytes(study.trace.lanes[span.lane]))
      work.bytes += static_cast<double>(span.bytes) / steps;
    work.flops += span.flops / steps;
  }
  for (TaskTime& work : all) {
    work.tasks /= steps;
    work.whole_seconds /= steps;
  }
  return all;
}

std::string rate_text(const TaskTime& work) {
  if (work.seconds <= 0) return "";
  if (work.flops > 0) return format_flops_per_second(work.flops / work.seconds);
  return work.bytes > 0 ? format_bytes_per_second(work.bytes / work.seconds) : "";
}

Cell rate_cell(const TaskTime& work) {
  const double amount = work.flops > 0 ? work.flops : work.bytes;
  if (work.seconds <= 0 || amount <= 0) return {};
  return number_cell(amount / work.seconds, rate_text(work));
}

Cell bytes_cell(double bytes) {
  return bytes > 0 ? number_cell(bytes, format_bytes(bytes)) : Cell{};
}

PageTable lane_table(const TraceStudy& study) {
  const auto work = work_by(study, study.trace.lanes.size(), [](const Span& s) { return s.lane; });
  const double step = study.window_seconds() / study.steps_in_window;
  PageTable table;
  table.columns = {{"lane"},
                   {"busy", true, "share of the step in which the lane runs a task"},
                   {"seconds a step", true},
                   {"bytes a step", true},
                   {"rate while busy", true},
                   {"tasks a step", true}};
  for (std::size_t lane = 0; lane < work.size(); ++lane) {
    if (!work[lane].is_there) continue;
    const double share = step > 0 ? work[lane].seconds / step : 0;
    table.rows.push_back({{study.trace.lanes[lane]},
                          {percentage_text(share), share, share},
                          number_cell(work[lane].seconds, format_seconds(work[lane].seconds)),
                          bytes_cell(work[lane].bytes),
                          rate_cell(work[lane]),
                          number_cell(work[lane].tasks, number_text(work[lane].tasks, 9))});
  }
  return table;
}

PageTable kind_table(const TraceStudy& study) {
  const std::size_t kinds = study.trace.kinds.size();
  const auto work = work_by(study, study.trace.lanes.size() * kinds, [&](const Span& s) {
    return static_cast<std::size_t>(s.lane) * kinds + s.kind;
  });
  PageTable table;
  table.columns = {{"task"},
                   {"lane"},
                   {"seconds a step", true},
                   {"mean of one", true},
                   {"bytes a step", true},
                   {"tasks a step", true}};
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (!work[i].is_there) continue;
    const double mean = work[i].whole_seconds / std::max(work[i].tasks, 1e-9);
    table.rows.push_back({{study.trace.kinds[i % kinds]},
                          {study.trace.lanes[i / kinds]},
                          number_cell(work[i].seconds, format_seconds(work[i].seconds)),
                          work[i].tasks > 0 ? number_cell(mean, format_seconds(mean)) : Cell{},
                          bytes_cell(work[i].bytes),
                          number_cell(work[i].tasks, number_text(work[i].tasks, 9))});
  }
  std::stable_sort(table.rows.begin(), table.rows.end(),
                   [](const auto& a, const auto& b) { return a[2].value > b[2].value; });
  return table;
}

struct Peak {
  std::uint64_t bytes = 0;
  std::int64_t time_ns = 0;
};

std::optional<Peak> peak_of(const Trace& trace, std::size_t tier) {
  std::optional<Peak> peak;
  for (const MemorySample& sample : trace.memory) {
    if (sample.tier == tier && (!peak || sample.bytes > peak->bytes))
      peak = Peak{sample.bytes, sample.time_ns};
  }
  return peak;
}

PageTable memory_table(const TraceStudy& study) {
  PageTable table;
  table.columns = {{"memory"},
                   {"most in use", true, "bytes of buffers that are live at one moment"},
                   {"taken", true,
                    "what the plan lays them out in, gaps included; of the SSD without the copies "
                    "that commits keep"},
                   {"limit", true},
                   {"used of it", true}};
  for (std::size_t tier = 0; tier < study.trace.tiers.size(); ++tier) {
    const std::optional<Peak> peak = peak_of(study.trace, tier);
    const TierUse* use = study.schedule && tier < tier_count
                             ? &study.schedule->use(static_cast<Tier>(tier))
                             : nullptr;
    if (!peak && use == nullptr) continue;
    std::vector<Cell> row = {{study.trace.tiers[tier]},
                             peak ? bytes_cell(static_cast<double>(peak->bytes)) : Cell{},
                             {},
                             {},
                             {}};
    if (use != nullptr) {
      row[2] = bytes_cell(static_cast<double>(use->peak_bytes));
      row[3] = bytes_cell(static_cast<double>(use->capacity_bytes));
      if (use->capacity_bytes > 0) {
        const double share =
            static_cast<double>(use->peak_bytes) / static_cast<double>(use->capacity_bytes);
        row[4] = {percentage_text(share), share, share};
      }
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

// Sections have one body for each study, beside each other where there are several.
template <class Body>
std::string side_by_side(const std::vector<TraceStudy>& studies, const Body& body) {
  std::string text = studies.size() > 1 ? "<div class=\"beside\">\n" : "";
  for (const TraceStudy& study : studies) {
    const std::string inner = body(study);
    if (studies.size() == 1) return inner;
    text +=
        fmt::format("<div><h3>{}</h3>\n{}</div>\n", escaped(study.name),
                    inner.empty() ? "<p class=\"note\">Nothing is known of this.</p>\n" : inner);
  }
  return text + "</div>\n";
}

bool any_of(const std::vector<TraceStudy>& studies, bool (*has)(const TraceStudy&)) {
  return std::any_of(studies.begin(), studies.end(), has);
}

std::string timeline_body(std::size_t tasks, bool has_memory) {
  return fmt::format(
      "<p>{} on their lanes{}, over time. Far out, a column of the picture "
      "shows the kind of task that takes most of its time, the paler the more the lane idles. "
      "Steps count from 1; a trace's own from 0.</p>\n"
      "<div id=\"timelines\" class=\"timelines\"></div>\n",
      escaped(count_text(tasks, "task")), has_memory ? ", and what memory holds" : "");
}

std::string work_body(const TraceStudy& study) {
  return fmt::format(
             "<p>{}, each {} long on average.</p>\n",
             escaped(study.run
                         ? fmt::format(
                               "Over {} in steady state",
                               count_text(static_cast<std::size_t>(study.steps_in_window), "step"))
                         : count_text(static_cast<std::size_t>(study.steps_in_window), "step")),
             escaped(format_seconds(study.window_seconds() / study.steps_in_window))) +
         table_html(lane_table(study)) + table_html(kind_table(study));
}

std::string stalls_body(const TraceStudy& study) {
  if (!study.run) return "";
  return stalls_html(study.run->why, study.recorded);
}

std::string path_body(const TraceStudy& study) {
  const bool is_held = is_held_against_prediction(study);
  std::string text;
  // A trace that is its own prediction has one critical path, with what is lost to sharing.
  if (study.run && (is_held || !study.predicted_why))
    text += critical_path_html(study.run->why, !is_held         ? ""
                                               : study.recorded ? "As measured"
                                                                : "As it is");
  if (study.predicted_why)
    text += critical_path_html(*study.predicted_why, is_held ? "As predicted" : "");
  return text;
}

std::string assumptions_body(const TraceStudy& study) {
  if (!study.schedule) return "";
  const Schedule& schedule = study.validation ? study.validation->schedule : *study.schedule;
  const Problem& problem = schedule.problem();
  std::vector<std::string> notes;
  if (study.validation) {
    for (const std::string& one : study.validation->predicted.extrapolates)
      notes.push_back("Extrapolated: " + one);
  }
  std::string text = notes_html(notes);
  text += table_html(workload_table(schedule));
  if (study.effects) {
    const PageTable effects = effects_table(*study.effects);
    text += effects.rows.empty()
                ? notes_html({"No value that moves the step is assumed."})
                : fmt::format(
                      "<p>A step is predicted to take {}. What is assumed moves it so far:</p>\n",
                      escaped(format_seconds(study.effects->step_seconds))) +
                      table_html(effects);
  }
  if (problem.machine.gpu.flops <= 0)
    return text + notes_html({"The run knew no rates of its machine."});
  return text + "<details open><summary>The machine, number by number</summary>\n" +
         table_html(machine_table(problem.machine)) + "</details>\n";
}

}  // namespace

Facts facts_of(const TraceStudy& study) {
  Facts facts;
  const auto add_seconds = [&](const char* key, const char* label, double seconds,
                               std::string detail = "") {
    facts.push_back({key, label, format_seconds(seconds), seconds, std::move(detail)});
  };
  if (study.schedule) {
    const Problem& problem = study.schedule->problem();
    facts.push_back({"policy", "policy", study.schedule->policy(), study.schedule->policy()});
    facts.push_back({"model", "model", problem.model.name, problem.model.name});
    facts.push_back({"machine", "machine", problem.machine.name, problem.machine.name});
  }
  const std::optional<double> step = study.step_seconds();
  const auto add_speed = [&](double tokens) {
    facts.push_back({"tokens_per_second", "tokens/s", number_text(tokens), tokens});
  };
  if (study.validation && !is_held_against_prediction(study)) {
    const SimulationResult& result = study.validation->predicted;
    add_seconds("step_seconds", "step", result.step_seconds);
    add_speed(result.tokens_per_second);
    facts.push_back(
        {"model_tflops", "model TFLOPS", number_text(result.model_tflops), result.model_tflops});
    facts.push_back(
        {"efficiency", "of the bound", percentage_text(result.efficiency), result.efficiency});
    add_seconds("bound_seconds", "bound", result.bound_seconds, "set by " + result.bound_by);
  } else if (step) {
    add_seconds(
        study.recorded ? "measured_step_seconds" : "step_seconds",
        study.recorded ? "step, measured" : "step", *step,
        study.validation
            ? "median of " +
                  count_text(study.validation->comparison.measured.seconds.size(), "steady step")
            : "");
    if (study.validation) {
      const TraceComparison& comparison = study.validation->comparison;
      add_seconds("predicted_step_seconds", "step, predicted", comparison.predicted.median_seconds);
      facts.push_back({"error", "error of the prediction", signed_percent_text(comparison.error),
                       comparison.error, "above zero: predicted too slow"});
    }
    if (study.schedule && *step > 0)
      add_speed(static_cast<double>(study.schedule->problem().workload.tokens_per_step()) / *step);
  }
  if (study.run) {
    const StallReport& stalls = study.run->why.stalls;
    const auto whole = static_cast<double>(stalls.busy_ns + stalls.idle_ns);
    const double busy = whole > 0 ? static_cast<double>(stalls.busy_ns) / whole : 0;
    facts.push_back({"gpu_busy_fraction", "GPU busy", percentage_text(busy), busy,
                     (study.recorded ? "of the mean steady step; " : "") +
                         (stalls.stalls.empty()
                              ? std::string("never waits")
                              : "waits most for " + to_string(stalls.stalls.front().running))});
  }
  for (std::size_t tier = 0; tier < study.trace.tiers.size(); ++tier) {
    const std::optional<Peak> peak = peak_of(study.trace, tier);
    if (!peak || peak->bytes == 0) continue;
    // What the plan takes is more than what is in use at once, by the gaps between buffers.
    std::uint64_t taken = peak->bytes;
    std::string note;
    if (study.schedule && tier < tier_count) {
      const TierUse& use = study.schedule->use(static_cast<Tier>(tier));
      taken = use.peak_bytes;
      note = fmt::format(
          "of {}; {} in use at once{}", format_bytes(static_cast<double>(use.capacity_bytes)),
          format_bytes(static_cast<double>(peak->bytes)),
          static_cast<Tier>(tier) == Tier::ssd ? "; without copies for commits, if any" : "");
    }
    facts.push_back({study.trace.tiers[tier] + "_peak_bytes", "taken of " + study.trace.tiers[tier],
                     format_bytes(static_cast<double>(taken)), taken, note});
  }
  facts.push_back({"tasks", "tasks", number_text(static_cast<double>(study.trace.spans.size()), 9),
                   study.trace.spans.size(), "in " + count_text(study.steps.size(), "step")});
  return facts;
}

std::vector<Section> trace_sections(const std::vector<TraceStudy>& studies, std::size_t tasks) {
  std::vector<Section> sections = {
      {"timeline", "Timeline", timeline_body(tasks, any_of(studies, [](const TraceStudy& s) {
                                               return !s.trace.memory.empty();
                                             }))}};
  const auto add = [&](const char* id, const char* title, bool is_there, const auto& body) {
    if (is_there) sections.push_back({id, title, side_by_side(studies, body)});
  };
  const bool has_run = any_of(studies, [](const TraceStudy& s) { return s.run.has_value(); });
  const bool has_path =
      has_run || any_of(studies, [](const TraceStudy& s) { return s.predicted_why.has_value(); });
  add("prediction", "Predicted against measured", any_of(studies, is_held_against_prediction),
      prediction_html);
  add("stalls", "What the GPU waited for", has_run, stalls_body);
  add("path", "Critical path", has_path, path_body);
  add("work", "Work by lane and kind", true, work_body);
  add("memory", "Memory",
      any_of(studies,
             [](const TraceStudy& s) { return s.schedule.has_value() || !s.trace.memory.empty(); }),
      [](const TraceStudy& study) {
        const bool commits = study.schedule && study.schedule->problem().machine.ssd.count > 0;
        return table_html(memory_table(study)) +
               (commits
                    ? notes_html({"Of the SSD without copies of optimizer state for commits, if "
                                  "any; `spillway simulate` says them."})
                    : std::string());
      });
  add("assumptions", "Assumptions",
      any_of(studies, [](const TraceStudy& s) { return s.schedule.has_value(); }),
      assumptions_body);
  return sections;
}

}  // namespace spillway
