#include "cli/options/problem_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/framework/framework.hpp"
#include "policies/machine/gpu_workspaces.hpp"

namespace spillway::cli {

namespace {

constexpr std::int64_t default_longest_sequence = 1024;

// --set takes "model.KEY=VALUE" for the model, "framework.KEY=VALUE" for the framework, and "gpu.",
// "pcie.", "host.", "ssd." keys for the machine.
enum class SettingOf : std::uint8_t { model, machine, framework };
std::vector<std::string> settings_of(const std::vector<std::string>& all, SettingOf of) {
  const auto prefix_of = [](const std::string& setting) -> std::string {
    for (const char* prefix : {"model.", "framework."}) {
      if (setting.rfind(prefix, 0) == 0) return prefix;
    }
    return "";
  };
  const std::string wanted = of == SettingOf::model       ? "model."
                             : of == SettingOf::framework ? "framework."
                                                          : "";
  std::vector<std::string> selected;
  for (const std::string& setting : all) {
    if (setting.find('=') == std::string::npos) {
      throw InputError(fmt::format("--set {}: expected KEY=VALUE", setting),
                       "example: --set host.memory=256GB");
    }
    if (prefix_of(setting) == wanted) selected.push_back(setting.substr(wanted.size()));
  }
  return selected;
}

void require_positive(const char* option, std::int64_t value, const char* hint) {
  if (value < 1) throw InputError(fmt::format("{} {}: not a positive number", option, value), hint);
}

}  // namespace

void ProblemOptions::add_to(CLI::App& command, bool machine_required) {
  command.add_option("--model", model, "built-in model (`spillway models`) or a TOML file")
      ->required();
  auto* option = command.add_option("--machine", machine,
                                    "built-in machine (`spillway machines`) or a TOML file");
  if (machine_required) option->required();
  command.add_option(
      "--set", settings,
      "override keys of the machine, the model or the framework, e.g. --set ssd.count=6 "
      "model.layers=48");
  command.add_option("--batch", batch, "sequences per step")->capture_default_str();
  command.add_option("--micro-batch", micro_batch,
                     "sequences per micro-batch; default: the fastest that fits");
  command.add_option("--sequence", sequence,
                     "tokens per sequence; default: the model's positions, at most 1024");
  command.add_option("--sequences-at-once", sequences_at_once,
                     "sequences of a micro-batch that the GPU computes at once; default: 1, and "
                     "when training on a GPU enough to keep it busy");
  command.add_option("--precision", precision,
                     "bf16 | fp32; default: fp32 on the CPU backend, else bf16");
  command
      .add_option("--gradient-bits", gradient,
                  "16 | 32 | auto: width of the gradient handed to the optimizer")
      ->capture_default_str();
  command
      .add_option(
          "--moments", moments,
          "fp32 | bf16: AdamW's moments; with bf16, stochastically rounded, optimizer state "
          "takes 8 bytes a parameter instead of 12")
      ->capture_default_str();
  command
      .add_option("--gradient-clip", gradient_clip,
                  "off | global=LIMIT | layer=LIMIT: 2-norm of the whole gradient, or of each "
                  "layer's, at most")
      ->capture_default_str();
  command
      .add_option("--on-nonfinite", on_nonfinite,
                  "stop | skip: what a gradient with NaN or Inf does: training ends, or the step's "
                  "update is left out")
      ->capture_default_str();
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

Machine ProblemOptions::limited(Machine result) const {
  const auto limit = [&](const char* option, const char* key, const std::string& text,
                         std::uint64_t& bytes) {
    if (text.empty()) return;
    try {
      bytes = parse_bytes(text);
    } catch (const InputError& error) {
      throw InputError(fmt::format("{} {}: {}", option, text, error.what()), error.hint());
    }
    if (bytes == 0)
      throw InputError(fmt::format("{} {}: there must be some memory", option, text),
                       "leave it out for what there is, or give a size such as 24GB");
    result.sources[key] = option;
  };
  limit("--gpu-memory", "gpu.memory", gpu_memory, result.gpu.memory);
  limit("--host-memory", "host.memory", host_memory, result.host.memory);
  if (!host_memory.empty()) result.host.reserved = 0;  // the limit is what the policy may use
  return result;
}

// The last one of a key is the one that holds.
std::vector<std::string> ProblemOptions::overrides() const {
  std::vector<std::string> all = settings;
  if (!gpu_memory.empty()) all.push_back("gpu.memory=" + gpu_memory);
  if (!host_memory.empty()) all.push_back("host.memory=" + host_memory);
  std::vector<std::string> holding;
  for (std::string& one : all) {
    const std::string key = one.substr(0, one.find('=') + 1);
    holding.erase(
        std::remove_if(holding.begin(), holding.end(),
                       [&](const std::string& before) { return before.rfind(key, 0) == 0; }),
        holding.end());
    holding.push_back(std::move(one));
  }
  return holding;
}

std::optional<Backend> ProblemOptions::machine_backend() const {
  if (machine.empty()) return {};
  return load_machine(machine, settings_of(settings, SettingOf::machine)).backend();
}

EvaluateOne ProblemOptions::evaluation(const Problem& problem, Activity& activity) const {
  const EvaluateOne one =
      sequences_at_once ? EvaluateOne(evaluate) : evaluation_on(problem.machine);
  return [one, &activity](const Problem& tried, const std::string& policy, int steps) {
    activity.say(
        fmt::format("simulating {} with micro-batches of {}", policy, tried.workload.micro_batch));
    return one(tried, policy, steps);
  };
}

std::string assumptions_text(const Problem& problem, int steps) {
  const Workload& workload = problem.workload;
  std::string text = workload.precision == Precision::bf16 ? "bf16" : "fp32";
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

Problem ProblemOptions::problem(std::optional<bool> on_gpu) const {
  Problem problem;
  problem.model = load_model(model, settings_of(settings, SettingOf::model));
  if (!machine.empty()) {
    problem.machine = load_machine(machine, settings_of(settings, SettingOf::machine));
  } else if (!settings_of(settings, SettingOf::machine).empty()) {
    throw InputError("--set of a machine's key needs --machine",
                     "name a machine, or use --gpu-memory and --host-memory");
  }
  problem.machine = limited(problem.machine);
  problem.overrides = overrides();
  problem.framework = framework;
  for (const std::string& setting : settings_of(settings, SettingOf::framework))
    problem.framework += (problem.framework.find(':') == std::string::npos ? ":" : ",") + setting;
  load_framework(problem.framework);  // rejects an unknown one
  Workload& workload = problem.workload;
  require_positive("--batch", batch, "sequences per step, e.g. --batch 8");
  if (micro_batch)
    require_positive("--micro-batch", *micro_batch,
                     "leave it out for the fastest that fits, or give a divisor of the batch");
  if (sequence)
    require_positive("--sequence", *sequence, "tokens per sequence, e.g. --sequence 512");
  if (sequences_at_once)
    require_positive("--sequences-at-once", *sequences_at_once,
                     "leave it out, or give a divisor of the micro-batch");
  workload.batch = batch;
  workload.sequences_at_once = sequences_at_once.value_or(1);
  workload.micro_batch = micro_batch.value_or(batch);
  workload.sequence =
      sequence.value_or(std::min(problem.model.positions, default_longest_sequence));
  if (precision.empty()) {
    workload.precision =
        usual_precision(machine.empty() ? Backend::cpu : problem.machine.backend());
  } else if (precision == "fp32" || precision == "bf16") {
    workload.precision = precision == "fp32" ? Precision::fp32 : Precision::bf16;
  } else {
    throw InputError(fmt::format("--precision {} is neither bf16 nor fp32", precision),
                     "use --precision bf16 or --precision fp32");
  }
  if (gradient == "16")
    workload.gradient = GradientWidth::bits16;
  else if (gradient == "32")
    workload.gradient = GradientWidth::bits32;
  else if (gradient != "auto")
    throw InputError(fmt::format("--gradient-bits {} is not 16, 32 or auto", gradient),
                     "leave it out, or use one of these");
  workload.moments = parse_moments("--moments", moments);
  workload.clip = parse_gradient_clip("--gradient-clip", gradient_clip);
  workload.on_nonfinite = parse_on_nonfinite("--on-nonfinite", on_nonfinite);
  problem.validate();
  if (on_gpu.value_or(!machine.empty() && problem.machine.backend() == Backend::cuda)) {
    if (!gpu_memory.empty()) problem.machine.gpu.limit = problem.machine.gpu.memory;
    leave_room_for_workspaces(problem);
  }
  return problem;
}

}  // namespace spillway::cli
