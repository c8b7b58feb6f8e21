// What a commit record says of the training it belongs to, beside the state: everything that a
// resumed training must have in common with it to go on bit for bit, and what it had chosen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exec/run/executor.hpp"
#include "policies/common/registry.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

struct TrainingRecord {
  // Decide the numbers: a resumed training has the same.
  ModelSpec model;
  Workload workload;
  std::uint64_t seed = 0;
  OptimizerSettings optimizer;
  std::uint64_t data_bytes = 0, data_hash = 0;  // Batches::size(), Batches::hash()
  // Whose arithmetic it is: "cpu" or "cuda". Sums are added up in other orders.
  std::string backend = cpu_backend;
  // Of the backend cuda: which kernels of attention (cuda_attention() in exec/run/cuda_module.hpp).
  std::string attention = usual_attention;
  // Decide time and place only: a resumed training may have others.
  std::vector<std::filesystem::path> data;  // absolute
  std::string policy;                       // settled
  std::int64_t steps = 0;
  // Of the backend cuda, and decide the numbers, too: what computes GELU's backward, and whether
  // the algorithms of matrix products were tried out or taken as they come (CudaOptions in
  // exec/run/cuda_module.hpp).
  std::string gelu_backward = usual_gelu_backward;
  bool tunes_products = false;
  // Where it began with the weights of a folder: which one, and what they were (Checkpoint::hash(),
  // Checkpoint::data_hash()); 0: with values drawn from the seed. The hashes decide the numbers.
  std::filesystem::path initial_folder = {};
  std::uint64_t initial_hash = 0, initial_data_hash = 0;
  // Of weights that are frozen and come from a folder: WeightsSeal::data. Decides the numbers.
  std::uint64_t frozen_hash = 0;
  // How batches are made of the data, in words: which tokenizer, how it is packed, what is held
  // out; empty: random pieces of text as bytes. Decides the numbers.
  std::string data_rules = {};
  // Batches that are not trained on (LeftOutBatches). Those before the step that it has come to
  // decide the numbers.
  std::vector<std::int64_t> left_out = {};
  // Device::algorithms() of the device that trains; a training that goes on gives them to its own.
  std::string algorithms = {};
  int rank = 0;    // of several, or of the stages of a pipeline: whose part of the state it is
  int chunks = 1;  // of each stage of a pipeline (policies/model/stages.hpp)
  // Of a policy that is not built in.
  std::optional<PolicyOrigin> policy_origin = {};

  static constexpr const char* cpu_backend = "cpu";
  static constexpr const char* cuda_backend = "cuda";
  static constexpr const char* usual_attention = "mma";
  static constexpr const char* usual_gelu_backward = "kernel";

  // What this part of the state is of: the model, or the layers of the stage.
  ModelSpec own_model() const;

  std::string to_json() const;
  // Throws InputError when it is not what to_json writes, and says so where another version of
  // Spillway wrote it.
  static TrainingRecord parse(const std::string& json);
};

// Throws InputError naming the first thing that decides the numbers and differs: "seed is 2, but
// the training to go on with has 1".
void require_same_numbers(const TrainingRecord& committed, const TrainingRecord& now);

}  // namespace spillway
