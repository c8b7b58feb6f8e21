#include "experiments/report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "exec/run/run_folder.hpp"
#include "experiments/report/charts.hpp"
#include "experiments/report/data_table.hpp"
#include "experiments/report/run_sections.hpp"
#include "experiments/report/sweep_sections.hpp"
#include "experiments/report/testbed_sections.hpp"
#include "experiments/report/timeline.hpp"
#include "experiments/report/trace_sections.hpp"
#include "experiments/sweep/csv_reader.hpp"
#include "experiments/watch/run_list.hpp"
#include "traces/perfetto.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* results_file = "results.csv";
constexpr std::uint64_t most_table_bytes = std::uint64_t{512} << 20;
// Of a run that was resumed again and again, the last ones.
constexpr std::size_t most_traces_of_run = 3;
constexpr std::size_t most_traces = 8;

std::string name_of(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal.filename().string()
                               : normal.parent_path().filename().string();
}

void say(const ReportRequest& request, const std::string& what) {
  if (request.progress) request.progress(what);
}

TraceStudy study_of(const ReportRequest& request, const fs::path& path, const std::string& name) {
  say(request, "reading the trace " + name);
  Trace trace = read_trace(path.string());
  say(request, "simulating the schedule of " + name);
  return study_trace(std::move(trace), path.string(), name, request.study);
}

void add_blobs(Page& page, std::vector<Blob> blobs) {
  for (Blob& blob : blobs) page.blobs.push_back(std::move(blob));
}

void add_sections(Page& page, std::vector<Section> sections) {
  for (Section& section : sections) page.sections.push_back(std::move(section));
}

std::string notes_of(const std::vector<TraceStudy>& studies) {
  std::string text;
  for (const TraceStudy& study : studies) {
    for (const std::string& note : study.notes)
      text += notes_html({studies.size() > 1 ? study.name + ": " + note : note});
  }
  return text;
}

void add_traces(Page& page, const std::vector<TraceStudy>& studies) {
  Timelines timelines;
  for (const TraceStudy& study : studies) timelines.add(study);
  page.head += notes_of(studies);
  add_sections(page, trace_sections(studies, timelines.tasks()));
  add_blobs(page, timelines.blobs());
}

Json to_json(const std::vector<TraceStudy>& studies) {
  Json list = Json::array();
  for (const TraceStudy& study : studies) {
    Json one = {{"trace", study.name}};
    one.update(to_json(facts_of(study)));
    one["notes"] = study.notes;
    list.push_back(std::move(one));
  }
  return list;
}

std::string subtitle_of(const TraceStudy& study) {
  if (!study.schedule) return study.name;
  const Problem& problem = study.schedule->problem();
  const Workload& workload = problem.workload;
  const std::string by_hand =
      problem.overrides.empty()
          ? ""
          : fmt::format("; set by hand: {}", fmt::join(problem.overrides, ", "));
  return fmt::format(
      "{} on {}, policy {}: {} sequences of {} tokens a step in micro-batches of {}{}",
      problem.model.name, problem.machine.name, study.schedule->policy(), workload.batch,
      workload.sequence, workload.micro_batch, by_hand);
}

Report finished(std::string kind, Page page, Json summary) {
  return {std::move(kind), page.title, std::move(summary), page_html(page)};
}

Report report_of_traces(const ReportRequest& request) {
  if (request.inputs.size() > most_traces) {
    throw InputError(fmt::format("{} traces are too many for one page", request.inputs.size()),
                     fmt::format("name {} at most", most_traces));
  }
  std::vector<TraceStudy> studies;
  std::vector<std::string> names;
  std::vector<Facts> facts;
  for (const fs::path& input : request.inputs) {
    std::string name = name_of(input);
    // Files of one name in different folders.
    if (std::find(names.begin(), names.end(), name) != names.end()) name = input.string();
    studies.push_back(study_of(request, input, name));
    names.push_back(name);
    facts.push_back(facts_of(studies.back()));
  }
  Page page;
  if (studies.size() == 1) {
    page.title = studies.front().recorded ? "A recorded trace" : "A simulated trace";
    if (studies.front().schedule)
      page.title = studies.front().schedule->problem().model.name + ", " +
                   (studies.front().recorded ? "recorded" : "simulated");
    page.subtitle = subtitle_of(studies.front());
    page.head = facts_html(facts.front());
  } else {
    page.title = fmt::format("{} traces beside each other", studies.size());
    page.subtitle = fmt::format("{}", fmt::join(names, ", "));
    page.head = table_html(facts_table(names, facts));
  }
  add_traces(page, studies);
  return finished("traces", std::move(page), {{"traces", to_json(studies)}});
}

// trace.json.gz, and of a resumed run trace-from-step-N.json.gz, in the order of their steps.
std::vector<std::string> traces_in(const fs::path& folder) {
  std::vector<std::pair<long, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    constexpr std::string_view resumed = "trace-from-step-";
    if (name == RunFolder::trace) found.emplace_back(0, name);
    if (name.starts_with(resumed) && name.ends_with(".json.gz"))
      found.emplace_back(std::strtol(name.c_str() + resumed.size(), nullptr, 10), name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (const auto& [step, name] : found) names.push_back(name);
  return names;
}

// A trace of a run that cannot be read is a note: the rest of the page says something all the same.
std::vector<TraceStudy> traces_of_run(const ReportRequest& request, const Directory& folder,
                                      std::vector<std::string>& notes) {
  std::vector<std::string> names = traces_in(folder.path());
  if (names.empty())
    notes.emplace_back("There is no trace in the folder: a run writes it when it ends.");
  if (names.size() > most_traces_of_run) {
    notes.push_back(
        fmt::format("Of {} traces the last {} are shown.", names.size(), most_traces_of_run));
    names.erase(names.begin(), names.end() - most_traces_of_run);
  }
  std::vector<TraceStudy> studies;
  for (const std::string& name : names) {
    const auto status = folder.status(name);
    if (!status || !S_ISREG(status->st_mode)) {
      notes.push_back(name + " is no file, and is left out.");
      continue;
    }
    try {
      studies.push_back(study_of(request, folder.path_of(name), name));
    } catch (const InputError& error) {
      notes.push_back("A trace is left out: " + std::string(error.what()));
    }
  }
  return studies;
}

Report report_of_run(const ReportRequest& request, const Directory& folder) {
  say(request, "reading the metrics");
  const SeenRun run = look_at_run(folder.path());
  const Facts facts = facts_of(run);
  std::vector<std::string> notes;
  const std::vector<TraceStudy> studies = traces_of_run(request, folder, notes);
  Page page;
  page.title = "Run " + run.name;
  page.subtitle = run.history.begun() ? fmt::format("{} with policy {}", run.history.start().model,
                                                    run.history.start().policy)
                                      : "it has not begun";
  page.head = facts_html(facts) + notes_html(notes);
  const std::vector<Chart> charts = charts_of(run.history);
  if (!charts.empty()) {
    std::string body = "<div class=\"charts\">\n";
    for (const Chart& chart : charts) body += place_html(chart);
    page.sections.push_back({"training", "Training", body + "</div>\n"});
    page.blobs.push_back(charts_blob(charts));
  }
  if (!studies.empty()) {
    std::vector<std::string> names;
    std::vector<Facts> of_traces;
    for (const TraceStudy& study : studies) {
      names.push_back(study.name);
      of_traces.push_back(facts_of(study));
    }
    page.sections.push_back({"traces", studies.size() == 1 ? "Its trace" : "Its traces",
                             table_html(facts_table(names, of_traces))});
    add_traces(page, studies);
  }
  Json summary = {{"run", to_json(facts)}, {"notes", notes}, {"traces", to_json(studies)}};
  return finished("run", std::move(page), std::move(summary));
}

SweepTable results_of(const Directory& folder, std::string& text) {
  const auto read = folder.read(results_file, most_table_bytes);
  if (!read) {
    throw InputError(
        fmt::format("{}: it has no {} yet", folder.path().string(), results_file),
        "finish the sweep: the same `spillway sweep` command again runs what is missing");
  }
  text = *read;
  return parse_csv(text, folder.path_of(results_file).string());
}

bool has(const SweepTable& table, const std::vector<const char*>& columns) {
  return std::all_of(columns.begin(), columns.end(),
                     [&](const char* column) { return table.find(column) < table.columns.size(); });
}

Report report_of_sweep(const Directory& folder, const SweepTable& table) {
  SweepPages pages = sweep_pages(folder, table);
  Page page;
  page.title = "Sweep " + name_of(folder.path());
  page.subtitle = pages.subtitle;
  page.head = facts_html(pages.facts);
  add_sections(page, std::move(pages.sections));
  page.blobs.push_back(data_tables_blob(pages.tables));
  return finished("sweep", std::move(page), {{"sweep", to_json(pages.facts)}});
}

Report report_of_testbed(const Directory& folder, const SweepTable& table,
                         const std::vector<TestbedRow>& rows) {
  TestbedPages pages = testbed_pages(table, rows);
  Page page;
  page.title = "Testbed " + name_of(folder.path());
  page.subtitle = "predictions held against runs on machines that are not there";
  page.head = facts_html(pages.facts);
  add_sections(page, std::move(pages.sections));
  page.blobs.push_back(charts_blob(pages.charts));
  page.blobs.push_back(data_tables_blob(pages.tables));
  return finished("testbed", std::move(page), {{"testbed", to_json(pages.facts)}});
}

Report report_of_folder(const ReportRequest& request, const fs::path& path) {
  const Directory folder(path);
  if (folder.status(saved_run_file)) return report_of_run(request, folder);
  const bool has_journals = folder.status("parts").has_value();
  if (!has_journals && !folder.status(results_file)) {
    throw InputError(
        path.string() + ": there is no run, sweep or testbed in this folder",
        "name the folder that `spillway train`, `sweep` or `testbed` wrote, or a trace");
  }
  say(request, "reading the results");
  std::string text;
  const SweepTable table = results_of(folder, text);
  const std::string origin = folder.path_of(results_file).string();
  if (has(table, {"regime", "predicted_seconds", "measured_seconds"}))
    return report_of_testbed(folder, table, rows_from_csv(text, origin));
  if (has(table, {"status", "reason", "hint"})) return report_of_sweep(folder, table);
  throw InputError(origin + ": this is no table of a sweep or a testbed",
                   "name the folder that `spillway sweep` or `spillway testbed` wrote");
}

}  // namespace

Report make_report(const ReportRequest& request) {
  SPILLWAY_ASSERT(!request.inputs.empty());
  std::error_code ignored;
  std::vector<fs::path> folders;
  for (const fs::path& input : request.inputs) {
    if (!fs::exists(input, ignored))
      throw InputError(input.string() + ": there is no such file or folder",
                       "check the spelling of the path");
    if (fs::is_directory(input, ignored)) folders.push_back(input);
  }
  if (folders.empty()) return report_of_traces(request);
  if (request.inputs.size() > 1) {
    throw InputError(folders.front().string() + ": a folder has a page of its own",
                     "name it alone; several traces can lie beside each other");
  }
  return report_of_folder(request, folders.front());
}

}  // namespace spillway
