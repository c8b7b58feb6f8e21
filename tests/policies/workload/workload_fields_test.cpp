// Every field of a workload is read as it was written: as text, as JSON, in the record of a trace.
#include "policies/workload/workload_fields.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "policies/common/policy.hpp"
#include "policies/common/run_record.hpp"
#include "policies/workload/workload_json.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"
#include "tests/workload_values.hpp"

namespace spillway {
namespace {

using test::unusual_workload;

// Those that are written whatever they are.
std::vector<WorkloadField> written_fields() {
  std::vector<WorkloadField> written;
  for (const WorkloadField& field : workload_fields()) {
    if (field.is_written_always) written.push_back(field);
  }
  return written;
}

Workload unusual() {
  return read_workload(unusual_workload(), load_model("gpt-tiny"), Precision::fp32);
}

}  // namespace

TEST_CASE("the values for tests cover the table, and none is what a field has by itself") {
  const WorkloadTexts values = unusual_workload();
  const WorkloadTexts usual =
      workload_texts(read_workload({}, load_model("gpt-tiny"), Precision::fp32));
  CHECK(values.size() == written_fields().size());
  for (const WorkloadField& field : written_fields()) {
    INFO(field.key);
    REQUIRE(values.contains(field.key));
    CHECK(usual.at(field.key) != values.at(field.key));
    CHECK(find_workload_field(field.key)->key == field.key);
    CHECK_THAT(field.key, Catch::Matches("[a-z][a-z_]*"));
  }
  CHECK(find_workload_field("no_field") == nullptr);
}

TEST_CASE("each field of a workload is read from its text, and changes no other") {
  const Workload before;
  WorkloadTexts values = unusual_workload();
  values.merge(WorkloadTexts{{"ranks", "2"},
                             {"pipeline", "4"},
                             {"gradient_groups", "3"},
                             {"gradient_meshes", "state=4,gradients=2,sums=once"}});
  CHECK(values.size() == workload_fields().size());
  for (const WorkloadField& field : workload_fields()) {
    for (const auto& [key, text] : {*values.find(field.key)}) {
      INFO(key << " = " << text);
      Workload workload;
      field.read(workload, text);
      CHECK(field.write(workload) == text);
      for (const WorkloadField& other : workload_fields()) {
        if (other.key != field.key) CHECK(other.write(workload) == other.write(before));
      }
    }
  }
}

TEST_CASE("a text that a field does not take is refused, and the setting is named") {
  for (const WorkloadField& field : workload_fields()) {
    for (const std::string text : {"", "0", "-1", "1e3", "8 ", "100000001", "nonsense"}) {
      INFO(field.key << " = " << text);
      Workload workload;
      const InputError error = input_error([&] { field.read(workload, text); });
      CHECK(error.message().settings().front() == Setting{field.key, text});
      CHECK_FALSE(error.hint().empty());
    }
  }
}

TEST_CASE("what is not given follows from the model and what is given") {
  ModelSpec model = load_model("gpt-tiny");
  model.positions = 4096;
  Workload workload = read_workload({}, model, Precision::fp32);
  CHECK(workload.batch == 8);
  CHECK(workload.micro_batch == 8);
  CHECK(workload.sequence == 1024);
  CHECK(workload.precision == Precision::fp32);
  model.positions = 64;
  workload = read_workload({{"batch", "6"}}, model, Precision::bf16);
  CHECK(workload.micro_batch == 6);
  CHECK(workload.sequence == 64);
  CHECK(workload.precision == Precision::bf16);
  check_error(
      [&] {
        read_workload({{"micro-batch", "2"}}, model, Precision::bf16);
      },
      "unknown workload field micro-batch", "micro_batch");
}

TEST_CASE("a workload in JSON has every field by its key, and is read as it was written") {
  const nlohmann::ordered_json json = workload_json(unusual());
  CHECK(json.size() == written_fields().size());
  for (const WorkloadField& field : written_fields()) {
    INFO(field.key);
    CHECK(json.at(field.key).is_number() == field.is_count());
    nlohmann::ordered_json without = json;
    without.erase(field.key);
    check_error([&] { workload_of_json(without, "some file", "what to do"); },
                "some file: " + field.key + " is missing", "what to do");
  }
  CHECK(workload_texts(workload_of_json(json, "some file", "")) == unusual_workload());
  // Others where they are not as usual.
  Workload of_ranks = unusual();
  of_ranks.ranks = of_ranks.gradient_groups = 2;
  CHECK(workload_of_json(workload_json(of_ranks), "some file", "") == of_ranks);
}

TEST_CASE("the record of a trace has every field of the workload") {
  Problem problem = test::tiny_problem(2, 2);
  problem.model = load_model("gpt-tiny", {"layers=2"});
  problem.workload = unusual();
  const Trace trace = make_trace(build_schedule(problem, "zero-offload", 2), "simulator");
  const Schedule rebuilt = rebuild_schedule(trace, "trace.json");
  CHECK(workload_texts(rebuilt.problem().workload) == unusual_workload());
}

}  // namespace spillway
