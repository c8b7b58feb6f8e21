// Training of low-rank adapters, and of the last layers alone, through the executor on the CUDA
// backend.
#include <catch2/catch.hpp>

#include "tests/cuda/device/cuda_training.hpp"

namespace spillway {
namespace {

using test::difference;
using test::in_bf16;
using test::on_cuda;
using test::train;
using test::Trained;
using test::Workbench;

struct Part {
  const char *model, *targets;  // no targets: the last of two layers is trained
  double dropout = 0;
};
// A tied head is frozen with the embedding, another one is trained where layers are.
constexpr Part parts[] = {{"gpt-tiny", "all-linear", 0.2},
                          {"llama-tiny", "q_proj,v_proj", 0.2},
                          {"qwen-tiny", "all-linear"},
                          {"gpt-tiny", nullptr},
                          {"llama-tiny", nullptr}};

// Clipped by the norm of what is trained, in two micro-batches of two sequences.
TrainingOptions options(const Workbench& bench, const Part& part, const std::string& policy) {
  TrainingOptions o = bench.options(policy, 2, 32, 2, part.model);
  ModelSpec& model = o.problem.model;
  if (model.head_width > 0) model.head_width = 16;
  if (part.targets != nullptr) {
    model.lora_rank = 4;
    model.lora_targets = part.targets;
    model.lora_dropout = part.dropout;
  } else {
    model.frozen_layers = 1;
  }
  o.problem.workload.clip = {ClipScope::global, 0.1};
  o.optimizer.learning_rate = 3e-3;
  o.steps = 5;
  return o;
}

std::string name_of(const Part& part) {
  return std::string(part.model) + " " + (part.targets != nullptr ? part.targets : "last layer");
}

TEST_CASE("CUDA: policies train adapters and last layers bit-identically to resident",
          "[policies][adapters][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const Part& part : parts) {
    const Trained resident = train(in_bf16(options(bench, part, "resident")));
    CHECK(resident.losses.of_step.back() < resident.losses.of_step.front());
    // Parameters, states and activations on the drive; activations recomputed in part; and an order
    // of its own, that of micro-batches kept.
    for (const char* policy : {"zero-infinity", "fuyou", "greedysnake:snake=off"}) {
      INFO(name_of(part) << " " << policy);
      const Trained other = train(in_bf16(options(bench, part, policy)));
      CHECK(difference(resident.losses, other.losses) == "");
      for (std::size_t step = 0; step < other.norms.size(); ++step)
        CHECK(other.norms[step] == Approx(resident.norms[step]).epsilon(1e-12));
    }
  }
}

TEST_CASE("CUDA: the loss of adapters is the CPU backend's, to fp32 or to bf16 rounding",
          "[policies][adapters][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const Part& part : parts) {
    INFO(name_of(part));
    const TrainingOptions o = options(bench, part, "resident");
    const Trained cpu = train(o), wide = train(on_cuda(o)), narrow = train(in_bf16(o));
    for (std::size_t step = 0; step < cpu.losses.of_step.size(); ++step) {
      INFO("step " << step);
      CHECK(wide.losses.of_step[step] == Approx(cpu.losses.of_step[step]).epsilon(2e-5));
      CHECK(wide.norms[step] == Approx(cpu.norms[step]).epsilon(1e-4));
      CHECK(narrow.losses.of_step[step] == Approx(cpu.losses.of_step[step]).margin(0.03));
    }
  }
}

TEST_CASE("CUDA: steps with dropout replayed as graphs are those issued task by task",
          "[policies][adapters]") {
  const Workbench bench(test::folder_for_many_runs());
  TrainingOptions o = options(bench, parts[0], "resident");
  o.steps = 12;
  o = in_bf16(o);
  const Trained replayed = train(o);
  o.steps_per_run = 1;  // a schedule of one step is not replayed
  CHECK(difference(replayed.losses, train(o).losses) == "");
}

}  // namespace
}  // namespace spillway
