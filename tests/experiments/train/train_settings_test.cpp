// What a training is told, by name: read from texts, kept by its run, recorded by its commits.
#include "experiments/train/train_settings.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "exec/run/training_record.hpp"
#include "experiments/sweep/sweep_settings.hpp"
#include "sim/result_json.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/workload_values.hpp"

namespace spillway {
namespace {

using test::unusual_workload;

ModelSpec tiny() { return load_model("gpt-tiny"); }

Workload unusual() { return read_workload(unusual_workload(), tiny(), Precision::fp32); }

}  // namespace

TEST_CASE("every field of a workload reaches a training by its name") {
  GivenSettings given;
  for (const auto& [key, text] : unusual_workload()) given[key] = {text};
  CHECK(read_train_settings(given).problem.workload == unusual_workload());
}

TEST_CASE("every field of a workload is in the record of a commit, and decides the numbers") {
  TrainingRecord record;
  record.model = tiny();
  record.workload = unusual();
  const TrainingRecord read = TrainingRecord::parse(record.to_json());
  CHECK(workload_texts(read.workload) == unusual_workload());
  for (const WorkloadField& field : workload_fields()) {
    if (!field.is_written_always) continue;  // of several ranks
    INFO(field.key);
    TrainingRecord other = record;
    field.read(other.workload, field.write(Workload{}));
    if (field.key == "precision") other.workload.precision = Precision::fp32;
    const InputError error = input_error([&] { require_same_numbers(record, other); });
    CHECK(error.message().settings().front().name == field.key);
  }
}

TEST_CASE("every field of a workload can be set by a sweep, and makes another point") {
  SweepSettings settings = {{"model", "gpt-tiny"}, {"machine", "testbed"}, {"policy", "resident"}};
  const std::string usual = SettingsResolver().resolve(settings).identity;
  const std::vector<std::string> keys = sweep_keys();
  for (const auto& [key, text] : unusual_workload()) {
    INFO(key);
    CHECK(std::find(keys.begin(), keys.end(), key) != keys.end());
    CHECK_NOTHROW(check_sweep_value(key, text));
    SweepSettings one = settings;
    one[key] = text;
    if (key == "micro_batch") one["batch"] = "12";
    if (key == "sequences_at_once") one["micro_batch"] = "4";
    SweepSettings without = one;
    without.erase(key);
    CHECK(SettingsResolver().resolve(one).identity != SettingsResolver().resolve(without).identity);
  }
  for (const auto& [key, text] : unusual_workload()) settings[key] = text;
  const ResolvedSettings all = SettingsResolver().resolve(settings);
  CHECK(workload_texts(all.workload) == unusual_workload());
  CHECK_FALSE(all.best_micro_batch);
  CHECK_FALSE(all.chooses_sequences_at_once);
  CHECK(all.identity != usual);
}

TEST_CASE("a framework can be set by a sweep, and its file decides which point it makes") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "mine.toml";
  const auto write = [&](const std::string& memory) {
    std::ofstream(file) << "name = \"mine\"\ndescription = \"a test\"\n[memory]\n" << memory;
  };
  SweepSettings settings = {{"model", "gpt-tiny"}, {"machine", "testbed"}, {"policy", "resident"}};
  write("gpu = \"1MB\"\n");
  settings["framework"] = file;
  CHECK_NOTHROW(check_sweep_value("framework", settings["framework"]));
  CHECK_THROWS_AS(check_sweep_value("framework", "nobody's"), InputError);
  const std::string before = SettingsResolver().resolve(settings).identity;
  CHECK(SettingsResolver().resolve(settings).identity == before);
  write("gpu = \"2MB\"\n");
  CHECK(SettingsResolver().resolve(settings).identity != before);
}

TEST_CASE("every field of a workload is in the JSON of a simulation") {
  const nlohmann::ordered_json json = to_json(unusual());
  for (const auto& [key, text] : unusual_workload()) {
    INFO(key);
    CHECK((json.at(key).is_string() ? json.at(key).get<std::string>() : json.at(key).dump()) ==
          text);
  }
  CHECK(json.at("micro_batches") == 2);
}

TEST_CASE("every setting of a training is read from text, and what it does not take is refused") {
  const TrainSettings settings = read_train_settings({{"model", {"gpt-tiny"}},
                                                      {"set", {"ssd.count=2", "model.layers=2"}},
                                                      {"gpu_memory", {"1GB"}},
                                                      {"data", {"a", "b"}},
                                                      {"binary_data", {"true"}},
                                                      {"steps", {"3", "7"}},
                                                      {"seed", {"18446744073709551615"}},
                                                      {"learning_rate", {"1e-4"}},
                                                      {"beta2", {"0.99"}},
                                                      {"gpu", {"1"}},
                                                      {"tune_matmul", {"off"}}});
  CHECK(settings.problem.model == "gpt-tiny");
  CHECK(settings.problem.overrides == std::vector<std::string>{"ssd.count=2", "model.layers=2"});
  CHECK(settings.problem.gpu_memory == "1GB");
  CHECK(settings.data.data == std::vector<std::string>{"a", "b"});
  CHECK(settings.data.binary_data);
  CHECK(settings.steps == 7);  // the last one holds
  CHECK(settings.seed == 18446744073709551615u);
  CHECK(settings.optimizer.learning_rate == 1e-4);
  CHECK(settings.optimizer.beta2 == 0.99);
  CHECK(settings.gpu == 1);
  CHECK(settings.tune_matmul == "off");
  CHECK(settings.policy == "auto");
  for (const auto& [key, text] :
       std::vector<std::pair<std::string, std::string>>{{"steps", "many"},
                                                        {"steps", "99999999999999999999"},
                                                        {"seed", "-1"},
                                                        {"threads", "0"},
                                                        {"threads", "1025"},
                                                        {"learning_rate", "nan"},
                                                        {"learning_rate", "1e999"},
                                                        {"binary_data", "perhaps"},
                                                        {"tune_matmul", "maybe"},
                                                        {"gelu_backward", "fast"},
                                                        {"micro_batch", "0"}}) {
    INFO(key << " = " << text);
    const InputError error = input_error([&] { read_train_settings({{key, {text}}}); });
    CHECK(error.message().settings().front() == Setting{key, text});
  }
  check_error([] { read_train_settings({{"stepz", {"1"}}}); }, "unknown setting stepz", "steps");
}

}  // namespace spillway
