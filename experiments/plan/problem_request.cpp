#include "experiments/plan/problem_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/data/checkpoint.hpp"
#include "exec/store/frozen_files.hpp"
#include "experiments/plan/rank_problem.hpp"
#include "policies/machine/gpu_workspaces.hpp"
#include "policies/machine/memory_beside.hpp"
#include "policies/model/model_folder.hpp"
#include "policies/model/peft.hpp"

namespace spillway {

namespace {

// Of all overrides, those that begin with `prefix`, without it; with "", those of the machine.
std::vector<std::string> overrides_of(const std::vector<std::string>& all,
                                      const std::string& prefix) {
  std::vector<std::string> selected;
  for (const std::string& one : all) {
    if (one.find('=') == std::string::npos) {
      throw InputError(Setting{"set", one} + ": expected KEY=VALUE",
                       "example: " + Setting{"set", "host.memory=256GB"});
    }
    const bool of_machine = one.rfind("model.", 0) != 0 && one.rfind("framework.", 0) != 0;
    if (prefix.empty() ? of_machine : one.rfind(prefix, 0) == 0)
      selected.push_back(one.substr(prefix.size()));
  }
  return selected;
}

// The framework with the overrides that are given for it: "NAME:KEY=VALUE,...".
std::string framework_text(const std::string& framework,
                           const std::vector<std::string>& overrides) {
  std::string text = framework;
  for (const std::string& one : overrides_of(overrides, "framework."))
    text += (text.find(':') == std::string::npos ? ":" : ",") + one;
  return text;
}

}  // namespace

// Limits are told by names of their own (set_by_hand()), which are no keys.
void ProblemRequest::refuse_limits_as_keys() const {
  for (const std::string& one : overrides) {
    const std::size_t equals = one.find('=');
    const std::string name = one.substr(0, equals);
    if (name != gpu_limit && name != host_limit) continue;
    throw InputError(
        Setting{"set", one} + ": a limit on what training may take is no key of the machine",
        "give it by itself: " +
            Setting{name, equals == std::string::npos ? "" : one.substr(equals + 1)});
  }
}

Machine ProblemRequest::limited(Machine result) const {
  const auto limit = [&](const char* key, const std::string& text, std::uint64_t& bytes) {
    if (text.empty()) return;
    try {
      bytes = parse_bytes(text);
    } catch (const InputError& error) {
      throw InputError(Setting{key, text} + ": " + error.message(), error.advice());
    }
    if (bytes == 0)
      throw InputError(Setting{key, text} + ": there must be some memory",
                       "leave it out for what there is, or give a size such as 24GB");
    result.sources[key] = "a limit set by hand";
  };
  limit("gpu.memory", gpu_memory, result.gpu.memory);
  limit("host.memory", host_memory, result.host.memory);
  // The limit is what the policy may use.
  if (!gpu_memory.empty()) result.gpu.context = 0;
  if (!host_memory.empty()) result.host.reserved = 0, result.host.reserved_share = 0;
  return result;
}

// The overrides, after those of the model that follow from what is trained of it.
std::vector<std::string> ProblemRequest::all_overrides() const {
  std::vector<std::string> of_model;
  if (lora) of_model = lora_overrides(*lora);
  if (!adapter.empty()) {
    if (lora)
      throw InputError(Setting{"lora"} + " and " + Setting{"adapter"} + ": both say what adapters",
                       "leave " + Setting{"lora"} + " out: the folder of the adapter says it");
    const std::filesystem::path file = std::filesystem::path(adapter) / adapter_config_file;
    constexpr std::uint64_t longest_config = std::uint64_t{1} << 20;
    of_model = parse_adapter_config(read_file(file, longest_config), file.string(),
                                    load_model(model, overrides_of(overrides, "model.")));
  }
  if (train_layers) {
    const std::int64_t layers = load_model(model, overrides_of(overrides, "model.")).layers;
    if (*train_layers < 1 || *train_layers >= layers)
      throw InputError(Setting{"train_layers", std::to_string(*train_layers)} +
                           Message(fmt::format(": not from 1 to {}, of the model's {} layers",
                                               layers - 1, layers)),
                       "leave it out to train all of the model");
    for (const std::string& one : overrides) {
      if (one.rfind("model.frozen_layers=", 0) == 0)
        throw InputError(
            Setting{"train_layers"} + Message(" and " + one + ": both say what is trained"),
            "leave one of them out");
    }
    of_model.push_back(fmt::format("frozen_layers={}", layers - *train_layers));
  }
  std::vector<std::string> all;
  for (const std::string& one : of_model) all.push_back("model." + one);
  all.insert(all.end(), overrides.begin(), overrides.end());
  return all;
}

std::vector<std::string> ProblemRequest::set_by_hand() const {
  std::vector<std::string> all = all_overrides();
  // By a name of their own, for they are limits on what schedules may use, whatever context and
  // reserve of the machine take beside it; keys of the machine are what there is with these.
  // Under a limit the key says nothing.
  const auto limit = [&](const char* name, const char* key, const std::string& text) {
    if (text.empty()) return;
    std::erase_if(all, [&](const std::string& one) { return one.starts_with(key); });
    all.push_back(fmt::format("{}={}", name, text));
  };
  limit(gpu_limit, "gpu.memory=", gpu_memory);
  limit(host_limit, "host.memory=", host_memory);
  std::vector<std::string> holding;
  for (std::string& one : all) {
    const std::string key = one.substr(0, one.find('=') + 1);
    std::erase_if(holding, [&](const std::string& before) { return before.rfind(key, 0) == 0; });
    holding.push_back(std::move(one));
  }
  return holding;
}

EvaluateOne ProblemRequest::evaluation(const Problem& problem) const {
  return chooses_sequences_at_once() ? evaluation_on(problem.machine) : EvaluateOne(evaluate);
}

std::function<void(Problem&)> ProblemRequest::settle(const Problem& problem) const {
  if (!chooses_sequences_at_once() || !is_measured_gpu(problem.machine)) return {};
  return [](Problem& settled) { settled.use_gpu_sequences_at_once(); };
}

std::optional<Backend> ProblemRequest::machine_backend() const {
  if (machine.empty()) return {};
  return load_machine(machine, overrides_of(overrides, "")).backend();
}

// Whether training would read what is frozen of the model in place: where `model` is a folder whose
// files have all of it as it is computed with. One without whole weights can be asked about, too.
bool ProblemRequest::reads_in_place(const Problem& problem) const {
  if (!problem.model.has_frozen()) return false;
  try {
    const std::optional<ModelFolder> folder = find_model_folder(model);
    return folder && SafetensorsFolder::has_weights(folder->path) &&
           FrozenFiles::why_not(problem, Checkpoint(folder->path, problem.model)).empty();
  } catch (const InputError&) {
    return false;
  }
}

Problem ProblemRequest::problem(std::optional<bool> on_gpu) const {
  Problem problem;
  refuse_limits_as_keys();
  problem.model = load_model(model, overrides_of(all_overrides(), "model."));
  if (!machine.empty()) {
    problem.machine = load_machine(machine, overrides_of(overrides, ""));
  } else if (!overrides_of(overrides, "").empty()) {
    throw InputError(
        Setting{"set"} + " of a machine's key needs " + Setting{"machine"},
        "name a machine, or use " + Setting{"gpu.memory"} + " and " + Setting{"host.memory"});
  }
  problem.machine = limited(problem.machine);
  problem.overrides = set_by_hand();
  problem.framework = framework_text(framework, overrides);
  load_framework(problem.framework);  // refused now rather than later
  const Backend backend = machine.empty() ? Backend::cpu : problem.machine.backend();
  WorkloadTexts given = workload;
  if (processes.count > 0) {
    Machine::Cluster& cluster = problem.machine.cluster;
    cluster.nodes = 1;
    cluster.gpus = processes.count;
    if (cluster.nvlink == 0) {
      cluster.nvlink = processes.bandwidth;
      cluster.nvlink_latency_ns = processes.latency_ns;
      cluster.cores = processes.cores;
    }
    if (given.contains("pipeline") && given["pipeline"] != "1") {
      if (given["pipeline"] != std::to_string(processes.count))
        throw InputError(
            Setting{"pipeline", given["pipeline"]} +
                Message(fmt::format(": {} processes train, each a stage of it", processes.count)),
            "start as many as there are stages");
    } else {
      given["ranks"] = given["gradient_groups"] = std::to_string(processes.count);
    }
  }
  use_all_gpus(problem.machine, given);
  problem.workload = read_workload(given, problem.model, usual_precision(backend));
  take_rank_share(problem);
  if (on_gpu.value_or(!machine.empty() && backend == Backend::cuda)) {
    if (!gpu_memory.empty()) problem.machine.gpu.limit = problem.machine.gpu.memory;
    leave_room_for_workspaces(problem);
  }
  // A training looks at the weights that it opens.
  if (!on_gpu) set_memory_beside(problem, reads_in_place(problem));
  return problem;
}

}  // namespace spillway
