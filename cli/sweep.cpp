// spillway sweep: every combination of settings, in parallel, resumable.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/errors.hpp"
#include "base/heap.hpp"
#include "cli/commands.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/command_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/program_identity.hpp"
#include "cli/text/progress.hpp"
#include "experiments/sweep/result_file.hpp"
#include "experiments/sweep/sweep.hpp"
#include "experiments/sweep/sweep_plots.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string file, out, shard;
  std::optional<std::int64_t> jobs;
  bool json = false, no_plots = false, explain = false;
};

SweepRun run_of(const Options& options) {
  SweepRun run;
  run.folder = options.out;
  std::error_code ignored;
  if (fs::exists(run.folder, ignored) && !fs::is_directory(run.folder, ignored)) {
    throw InputError(fmt::format("--out {}: this is a file", options.out),
                     "name a folder; it is created where there is none");
  }
  for (const fs::path& part : {run.folder / "parts", run.folder / "plots"}) {
    if (!fs::is_symlink(part, ignored)) continue;
    throw InputError(fmt::format("--out {}: {} is a symbolic link", options.out, part.string()),
                     "remove the link, or name a new folder");
  }
  if (fs::is_directory(run.folder, ignored) && !fs::is_empty(run.folder, ignored) &&
      !holds_journals(run.folder)) {
    throw InputError(
        fmt::format("--out {}: the folder is not empty, and holds no sweep", options.out),
        "name a new folder, or that of an earlier sweep");
  }
  if (!options.shard.empty()) run.shard = parse_shard(options.shard);
  if (options.jobs && (*options.jobs < 1 || *options.jobs > 4096)) {
    throw InputError(fmt::format("--jobs {} is not in 1 .. 4096", *options.jobs),
                     "leave it out for one job a core");
  }
  run.jobs =
      static_cast<int>(options.jobs.value_or(std::max(1u, std::thread::hardware_concurrency())));
  return run;
}

std::string plural(std::size_t count, const char* thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

// Why points are invalid, the most frequent reasons first.
struct Reason {
  std::string why, hint;
  std::size_t points = 0;
};

void count_reason(std::vector<Reason>& reasons, const std::string& why, const std::string& hint) {
  const auto known = std::find_if(reasons.begin(), reasons.end(),
                                  [&](const Reason& one) { return one.why == why; });
  if (known == reasons.end()) {
    reasons.push_back({why, hint, 1});
  } else {
    ++known->points;
  }
}

std::vector<Reason> reasons_of(const SweepPlan& plan) {
  std::vector<Reason> reasons;
  for (const SweepPoint& point : plan.points) {
    if (!point.invalid.empty()) count_reason(reasons, point.invalid, point.hint);
  }
  return reasons;
}

std::vector<Reason> reasons_of(const SweepTable& table) {
  std::vector<Reason> reasons;
  for (const auto& row : table.rows) {
    if (row[table.find("status")] != "invalid") continue;
    count_reason(reasons, row[table.find("reason")], row[table.find("hint")]);
  }
  return reasons;
}

std::string text_of(std::vector<Reason> reasons) {
  constexpr std::size_t most_reasons = 5;
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const Reason& a, const Reason& b) { return a.points > b.points; });
  std::string text;
  for (std::size_t i = 0; i < std::min(reasons.size(), most_reasons); ++i) {
    text += fmt::format("  {}: {}{}\n", plural(reasons[i].points, "point"), reasons[i].why,
                        reasons[i].hint.empty() ? "" : " (" + reasons[i].hint + ")");
  }
  if (reasons.size() > most_reasons)
    text += fmt::format("  and {} more\n", plural(reasons.size() - most_reasons, "reason"));
  return text;
}

// What the machine files assume, a line for each name of a machine.
std::string assumed_text(const SweepPlan& plan) {
  std::map<std::string, std::pair<std::size_t, std::size_t>> counts;  // least and most
  const Machine* last = nullptr;
  for (const SweepPoint& point : plan.points) {
    const Machine* const machine = point.settings.machine.get();
    if (machine == nullptr || machine == last) continue;
    last = machine;
    const std::size_t count = assumed_count(*machine);
    const auto [entry, is_new] = counts.try_emplace(machine->name, count, count);
    auto& [least, most] = entry->second;
    least = std::min(least, count);
    most = std::max(most, count);
  }
  std::string text;
  for (const auto& [name, range] : counts)
    if (range.second > 0)
      text += fmt::format("{}: {}", name, assumed_note(range.first, range.second));
  return text;
}

// What will be run, said before it is.
void announce(const SweepPlan& plan, const SweepRun& run, const SweepState& state) {
  std::string text = fmt::format("{}: {}", plan.file.name, plural(plan.points.size(), "point"));
  if (plan.left_out > 0) text += fmt::format(", {} more left out by skip rules", plan.left_out);
  if (plan.same > 0) text += fmt::format(", {} more the same as one of these", plan.same);
  if (plan.invalid() > 0) text += fmt::format(", {} with invalid settings", plan.invalid());
  text += "\n" + text_of(reasons_of(plan)) + assumed_text(plan);
  // Where nothing is missing, what they held has been run again.
  if (state.damaged > 0 && !state.missing.empty()) {
    text += fmt::format("{} torn or damaged in the journals, dropped{}\n",
                        plural(state.damaged, "line"),
                        run.shard ? " (or being written by another shard)" : "");
  }
  if (state.foreign > 0) {
    text += fmt::format("{} of other settings or another build of spillway, not used\n",
                        plural(state.foreign, "result"));
  }
  if (!state.missing.empty()) {
    text += fmt::format(
        "{} to run{}{}, {}\n", state.missing.size(),
        run.shard ? fmt::format(" in shard {} of {}", run.shard->index, run.shard->count) : "",
        state.results.empty() ? "" : fmt::format(", {} done", state.results.size()),
        plural(static_cast<std::size_t>(run.jobs), "job"));
  }
  fmt::print("{}", text);
  std::fflush(stdout);
}

// Draws every picture of the sweep into FOLDER/plots, each with its script and its data. Returns
// the paths of the pictures.
std::vector<std::string> draw_plots(const SweepPlan& plan, const SweepOutcome& outcome,
                                    const fs::path& folder, const std::string& made_by) {
  std::vector<std::string> drawn;
  if (plan.file.plots.empty()) return drawn;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw MachineError::from_errno(folder.string() + ": cannot create", error.value());
  for (const PlotRequest& request : plan.file.plots) {
    Picture picture = plot_of(plan, outcome.table, request);
    picture.made_by = made_by;
    for (const auto& [ending, text] : picture.sources())
      update_file(folder / (picture.name + ending), text);
    for (const char* format : {"svg", "png"}) {
      const fs::path path = folder / fmt::format("{}.{}", picture.name, format);
      update_file(path, draw(picture, format));
      drawn.push_back(path.string());
    }
  }
  return drawn;
}

nlohmann::ordered_json to_json(const SweepPlan& plan, const SweepOutcome& outcome,
                               const std::vector<std::string>& plots) {
  nlohmann::ordered_json reasons = nlohmann::ordered_json::array();
  for (const Reason& one : reasons_of(outcome.table))
    reasons.push_back({{"reason", one.why}, {"hint", one.hint}, {"points", one.points}});
  const auto path_json = [&](const fs::path& path) {
    return outcome.missing == 0 ? nlohmann::ordered_json(path.string()) : nullptr;
  };
  return {{"name", plan.file.name},
          {"points", plan.points.size()},
          {"run", outcome.run},
          {"missing", outcome.missing},
          {"ok", outcome.ok},
          {"does_not_fit", outcome.does_not_fit},
          {"invalid", outcome.invalid},
          {"invalid_because", reasons},
          {"results", path_json(outcome.csv)},
          {"database", path_json(outcome.database)},
          {"plots", plots}};
}

void print_outcome(const SweepPlan& plan, const SweepOutcome& outcome) {
  if (outcome.run == 0 && !outcome.written && outcome.missing == 0) {
    fmt::print("nothing to do: all results are in {}\n", outcome.csv.string());
    return;
  }
  if (outcome.missing > 0) {
    fmt::print("{} of {} have a result; the last shard, or a run without --shard, writes {}\n",
               plan.points.size() - outcome.missing, plural(plan.points.size(), "point"),
               outcome.csv.string());
    return;
  }
  fmt::print("{}: {} ok, {} not fitting, {} invalid\n", outcome.csv.string(), outcome.ok,
             outcome.does_not_fit, outcome.invalid);
  // Those that only showed when they were tried.
  std::vector<Reason> found = reasons_of(outcome.table);
  for (const Reason& known : reasons_of(plan)) {
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](const Reason& one) { return one.why == known.why; }),
                found.end());
  }
  fmt::print("{}", text_of(std::move(found)));
}

void run(const Options& options) {
  keep_freed_memory();
  const SweepPlan plan = [&] {
    Activity activity("checking all points");
    SweepFile file = load_sweep(options.file);
    if (options.explain) file.explain = true;
    SweepPlan all = plan_sweep(std::move(file), this_program());
    check_plots(all);
    return all;
  }();
  const bool plots = !options.no_plots && !plan.file.plots.empty();
  if (plots) require_gnuplot();
  SweepRun sweep = run_of(options);
  SweepState state = inspect_sweep(plan, sweep);
  if (!options.json) announce(plan, sweep, state);
  Progress progress(!state.missing.empty());
  sweep.progress = [&](const SweepProgress& now) {
    progress.show(done_text(now.done, now.total, now.seconds, "points"), now.done == now.total);
  };
  const SweepOutcome outcome = run_sweep(plan, sweep, std::move(state));
  progress.finish();
  std::vector<std::string> drawn;
  if (plots && outcome.missing == 0) {
    Activity activity("drawing pictures");
    drawn = draw_plots(plan, outcome, sweep.folder / "plots",
                       command_text({"sweep", options.file, "--out", options.out}));
  }
  if (options.json) {
    fmt::print("{}\n", cli::to_text(to_json(plan, outcome, drawn)));
  } else {
    print_outcome(plan, outcome);
    for (const std::string& path : drawn) fmt::print("{}\n", path);
  }
}

}  // namespace

void add_sweep(CLI::App& app, int&) {
  CLI::App* command =
      app.add_subcommand("sweep", "simulate every combination of settings; resumable");
  auto options = std::make_shared<Options>();
  command->add_option("file", options->file, "the sweep: a TOML file (docs/sweep.md)")->required();
  command->add_option("--out", options->out, "folder of the results; goes on with what is there")
      ->required();
  command->add_option("--shard", options->shard,
                      "I/N: only this share of the points, for batch systems");
  command->add_option("--jobs", options->jobs, "points evaluated at once; default: one a core");
  command->add_flag("--explain", options->explain,
                    "columns for the critical path and what the GPU waits for, as explain = true "
                    "in the file; every schedule is then built whole, which takes longer");
  command->add_flag("--no-plots", options->no_plots, "leave out the pictures the file asks for");
  command->add_flag("--json", options->json, "print one JSON object (docs/sweep.md)");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
