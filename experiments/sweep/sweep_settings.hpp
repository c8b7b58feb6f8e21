// The keys a sweep can set, and what a set of them comes to: a problem, a policy, a number of
// steps.
//
// Keys are names of settings: `model`, `machine`, `policy`, `framework`, `steps`, `durability`,
// every field of a workload (`batch`, `micro_batch`, ...: policies/workload/workload_fields.hpp),
// any key of a machine ("ssd.count") or of a model ("model.layers"), any option of a policy
// ("greedysnake.alpha"). docs/sweep.md explains each.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/rank_problem.hpp"
#include "policies/framework/framework.hpp"
#include "policies/workload/durability.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

using SweepSettings = std::map<std::string, std::string>;  // key -> value as written

// Every key, for "did you mean".
std::vector<std::string> sweep_keys();

// The policy whose option `key` is ("greedysnake.alpha" -> "greedysnake"); nothing: it is none.
std::optional<std::string> policy_of_key(const std::string& key);

// Whether `value` is one that `key` takes, whatever the other settings are. Throws InputError,
// without a place: no such key (with near names), or a wrong value.
void check_sweep_value(const std::string& key, const std::string& value);

struct ResolvedSettings {
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const Machine> machine;
  Workload workload;
  bool best_micro_batch = false;           // workload.micro_batch is to be chosen
  bool chooses_sequences_at_once = false;  // where a GPU was measured, as training has it
  std::string policy;                      // canonical text
  std::string framework = own_framework;
  int steps = 0;
  Durability durability;
  std::string identity;  // 32 hexadecimal digits: equal for equal settings, whatever their spelling

  std::vector<std::string> overrides;  // Problem::overrides

  // What makes of a problem, whose micro-batch is set, what is built; empty: nothing.
  std::function<void(Problem&)> settle() const;

  // Of one rank.
  Problem problem() const {
    Problem problem{*model, *machine, workload, overrides};
    problem.framework = framework;
    take_rank_share(problem);
    return problem;
  }
};

// Turns settings into problems; machines, models and policies that many points share are read once.
// One thread at a time.
class SettingsResolver {
 public:
  // Options of policies other than the point's are ignored. Throws InputError where the settings do
  // not go together.
  ResolvedSettings resolve(const SweepSettings& settings);

 private:
  template <class Part>
  struct Known {
    std::shared_ptr<const Part> part;
    std::string text;  // as TOML, without sources
  };
  const Known<ModelSpec>& model(const SweepSettings& settings);
  const Known<Machine>& machine(const SweepSettings& settings);
  const std::string& policy(const SweepSettings& settings);  // canonical

  std::map<std::string, Known<ModelSpec>> models_;
  std::map<std::string, Known<Machine>> machines_;
  std::map<std::string, std::string> policies_;  // as written -> canonical
};

// 32 hexadecimal digits (XXH3, 128 bits).
std::string hash_of(const std::string& text);

}  // namespace spillway
