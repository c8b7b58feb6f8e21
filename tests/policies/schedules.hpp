// The problems and policy settings over which every schedule is checked.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "policies/common/policy.hpp"
#include "policies/cost/costs.hpp"
#include "policies/model/units.hpp"
#include "policies/movement/plan.hpp"

namespace spillway::test {

inline constexpr std::uint64_t plenty = std::uint64_t{1} << 40;

// In fp32 it is the CPU backend that trains.
// A GPT whose blocks are 7 cells of the element grid (12 * 32^2 + 13 * 32 = 12704 elements, padded
// to 7 * 2048) and whose embedding is 2 (66 * 32 + 16 * 32 = 2624 elements).
inline Problem tiny_problem(int layers, int micro_batches, Precision precision = Precision::bf16) {
  Problem problem;
  problem.model.name = "tiny";
  problem.model.layers = layers;
  problem.model.hidden = 32;
  problem.model.heads = problem.model.kv_heads = 2;
  problem.model.ffn = 128;
  problem.model.vocabulary = 64;
  problem.model.positions = 16;
  problem.machine.name = "plenty";
  problem.machine.gpu.memory = problem.machine.host.memory = problem.machine.ssd.capacity = plenty;
  problem.workload.batch = 2 * micro_batches;
  problem.workload.micro_batch = 2;
  problem.workload.sequence = 16;
  problem.workload.precision = precision;
  if (precision == Precision::fp32) problem.trains_on = Backend::cpu;
  return problem;
}

// A small llama: heads in groups, and each of what its files choose present or not.
inline void make_llama(ModelSpec& model, std::uint64_t choices) {
  const auto choose = [&](std::uint64_t count) {
    const std::uint64_t chosen = choices % count;
    choices /= count;
    return static_cast<std::int64_t>(chosen);
  };
  model.architecture = Architecture::llama;
  model.heads = 2 << choose(2);
  model.kv_heads = model.heads >> choose(3) % 2;
  model.head_width = choose(2) == 0 ? 0 : 16;
  model.tied = choose(3) == 0;
  model.qkv_bias = choose(2) == 0;
  model.qk_norm = choose(2) == 0;
  model.window = choose(3) == 0 ? 5 : 0;
  model.ffn = 40 + choose(360);
}

// Trains all of a model, its last layers, or adapters beside some of its matrices.
inline void freeze_some(ModelSpec& model, std::uint64_t choices) {
  const auto choose = [&](std::int64_t count) {
    const auto chosen = static_cast<std::int64_t>(choices % static_cast<std::uint64_t>(count));
    choices /= static_cast<std::uint64_t>(count);
    return chosen;
  };
  const std::int64_t what = choose(4);
  if (what == 0) model.frozen_layers = choose(model.layers);
  if (what != 1) return;
  const bool is_gpt = model.architecture == Architecture::gpt;
  const char* const targets[] = {"all-linear", is_gpt ? "c_attn" : "q_proj,v_proj",
                                 is_gpt ? "c_proj" : "up_proj,o_proj"};
  model.lora_rank = 1 + choose(12);
  model.lora_targets = targets[choose(3)];
  model.lora_dropout = choose(2) == 0 ? 0.1 : 0;
}

// The same with the rates of a machine, which some values of options need.
inline Problem with_rates(Problem problem) {
  problem.machine = load_machine("a100-80gb");
  problem.machine.gpu.memory = problem.machine.host.memory = problem.machine.ssd.capacity = plenty;
  return problem;
}

// Settings in which several options at once are away from their defaults.
inline std::vector<std::string> combined_settings() {
  return {
      "resident",
      "resident:recompute=needed",
      "resident:recompute=full",
      "zero-offload",
      "zero-offload:parameters=gpu,recompute=needed",
      "zero-offload:parameters=host,max_reuse_distance=0",
      "zero-offload:parameters=host,checkpoints=host",
      "zero-offload:parameters=host,checkpoints=host,sub_group_size=5000",
      "zero-infinity",
      "zero-infinity:max_reuse_distance=0",
      "zero-infinity:pipeline_read=on,pipeline_write=on,recompute=needed,sub_group_size=10000",
      "zero-infinity:pipeline_read=on,max_reuse_distance=20000,sub_group_size=1",
      "zero-infinity:pipeline_write=on,max_reuse_distance=0,param_buffer_count=1",
      "zero-infinity:gradients=host",
      "zero-infinity:reduce_bucket_size=1",
      "zero-infinity:parameters=host,gradients=host,max_reuse_distance=0",
      "zero-infinity:parameters=gpu",
      "zero-infinity:checkpoints=gpu,max_reuse_distance=0,prefetch_bucket_size=0",
      "zero-infinity:checkpoints=host,max_reuse_distance=0,prefetch_bucket_size=5000",
      "zero-infinity:max_in_cpu=20000,max_reuse_distance=0,max_live_parameters=10000",
      "zero-infinity:param_persistence_threshold=1e5",
      "zero-infinity:max_reuse_distance=0,param_buffer_count=9",
      "zero-offload:parameters=host,max_reuse_distance=0,retention=nearest",
      "zero-infinity:retention=nearest",
      "zero-infinity:gradients=host,max_reuse_distance=0,"
      "retention=parameters:slots(1)+gradients:nearest",
      "deep-optimizer-states",
      "deep-optimizer-states:stride=off,checkpoints=host",
      "deep-optimizer-states:stride=2,sub_group_size=1,recompute=needed",
      "deep-optimizer-states:stride=2,sub_group_size=5000,staging=double",
      "deep-optimizer-states:stride=5,sub_group_size=1,staging=double",
      "fuyou",
      "fuyou:swap=auto",
      "fuyou:optimizer=naive",
      "fuyou:optimizer=serial",
      "fuyou:checkpoints_ssd=0.5",
      "fuyou:checkpoints_ssd=1,recompute=needed,swap=none",
      "fuyou:swap=all",
      "fuyou:swap=0.4,checkpoints_ssd=0.3",
      "fuyou:swap=64KiB,checkpoints_ssd=1,activations_ahead=0,backward_ahead=0,forward_ahead=2",
      "fuyou:swap=0.9,group=3e4,state_buffers=3,activations_ahead=3",
      "fuyou:swap=none,optimizer=naive,group=5e3",
      "fuyou:optimizer=serial,group=2e4,state_buffers=1",
      "fuyou:swap=all,checkpoints_ssd=1,retention=saved:nearest+checkpoints:slots(2)",
      "greedysnake",
      "greedysnake:alpha=0",
      "greedysnake:alpha=1",
      "greedysnake:alpha=0.5,snake=off",
      "greedysnake:alpha=0,optimizer_ssd=1,checkpoints_ssd=1,parameters_ssd=1",
      "greedysnake:alpha=0.3,optimizer_ssd=1,checkpoints_ssd=1,parameters_ssd=1",
      "greedysnake:alpha=1,optimizer_ssd=1,checkpoints_ssd=1,parameters_ssd=1,snake=off",
      "greedysnake:alpha=0.4,optimizer_ssd=0.37,checkpoints_ssd=0.5,parameters_ssd=0.71",
      "greedysnake:alpha=0.25,optimizer_ssd=0,checkpoints_ssd=0,parameters_ssd=0.5,recompute="
      "needed",
      "greedysnake:alpha=0.4,optimizer_ssd=1,checkpoints_ssd=1,parameters_ssd=1,retention=slots(1)",
      "greedysnake:gradients_gpu=0.5",
      "greedysnake:gradients_gpu=1,snake=off",
      "greedysnake:updates=micro-batch",
      "greedysnake:updates=micro-batch,alpha=0,snake=off",
      "greedysnake:updates=micro-batch,alpha=1,gradients_gpu=0.4",
      "greedysnake:updates=micro-batch,alpha=0.3,optimizer_ssd=1,checkpoints_ssd=1,"
      "parameters_ssd=1",
      "greedysnake:updates=micro-batch,alpha=0.4,optimizer_ssd=0.37,checkpoints_ssd=0.5,"
      "parameters_ssd=0.71,gradients_gpu=1,snake=off",
      "greedysnake:updates=micro-batch,alpha=1,optimizer_ssd=1,checkpoints_ssd=1,"
      "parameters_ssd=1,recompute=needed",
  };
}

// Not every combination of a plan's fields is a plan: whether `policy` is `spillway` with one that
// is refused.
inline bool is_refused_plan(const Problem& problem, const std::string& policy) {
  if (policy.rfind("spillway", 0) != 0) return false;
  const Costs costs(problem);
  try {
    check_plan(problem, make_policy(policy)->plan(problem, costs));
  } catch (const InputError&) {
    return true;
  }
  return false;
}

// Every registered policy with its defaults, with each frugal value of each option, and combined.
inline std::vector<std::string> policy_settings() {
  std::vector<std::string> all;
  const auto add = [&](const std::string& policy) {
    const std::string text = canonical_policy(policy);
    if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
  };
  for (const PolicyInfo& info : builtin_policies()) {
    add(info.name);
    for (const PolicyOption& option : info.options) {
      for (const std::string& value : option.frugal)
        add(info.name + ":" + option.name + "=" + value);
    }
  }
  for (const std::string& policy : combined_settings()) add(policy);
  return all;
}

// Each of them with either width of AdamW's moments.
inline std::vector<std::pair<std::string, MomentWidth>> every_policy_with_every_moments() {
  std::vector<std::pair<std::string, MomentWidth>> all;
  for (const std::string& policy : policy_settings()) {
    for (const MomentWidth moments : {MomentWidth::fp32, MomentWidth::bf16})
      all.emplace_back(policy, moments);
  }
  return all;
}

inline constexpr int layer_grid[] = {1, 2, 3, 7};
inline constexpr int micro_batch_grid[] = {1, 2, 3, 4, 5, 8};

// The same problem with no more memory in a tier than the schedule needs there.
inline Problem tightened(const Schedule& schedule) {
  Problem problem = schedule.problem();
  problem.machine.gpu.memory = schedule.use(Tier::gpu).peak_bytes;
  problem.machine.host.memory = schedule.use(Tier::host).peak_bytes;
  problem.machine.ssd.capacity = schedule.use(Tier::ssd).peak_bytes;
  return problem;
}

}  // namespace spillway::test
