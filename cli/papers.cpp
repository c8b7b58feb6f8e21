// spillway papers: published results against simulated ones.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "experiments/papers/paper_report.hpp"
#include "experiments/papers/refit.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway::cli {

namespace {

struct Options {
  std::vector<std::string> names;
  std::string markdown;
  bool json = false, list = false, refit = false, leave_one_out = false;
};

const char* const accuracy_command = "spillway papers --leave-one-out --markdown docs/accuracy.md";

std::vector<Paper> chosen(const Options& options) {
  if (options.names.empty()) return builtin_papers();
  std::vector<Paper> papers;
  for (const std::string& name : options.names) papers.push_back(load_paper(name));
  return papers;
}

void print_list() {
  for (const Paper& paper : builtin_papers())
    fmt::print("{:<24} {}\n{:<24} {}\n", paper.name, paper.title, "", paper.citation);
}

// Shows what is next and how long the rest may take.
class ShareShown {
 public:
  void operator()(double share, const std::string& next) {
    const double spent =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    const std::string left =
        share <= 0.02 ? ""
                      : fmt::format(", some {} left", format_clock(spent * (1 - share) / share));
    progress_.show(fmt::format("{:.0f} %{}: {}", 100 * share, left, next));
  }

 private:
  Progress progress_{true};
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

void run_refit(const Options& options) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Paper& paper : chosen(options)) {
    if (options.names.empty() && fittable_constants(paper).empty()) continue;
    ShareShown shown;
    const Refit found =
        refit_all(paper, [&](double share, const std::string& next) { shown(share, next); });
    if (options.json)
      list.push_back(to_json(paper, found));
    else
      fmt::print("{}", refit_text(paper, found));
  }
  if (options.json) fmt::print("{}\n", to_text(nlohmann::ordered_json{{"refits", list}}));
}

PaperResult run_with_progress(const Paper& paper) {
  Progress progress(true);
  const auto began = std::chrono::steady_clock::now();
  PaperResult result =
      run_paper(paper, [&](std::size_t done, std::size_t all, const std::string& next) {
        const double spent =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        const std::string left =
            done == 0 ? ""
                      : fmt::format(", {} left", format_clock(spent / static_cast<double>(done) *
                                                              static_cast<double>(all - done)));
        progress.show(fmt::format("{} of {}{}: {}", done + 1, all, left, next));
      });
  progress.finish();
  return result;
}

void run(const Options& options) {
  if (options.list) {
    print_list();
    return;
  }
  if (options.refit) {
    run_refit(options);
    return;
  }
  check_output_path("--markdown", options.markdown);
  std::vector<PaperReport> reports;
  for (const Paper& paper : chosen(options)) {
    reports.push_back({run_with_progress(paper), {}});
    if (options.leave_one_out && !fittable_constants(paper).empty()) {
      ShareShown shown;
      reports.back().left_out =
          leave_one_out(paper, [&](double share, const std::string& next) { shown(share, next); });
    }
    if (!options.json)
      fmt::print("{}{}", reports.size() > 1 ? "\n" : "", paper_text(reports.back()));
  }
  if (options.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const PaperReport& report : reports) list.push_back(to_json(report));
    fmt::print("{}\n", to_text(nlohmann::ordered_json{{"papers", list}}));
  }
  if (!options.markdown.empty())
    write_file(options.markdown, accuracy_markdown(reports, accuracy_command));
}

}  // namespace

void add_papers(CLI::App& app, int&) {
  CLI::App* command =
      app.add_subcommand("papers", "published results against simulated ones, with errors");
  auto options = std::make_shared<Options>();
  command->add_option("name", options->names,
                      "built-in papers or TOML files (experiments/papers/README.md); all without");
  command->add_option("--markdown", options->markdown, "write the tables to this file too");
  command->add_flag("--json", options->json, "print one JSON object");
  command->add_flag("--refit", options->refit,
                    "print the constants that fit all published numbers best");
  command->add_flag("--leave-one-out", options->leave_one_out,
                    "predict each figure by constants fitted without it; takes minutes");
  command->add_flag("--list", options->list, "list the papers built in");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
