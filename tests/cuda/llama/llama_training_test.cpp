// Training of llamas through the executor on the CUDA backend.
#include <catch2/catch.hpp>

#include "tests/cuda/device/cuda_training.hpp"
#include "tests/cuda/llama/llama_problems.hpp"

namespace spillway {
namespace {

using test::difference;
using test::in_bf16;
using test::on_cuda;
using test::train;
using test::Trained;
using test::Workbench;

// Two layers, on bytes; two micro-batches of two sequences of 16 tokens.
TrainingOptions llama_options(const Workbench& bench, const std::string& kind,
                              const std::string& policy) {
  TrainingOptions o = bench.options(policy, 2, 32, 2);
  o.problem.model = cuda::small_llama(kind, 256, 2, 16, 4, 2).model;
  o.steps = 4;
  return o;
}

// Between them the kinds have grouped queries, biases, norms of heads and a window.
TEST_CASE("CUDA: policies train a llama bit-identically to resident, in bf16 and in fp32",
          "[policies][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const std::string& kind : llama_kinds) {
    const Trained narrow = train(in_bf16(llama_options(bench, kind, "resident")));
    const Trained wide = train(on_cuda(llama_options(bench, kind, "resident")));
    CHECK(narrow.losses.of_step.back() < narrow.losses.of_step.front());
    CHECK(wide.losses.of_step.back() < wide.losses.of_step.front());
    // Parameters, states and activations on the drive; activations recomputed in part; and an order
    // of its own, that of micro-batches kept.
    for (const char* policy : {"zero-infinity", "fuyou", "greedysnake:snake=off"}) {
      INFO(kind << " " << policy);
      CHECK(difference(narrow.losses, train(in_bf16(llama_options(bench, kind, policy))).losses) ==
            "");
    }
    const TrainingOptions wide_away = on_cuda(llama_options(bench, kind, "zero-infinity"));
    CHECK(difference(wide.losses, train(wide_away).losses) == "");
  }
}

TEST_CASE("CUDA: the loss of a llama is the CPU backend's, to fp32 or to bf16 rounding",
          "[policies]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const std::string& kind : llama_kinds) {
    INFO(kind);
    const TrainingOptions o = llama_options(bench, kind, "resident");
    const Trained cpu = train(o), wide = train(on_cuda(o)), narrow = train(in_bf16(o));
    for (std::size_t step = 0; step < cpu.losses.of_step.size(); ++step) {
      INFO("step " << step);
      CHECK(wide.losses.of_step[step] == Approx(cpu.losses.of_step[step]).epsilon(2e-5));
      CHECK(narrow.losses.of_step[step] == Approx(cpu.losses.of_step[step]).margin(0.03));
      CHECK(narrow.losses.of_step[step] != cpu.losses.of_step[step]);
    }
  }
}

TEST_CASE("CUDA: steps of a llama replayed as graphs are those issued task by task", "[policies]") {
  const Workbench bench(test::folder_for_many_runs());
  TrainingOptions o = llama_options(bench, "qwen3", "resident");
  o.steps = 12;
  o = in_bf16(o);
  const Trained replayed = train(o);
  o.steps_per_run = 1;  // a schedule of one step is not replayed
  CHECK(difference(replayed.losses, train(o).losses) == "");
}

}  // namespace
}  // namespace spillway
