// Training through the executor on the CUDA backend where sequences hold several documents and
// targets do not count.
#include <catch2/catch.hpp>

#include "tests/cuda/device/cuda_training.hpp"
#include "tests/exec/document_batches.hpp"

namespace spillway {
namespace {

using test::difference;
using test::DocumentBatches;
using test::train;
using test::Trained;
using test::Workbench;

TrainingOptions small_documents(const Workbench& bench, const std::string& policy,
                                const std::string& model = "gpt-tiny", bool has_borders = true) {
  TrainingOptions options = bench.options(policy, 2, 32, 2, model);
  if (model == "qwen-tiny") options.problem.model.head_width = 16;
  options.batches = std::make_shared<const DocumentBatches>(4, has_borders);
  options.steps = 6;
  return options;
}

TEST_CASE("CUDA: every policy trains packed documents bit-identically to resident",
          "[policies][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const char* model : {"gpt-tiny", "qwen-tiny"}) {
    INFO(model);
    const auto options = [&](const std::string& policy) {
      return test::in_bf16(small_documents(bench, policy, model));
    };
    const Trained resident = train(options("resident"));
    CHECK(resident.losses.of_step.back() < resident.losses.of_step.front());
    for (const PolicyInfo& policy : builtin_policies()) {
      const std::string text = policy.name == "greedysnake" ? "greedysnake:snake=off" : policy.name;
      INFO(text);
      CHECK(difference(resident.losses, train(options(text)).losses) == "");
    }
  }
}

TEST_CASE("CUDA: steps of packed documents replayed as graphs are those issued task by task",
          "[policies][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const bool has_borders : {true, false}) {
    for (const char* model : {"gpt-tiny", "llama-tiny"}) {
      INFO(model << (has_borders ? ", borders" : ", no borders"));
      TrainingOptions options =
          test::in_bf16(small_documents(bench, "resident", model, has_borders));
      options.steps = 12;
      const Trained replayed = train(options);
      options.steps_per_run = 1;  // a schedule of one step is not replayed
      CHECK(difference(replayed.losses, train(options).losses) == "");
    }
  }
}

TEST_CASE("CUDA: packed documents have the CPU's losses, step by step", "[policies]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const bool has_borders : {true, false}) {
    for (const char* model : {"gpt-tiny", "qwen-tiny"}) {
      INFO(model << (has_borders ? ", borders" : ", no borders"));
      const TrainingOptions options = small_documents(bench, "resident", model, has_borders);
      const Trained cpu = train(options), cuda = train(test::on_cuda(options));
      for (std::size_t step = 0; step < cpu.losses.of_step.size(); ++step)
        CHECK(cuda.losses.of_step[step] == Approx(cpu.losses.of_step[step]).epsilon(2e-5));
    }
  }
}

}  // namespace
}  // namespace spillway
