// What a commit record says of its training: what decides the numbers is compared by name, and
// records of another format are refused.
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
  CHECK_THROWS_WITH(
      require_same_numbers(record, other),
      Catch::Contains("gelu_backward is dgelu, but the training") && Catch::Contains("has kernel"));
  other = record;
  other.tunes_products = true;
  CHECK_THROWS_WITH(require_same_numbers(record, other),
                    Catch::Contains("tune_matmul is on, but the training"));
  // Which algorithms these are the device makes sure of, to which they are given.
  other = record;
  other.algorithms = "others";
  CHECK_NOTHROW(require_same_numbers(record, other));
}

TEST_CASE("ranks go on with sums as they were, however these are said, and with no others") {
  TrainingRecord record = some_record();
  Workload& workload = record.workload;
  workload.ranks = workload.gradient_groups = 2;
  const auto with = [&](std::int64_t micro_batches, const GradientMeshes& meshes) {
    TrainingRecord other = record;
    other.workload.batch = 2 * micro_batches * workload.micro_batch;
    other.workload.group_meshes = meshes;
    return other;
  };
  // Records of before meshes were in them have none.
  CHECK_NOTHROW(require_same_numbers(with(3, {}), with(3, {2, 1, 1})));
  CHECK_NOTHROW(require_same_numbers(with(1, {}), with(1, {2, 2, 2})));
  CHECK_NOTHROW(require_same_numbers(with(3, {2, 2, 2}), with(3, {2, 2, 1})));
  CHECK_THROWS_WITH(
      require_same_numbers(with(3, {}), with(3, {2, 2, 2})),
      Catch::Contains("adds up the gradients of ranks") &&
          Catch::Contains("is state=2,gradients=2, but the training to go on with has "
                          "state=2"));
}

TEST_CASE("a record of another format is refused, and it is said which and what to do") {
  const auto refusal = [](const std::string& text) {
    try {
      TrainingRecord::parse(text);
    } catch (const InputError& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
    return std::string("read");
  };
  // As it was written before records had a format: by the flags of the command line.
  const std::string first =
      R"({"numbers":{"--device":"cpu","--batch":2},"data":["/d/a"],"policy":"resident","steps":8})";
  CHECK_THAT(refusal(first), Catch::Contains("committed by an earlier version of Spillway") &&
                                 Catch::Contains("format 1, and this version reads format 2 |") &&
                                 Catch::Contains("go on with it by the version that began it"));
  ordered_json json = ordered_json::parse(some_record().to_json());
  json["format"] = 3;
  CHECK_THAT(refusal(json.dump()),
             Catch::Contains("committed by a later version") && Catch::Contains("format 3"));
}

TEST_CASE("what a record holds has keys of its own, whatever the flags are called") {
  const ordered_json json = ordered_json::parse(some_record().to_json());
  for (const auto& item : json.at("numbers").items())
    CHECK_THAT(item.key(), Catch::Matches("[a-z][a-z0-9_]*"));
}

TEST_CASE("what decides the numbers and differs is named as it is given") {
  struct Difference {
    std::function<void(TrainingRecord&)> change;
    std::string message, hint;
  };
  for (const auto& [change, message, hint] : std::vector<Difference>{
           {[](TrainingRecord& r) { r.backend = TrainingRecord::cuda_backend; },
            "device is cuda, but the training to go on with has cpu", "go on with device = cpu"},
           {[](TrainingRecord& r) { r.attention = "wgmma"; },
            "SPILLWAY_CUDA_ATTENTION is wgmma, but the training to go on with has mma",
            "leave the option out"},
           {[](TrainingRecord& r) { r.workload.precision = Precision::bf16; },
            "precision is bf16, but the training to go on with has fp32", "leave the option out"},
           {[](TrainingRecord& r) { r.workload.sequences_at_once = 4; },
            "sequences_at_once is 4, but the training to go on with has 1", "leave the option out"},
           {[](TrainingRecord& r) { r.workload.gradient = GradientWidth::bits32; },
            "gradient_bits is 32, but the training to go on with has auto", "leave the option out"},
           {[](TrainingRecord& r) { r.workload.moments = MomentWidth::bf16; },
            "moments is bf16, but the training to go on with has fp32", "leave the option out"},
           {[](TrainingRecord& r) { r.seed = 7; }, "seed is 7", "leave the option out"}}) {
    const TrainingRecord before = some_record();
    TrainingRecord now = before;
    change(now);
    INFO(message);
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
}

TEST_CASE("text that is no record is refused") {
  CHECK_THROWS_AS(TrainingRecord::parse("{}"), InputError);
  CHECK_THROWS_AS(TrainingRecord::parse("no JSON"), InputError);
}

}  // namespace spillway
