#include "cli/options/problem_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/options/setting_options.hpp"
#include "cli/text/flags.hpp"

namespace spillway::cli {

void ProblemOptions::add_to(CLI::App& command, bool machine_required,
                            const std::vector<std::string>& without) {
  const auto add = [&](const char* key, auto& value) {
    return command.add_option(flag_of(key), value, setting_help(key));
  };
  add("model", model)->required();
  auto* option = add("machine", machine);
  if (machine_required) option->required();
  command.add_option(
      "--set", overrides,
      "override keys of the machine, the model or the framework, e.g. --set ssd.count=6 "
      "model.layers=48");
  add("lora", lora);
  add("train_layers", train_layers);
  for (const WorkloadField& field : workload_fields()) {
    if (std::find(without.begin(), without.end(), field.key) != without.end()) continue;
    command
        .add_option_function<std::string>(
            flag_of(field.key),
            [this, key = field.key](const std::string& text) { workload[key] = text; },
            setting_help(field.key))
        ->type_name(field.is_count() ? "INT" : "TEXT")
        ->default_str(field.shown_default());
  }
  add("gpu_memory", gpu_memory);
  add("host_memory", host_memory);
}

void ProblemOptions::add_framework_to(CLI::App& command) {
  command
      .add_option("--framework", framework,
                  "program whose waits, copies and memory are laid over the schedule (`spillway "
                  "frameworks`) or a TOML file; overrides follow: NAME:KEY=VALUE,...")
      ->capture_default_str();
}

EvaluateOne ProblemOptions::evaluation(const Problem& problem, Activity& activity) const {
  return [one = ProblemRequest::evaluation(problem), &activity](
             const Problem& tried, const std::string& policy, int steps) {
    activity.say(
        fmt::format("simulating {} with micro-batches of {}", policy, tried.workload.micro_batch));
    return one(tried, policy, steps);
  };
}

std::string assumptions_text(const Problem& problem, int steps) {
  const Workload& workload = problem.workload;
  std::string text = to_string(workload.precision);
  if (workload.gradient != GradientWidth::automatic)
    text += fmt::format(", {}-bit gradients", 8 * problem.gradient_bytes());
  if (workload.moments == MomentWidth::bf16) text += ", bf16 moments";
  if (workload.clip.scope != ClipScope::off)
    text += ", gradient clipping " + to_string(workload.clip);
  if (problem.framework != own_framework) text += ", as run by " + problem.framework;
  if (steps > 0) text += fmt::format(", {} step{} simulated", steps, steps == 1 ? "" : "s");
  if (!problem.overrides.empty())
    text += fmt::format("; set by hand: {}", fmt::join(problem.overrides, ", "));
  return text;
}

}  // namespace spillway::cli
