// What is to be trained and on what, as people give it: names, files, texts. The command line fills
// one in, and so may any other program.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/evaluate.hpp"
#include "policies/framework/framework.hpp"
#include "policies/workload/workload_fields.hpp"

namespace spillway {

// Limits on what schedules may use, as `overrides` of a problem name them; they are no keys of the
// machine, whose memory is what there is.
inline constexpr const char *gpu_limit = "gpu_memory", *host_limit = "host_memory";

struct ProblemRequest {
  std::string model, machine;  // a built-in name or a TOML file; the machine may be empty
  // KEY=VALUE of the machine, model.KEY=VALUE of the model, framework.KEY=VALUE of the framework.
  std::vector<std::string> overrides;
  // What of the model is trained, where not all: adapters (policies/model/peft.hpp), those of a
  // folder of PEFT's, or the last so many layers. Overrides of the model hold above them.
  std::optional<std::string> lora;
  std::string adapter;
  std::optional<std::int64_t> train_layers;
  std::string framework = own_framework;  // what is laid over schedules, in simulation only
  WorkloadTexts workload;                 // of the fields that are given
  std::string gpu_memory, host_memory;    // limits; empty: what there is
  // Processes of this computer that train together; a machine that does not say so is as many GPUs
  // then, linked as measured between them. Of none: `count` is 0.
  struct Processes {
    std::int64_t count = 0;
    double bandwidth = 0;  // bytes/s, as Machine::Cluster::nvlink
    std::int64_t latency_ns = 0;
    double cores = 0;  // as Machine::Cluster::cores
  } processes = {};

  // Throws InputError. Where no micro-batch is given it is the batch. `on_gpu`: what computes is a
  // GPU, of which gpu_memory limits all; by default what the machine describes.
  Problem problem(std::optional<bool> on_gpu = {}) const;
  bool chooses_micro_batch() const { return !workload.contains("micro_batch"); }
  bool chooses_sequences_at_once() const { return !workload.contains("sequences_at_once"); }
  // How a policy is evaluated. On a GPU that was measured: with the kernel batch that training
  // would choose, unless sequences_at_once is given.
  EvaluateOne evaluation(const Problem& problem) const;
  // What that makes of a problem, whose micro-batch is set; empty: nothing.
  std::function<void(Problem&)> settle(const Problem& problem) const;
  // The backend of what `machine` describes; empty where none is named.
  std::optional<Backend> machine_backend() const;
  // What is set by hand in place of what the files say, KEY=VALUE; the last one of a key holds, and
  // a limit in place of its key.
  std::vector<std::string> set_by_hand() const;
  // The limits, applied to a machine.
  Machine limited(Machine machine) const;

 private:
  void refuse_limits_as_keys() const;
  bool reads_in_place(const Problem& problem) const;
  std::vector<std::string> all_overrides() const;
};

}  // namespace spillway
