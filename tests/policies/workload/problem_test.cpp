#include "policies/workload/problem.hpp"

#include <catch2/catch.hpp>

#include "tests/policies/input_error.hpp"

using namespace spillway;

namespace {

Problem problem(std::int64_t batch, std::int64_t micro_batch, Precision precision = Precision::bf16,
                GradientWidth gradient = GradientWidth::automatic) {
  return {load_model("gpt-tiny"),
          load_machine("testbed"),
          {batch, micro_batch, 128, precision, gradient}};
}

}  // namespace

TEST_CASE("parameters and activations take 2 bytes in bf16 and 4 in fp32") {
  CHECK(problem(8, 8).parameter_bytes() == 2);
  CHECK(problem(8, 8).activation_bytes() == 2);
  CHECK(problem(8, 8, Precision::fp32).parameter_bytes() == 4);
  CHECK(problem(8, 8, Precision::fp32).activation_bytes() == 4);
}

TEST_CASE(
    "a gradient takes 2 bytes only where one bf16 micro-batch makes it: sums are kept in fp32") {
  CHECK(problem(8, 8).gradient_bytes() == 2);
  CHECK(problem(8, 4).gradient_bytes() == 4);
  CHECK(problem(8, 8, Precision::fp32).gradient_bytes() == 4);
  CHECK(problem(8, 4, Precision::fp32).gradient_bytes() == 4);
  CHECK(problem(8, 8, Precision::bf16, GradientWidth::bits16).gradient_bytes() == 2);
  CHECK(problem(8, 8, Precision::bf16, GradientWidth::bits32).gradient_bytes() == 4);
}

TEST_CASE("a workload counts its micro-batches and tokens") {
  const Workload workload{24, 4, 1024};
  CHECK(workload.micro_batches() == 6);
  CHECK(workload.tokens_per_step() == 24 * 1024);
}

TEST_CASE("sound problems pass") {
  CHECK_NOTHROW(problem(8, 8).validate());
  CHECK_NOTHROW(problem(8, 2).validate());
  CHECK_NOTHROW(problem(1, 1, Precision::fp32).validate());
  CHECK_NOTHROW(problem(8, 8, Precision::bf16, GradientWidth::bits16).validate());
  CHECK_NOTHROW(problem(8, 2, Precision::bf16, GradientWidth::bits32).validate());
}

TEST_CASE("16-bit gradients are refused where they would be summed, and in fp32") {
  check_error([] { problem(8, 2, Precision::bf16, GradientWidth::bits16).validate(); },
              "16-bit gradients do not go with 4 micro-batches", "micro_batch = 8");
  check_error([] { problem(8, 8, Precision::fp32, GradientWidth::bits16).validate(); },
              "16-bit gradients do not go with fp32", "bf16");
}

TEST_CASE("a micro-batch must divide the batch, and the nearest that do are named") {
  check_error([] { problem(12, 5).validate(); }, "micro-batch 5 does not divide batch 12",
              "use micro_batch = 4 or micro_batch = 6");
  check_error([] { problem(7, 3).validate(); }, "micro-batch 3 does not divide batch 7",
              "use micro_batch = 1 or micro_batch = 7");
  const InputError larger = input_error([] { problem(8, 16).validate(); });
  CHECK(std::string(larger.what()) == "micro-batch 16 does not divide batch 8");
  CHECK(larger.hint() == "use micro_batch = 8");
}

TEST_CASE("the sequences worked on at once must divide the micro-batch") {
  const auto at_once = [](std::int64_t sequences) {
    Problem some = problem(16, 8);
    some.workload.sequences_at_once = sequences;
    some.validate();
  };
  for (const std::int64_t sequences : {1, 2, 4, 8}) CHECK_NOTHROW(at_once(sequences));
  check_error([&] { at_once(3); }, "3 sequences at once do not divide a micro-batch of 8",
              "use sequences_at_once = 2 or sequences_at_once = 4");
  check_error([&] { at_once(16); }, "16 sequences at once do not divide a micro-batch of 8",
              "use sequences_at_once = 8");
  check_error([&] { at_once(0); }, "sequences-at-once = 0 is outside", "at least 1");
}

TEST_CASE("sizes must be at least 1 and within reason") {
  check_error([] { problem(0, 1).validate(); }, "batch = 0 is outside 1 .. 100000000",
              "at least 1");
  check_error([] { problem(8, 0).validate(); }, "micro-batch = 0 is outside", "at least 1");
  check_error([] { problem(-8, 1).validate(); }, "batch = -8 is outside", "at least 1");
  Problem none = problem(8, 8);
  none.workload.sequence = 0;
  check_error([&] { none.validate(); }, "sequence = 0 is outside", "at least 1");
  Problem huge = problem(8, 8);
  huge.workload.batch = 100'000'001;
  check_error([&] { huge.validate(); }, "batch = 100000001 is outside", "");
}

TEST_CASE("a sequence must fit the model's positions") {
  Problem longer = problem(8, 8);
  longer.workload.sequence = 1024;
  CHECK_NOTHROW(longer.validate());
  longer.workload.sequence = 1025;
  check_error([&] { longer.validate(); },
              "sequence 1025 is longer than the 1024 positions of model gpt-tiny",
              "model.positions = 1025");
}

TEST_CASE("the model is checked too") {
  Problem broken = problem(8, 8);
  broken.model.heads = 3;
  check_error([&] { broken.validate(); },
              "model gpt-tiny: heads: 3 heads do not divide hidden = 128", "use 2 or 4 heads");
}

TEST_CASE("activations beyond what bytes can count are refused, whatever makes them so many") {
  Problem large = problem(100'000'000, 100'000'000);
  large.model.positions = large.workload.sequence = 100'000'000;
  check_error([&] { large.validate(); }, "100000000 sequences of 100000000 tokens through 4 layers",
              "smaller batch");
  // What is trained in earnest is far below: 412 billion parameters, 4 million tokens a step.
  Problem real = problem(2048, 8);
  real.model = load_model("gpt-412b");
  real.model.positions = real.workload.sequence = 2048;
  CHECK_NOTHROW(real.validate());
}

TEST_CASE(
    "sequences at once are the largest divisor that fits, found at once for any micro-batch") {
  Problem one = problem(99'999'989, 99'999'989);  // a prime
  one.model.hidden = 1;
  one.workload.sequence = 1;
  one.use_gpu_sequences_at_once();
  CHECK(one.workload.sequences_at_once == 1);
  one.workload.micro_batch = one.workload.batch = 100'000'000;
  one.use_gpu_sequences_at_once();
  CHECK(one.workload.sequences_at_once == 25'000'000);  // at most 2^25
}
