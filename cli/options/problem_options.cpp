#include "cli/options/problem_options.hpp"

#include <fmt/format.h>

#include <map>

#include "cli/text/flags.hpp"

namespace spillway::cli {

namespace {

// What `--help` says of each field of the workload.
std::string help_of(const std::string& field) {
  static const std::map<std::string, std::string> help = {
      {"batch", "sequences per step"},
      {"micro_batch", "sequences per micro-batch; default: the fastest that fits"},
      {"sequence", "tokens per sequence; default: the model's positions, at most 1024"},
      {"sequences_at_once",
       "sequences of a micro-batch that the GPU computes at once; default: 1, and when training on "
       "a GPU enough to keep it busy"},
      {"precision", "what is computed in; default: fp32 on the CPU backend, else bf16"},
      {"gradient_bits", "width of the gradient handed to the optimizer"},
      {"moments",
       "AdamW's moments; with bf16, stochastically rounded, optimizer state takes 8 bytes a "
       "parameter instead of 12"},
      {"gradient_clip", "2-norm of the whole gradient, or of each layer's, at most"},
      {"on_nonfinite",
       "what a gradient with NaN or Inf does: training ends, or the step's update is left out"}};
  return help.at(field);
}

}  // namespace

void ProblemOptions::add_to(CLI::App& command, bool machine_required) {
  command
      .add_option("--model", model,
                  "built-in model (`spillway models`), a TOML file, or a model of Hugging Face: "
                  "its folder, or its name where it has been downloaded")
      ->required();
  auto* option = command.add_option("--machine", machine,
                                    "built-in machine (`spillway machines`) or a TOML file");
  if (machine_required) option->required();
  command.add_option(
      "--set", overrides,
      "override keys of the machine, the model or the framework, e.g. --set ssd.count=6 "
      "model.layers=48");
  command.add_option("--lora", lora,
                     "train low-rank adapters beside the model's matrices, which are frozen: "
                     "rank=16[,alpha=32][,dropout=0.05][,targets=q_proj+v_proj]; default: alpha "
                     "twice the rank, all matrices of the layers");
  command.add_option("--train-layers", train_layers,
                     "train the last so many layers; those before and the embedding are frozen");
  for (const WorkloadField& field : workload_fields()) {
    command
        .add_option_function<std::string>(
            flag_of(field.key),
            [this, key = field.key](const std::string& text) { workload[key] = text; },
            (field.is_count() ? "" : field.values + ": ") + help_of(field.key))
        ->type_name(field.is_count() ? "INT" : "TEXT")
        ->default_str(field.usual);
  }
  command.add_option("--gpu-memory", gpu_memory,
                     "limit of GPU memory, workspaces included, e.g. 24GB");
  command.add_option("--host-memory", host_memory, "limit of the host tier, e.g. 256MB");
}

void ProblemOptions::add_framework_to(CLI::App& command) {
  command
      .add_option("--framework", framework,
                  "program whose waits, copies and memory are laid over the schedule (`spillway "
                  "frameworks`) or a TOML file; overrides follow: NAME:KEY=VALUE,...")
      ->capture_default_str();
}

EvaluateOne ProblemOptions::evaluation(const Problem& problem, Activity& activity) const {
  const EvaluateOne one =
      chooses_sequences_at_once() ? evaluation_on(problem.machine) : EvaluateOne(evaluate);
  return [one, &activity](const Problem& tried, const std::string& policy, int steps) {
    activity.say(
        fmt::format("simulating {} with micro-batches of {}", policy, tried.workload.micro_batch));
    return one(tried, policy, steps);
  };
}

std::function<void(Problem&)> ProblemOptions::settle(const Problem& problem) const {
  if (!chooses_sequences_at_once() || !is_measured_gpu(problem.machine)) return {};
  return [](Problem& settled) { settled.use_gpu_sequences_at_once(); };
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

std::string extrapolation_text(const Machine& machine) {
  if (!machine.ssd.extrapolated()) return "";
  const auto& known = machine.ssd.by_count;
  return fmt::format(
      "extrapolated: machine {} knows its bandwidths with {} to {} drives, not with {}",
      machine.name, known.begin()->first, known.rbegin()->first, machine.ssd.count);
}

}  // namespace spillway::cli
