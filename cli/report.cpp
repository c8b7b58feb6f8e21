// spillway report: one HTML page about a trace, several, a run, a sweep or a testbed.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/text/flags.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "experiments/report/html.hpp"
#include "experiments/report/report.hpp"

namespace spillway::cli {

namespace {

struct Options {
  std::vector<std::string> inputs, settings;
  std::string out = "report.html", machine;
  bool json = false;
};

const ReplaceOnly& only_a_report() {
  static const ReplaceOnly only = {
      "a report", [](std::span<const std::byte> head) {
        return is_report({reinterpret_cast<const char*>(head.data()), head.size()});
      }};
  return only;
}

// Settings are as many as follow --set, and traces may follow them: those that set nothing.
void take_inputs_from_settings(Options& options) {
  const auto sets = [](const std::string& text) { return text.find('=') != std::string::npos; };
  const auto inputs = std::stable_partition(options.settings.begin(), options.settings.end(), sets);
  options.inputs.insert(options.inputs.end(), inputs, options.settings.end());
  options.settings.erase(inputs, options.settings.end());
  if (options.inputs.empty()) throw CLI::RequiredError("a folder or a trace");
}

void check(const Options& options) {
  check_output_path("--out", options.out, &only_a_report());
  if (!options.settings.empty() && options.machine.empty()) {
    throw InputError("--set changes a key of --machine, and none is named",
                     "name a machine too, e.g. the machine.toml of the run");
  }
}

void run(const Options& options) {
  check(options);
  ReportRequest request;
  request.inputs.assign(options.inputs.begin(), options.inputs.end());
  if (!options.machine.empty())
    request.study.machine = load_machine(options.machine, options.settings);
  request.study.set_by_hand = options.settings;
  request.study.write_setting = flag_text;
  const Report report = [&] {
    Activity activity("looking at " + options.inputs.front());
    request.progress = [&](const std::string& what) { activity.say(what); };
    return make_report(request);
  }();
  write_file(options.out, report.page, &only_a_report());
  const std::string path = std::filesystem::absolute(options.out).lexically_normal().string();
  if (options.json) {
    nlohmann::ordered_json json = {{"kind", report.kind}, {"title", report.title}};
    json.update(report.summary);
    json["path"] = path;
    json["page_bytes"] = report.page.size();
    fmt::print("{}\n", to_text(json));
    return;
  }
  fmt::print("{}: {}\n", report.title, format_bytes(static_cast<double>(report.page.size())));
  fmt::print("{}\n", path);
}

}  // namespace

void add_report(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "report", "one HTML page about a trace, several, a run, a sweep or a testbed");
  auto options = std::make_shared<Options>();
  command->add_option("input", options->inputs,
                      "folder of train, sweep or testbed; or traces, to lie beside each other; "
                      "required");
  command
      ->add_option("--out", options->out,
                   "the page: it stands alone, and opens in any browser without a network")
      ->capture_default_str();
  command->add_option("--machine", options->machine,
                      "predict recorded traces with these rates instead of their own");
  command->add_option("--set", options->settings,
                      "override keys of --machine, e.g. --set ssd.count=6 host.memory=256GB");
  command->add_flag("--json", options->json,
                    "print what the page's summary shows as one JSON object");
  command->callback([options] {
    take_inputs_from_settings(*options);
    run(*options);
  });
}

}  // namespace spillway::cli
