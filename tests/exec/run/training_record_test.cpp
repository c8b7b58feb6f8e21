// What a commit record says of its training: what decides the numbers is compared by name, and
// records of before the GPU are read as what they were.
#include "exec/run/training_record.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"

namespace spillway {
namespace {

using nlohmann::ordered_json;

TrainingRecord some_record() {
  TrainingRecord record;
  record.model = load_model("gpt-tiny", {});
  record.workload.batch = 8;
  record.workload.micro_batch = 4;
  record.workload.sequence = 64;
  record.workload.precision = Precision::fp32;
  record.policy = "resident";
  record.steps = 10;
  return record;
}

// As it was written before there was a choice of these.
std::string older(const TrainingRecord& record) {
  ordered_json json = ordered_json::parse(record.to_json());
  json["numbers"].erase("--device");
  json["numbers"].erase("--moments");
  json["numbers"].erase("--sequences-at-once");
  json["numbers"].erase("SPILLWAY_CUDA_ATTENTION");
  json["numbers"].erase("--gelu-backward");
  json["numbers"].erase("--tune-matmul");
  return json.dump();
}

}  // namespace

TEST_CASE("a record is read as it was written") {
  TrainingRecord record = some_record();
  record.backend = TrainingRecord::cuda_backend;
  record.workload.precision = Precision::bf16;
  record.workload.sequences_at_once = 2;
  record.workload.moments = MomentWidth::bf16;
  record.attention = "wgmma";
  record.gelu_backward = "dgelu";
  record.tunes_products = true;
  record.algorithms = "a library\na shape 00\n";
  const TrainingRecord read = TrainingRecord::parse(record.to_json());
  CHECK(read.to_json() == record.to_json());
  CHECK(read.backend == "cuda");
  CHECK(read.workload.precision == Precision::bf16);
  CHECK(read.workload.sequences_at_once == 2);
  CHECK(read.gelu_backward == "dgelu");
  CHECK(read.tunes_products);
  CHECK(read.algorithms == record.algorithms);
  CHECK(read.workload.moments == MomentWidth::bf16);
}

TEST_CASE("how GELU's backward is computed, and whether products are tuned, decide the numbers") {
  const TrainingRecord record = some_record();
  TrainingRecord other = record;
  other.gelu_backward = "dgelu";
  CHECK_THROWS_WITH(require_same_numbers(record, other),
                    Catch::Contains("--gelu-backward is dgelu, but the training") &&
                        Catch::Contains("has kernel"));
  other = record;
  other.tunes_products = true;
  CHECK_THROWS_WITH(require_same_numbers(record, other),
                    Catch::Contains("--tune-matmul is on, but the training"));
  // Which algorithms these are the device makes sure of, to which they are given.
  other = record;
  other.algorithms = "others";
  CHECK_NOTHROW(require_same_numbers(record, other));
}

TEST_CASE(
    "a record of an earlier version is the CPU backend's, one sequence at a time, fp32 moments") {
  const TrainingRecord record = some_record();
  const std::string before = older(record);
  REQUIRE(before != record.to_json());
  const TrainingRecord read = TrainingRecord::parse(before);
  CHECK(read.backend == "cpu");
  CHECK(read.workload.sequences_at_once == 1);
  CHECK(read.gelu_backward == "kernel");
  CHECK_FALSE(read.tunes_products);
  CHECK(read.algorithms.empty());
  CHECK(read.workload.moments == MomentWidth::fp32);
  CHECK_NOTHROW(require_same_numbers(read, record));
  CHECK(same_training(before, record.to_json()));
  TrainingRecord on_gpu = record;
  on_gpu.backend = TrainingRecord::cuda_backend;
  CHECK_THROWS_AS(require_same_numbers(read, on_gpu), InputError);
  CHECK_FALSE(same_training(before, on_gpu.to_json()));
}

TEST_CASE("what decides the numbers and differs is named as it is given") {
  struct Difference {
    std::function<void(TrainingRecord&)> change;
    std::string message, hint;
  };
  for (const auto& [change, message, hint] : std::vector<Difference>{
           {[](TrainingRecord& r) { r.backend = TrainingRecord::cuda_backend; },
            "--device is cuda, but the training to go on with has cpu", "go on with --device cpu"},
           {[](TrainingRecord& r) { r.attention = "wgmma"; },
            "SPILLWAY_CUDA_ATTENTION is wgmma, but the training to go on with has mma",
            "leave the option out"},
           {[](TrainingRecord& r) { r.workload.precision = Precision::bf16; },
            "--precision is bf16, but the training to go on with has fp32", "leave the option out"},
           {[](TrainingRecord& r) { r.workload.sequences_at_once = 4; },
            "--sequences-at-once is 4, but the training to go on with has 1",
            "leave the option out"},
           {[](TrainingRecord& r) { r.workload.gradient = GradientWidth::bits32; },
            "--gradient-bits is 32, but the training to go on with has auto",
            "leave the option out"},
           {[](TrainingRecord& r) { r.workload.moments = MomentWidth::bf16; },
            "--moments is bf16, but the training to go on with has fp32", "leave the option out"},
           {[](TrainingRecord& r) { r.seed = 7; }, "--seed is 7", "leave the option out"}}) {
    const TrainingRecord before = some_record();
    TrainingRecord now = before;
    change(now);
    INFO(message);
    CHECK_FALSE(same_training(before.to_json(), now.to_json()));
    try {
      require_same_numbers(before, now);
      FAIL_CHECK("accepted");
    } catch (const InputError& error) {
      CHECK_THAT(error.what(), Catch::Contains(message));
      CHECK_THAT(error.hint(), Catch::Contains(hint));
    }
  }
  TrainingRecord elsewhere = some_record();
  elsewhere.policy = "fuyou";
  elsewhere.steps = 99;
  CHECK_NOTHROW(require_same_numbers(some_record(), elsewhere));
  CHECK(same_training(some_record().to_json(), elsewhere.to_json()));
}

TEST_CASE("text that is no record is no training, and is refused") {
  CHECK_FALSE(same_training("{}", some_record().to_json()));
  CHECK_FALSE(same_training("{}", "{}"));
  CHECK_THROWS_AS(TrainingRecord::parse("no JSON"), InputError);
}

}  // namespace spillway
