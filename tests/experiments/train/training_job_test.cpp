// A training from request to weights, without the command line.
#include "experiments/train/training_job.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/policies/input_error.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

class Bench {
 public:
  Bench() {
    std::ofstream text(folder_.path() / "text.txt");
    for (int i = 0; i < 200; ++i) text << "line " << i * i << " of a text.\n";
  }
  fs::path run(const std::string& name) const { return folder_.path() / name; }
  TrainRequest request(const std::string& name, const std::string& steps) const {
    TrainRequest request;
    request.run = run(name).string();
    request.settings = {{"model", {"gpt-tiny"}},
                        {"set", {"model.layers=2", "model.hidden=32", "model.heads=2"}},
                        {"data", {(folder_.path() / "text.txt").string()}},
                        {"policy", {"greedysnake:optimizer_ssd=1,snake=off"}},
                        {"device", {"cpu"}},
                        {"batch", {"4"}},
                        {"micro_batch", {"2"}},
                        {"sequence", {"16"}},
                        {"gpu_memory", {"16MB"}},
                        {"host_memory", {"32MB"}},
                        {"durability", {"step"}},
                        {"steps", {steps}}};
    return request;
  }

 private:
  test::TemporaryFolder folder_;
};

struct Losses {
  std::vector<double> all;
  TrainingResult result;
};

// Trains to the end, or until `stop_after` steps are reported.
Losses train(TrainingJob& job, std::int64_t stop_after = -1) {
  Losses losses;
  job.open();
  job.begin();
  TrainReports reports;
  reports.step = [&](const StepResult& step) {
    losses.all.push_back(step.loss);
    if (static_cast<std::int64_t>(losses.all.size()) == stop_after) job.request_stop();
  };
  losses.result = job.train(reports);
  job.export_weights();
  job.finish();
  return losses;
}

}  // namespace

TEST_CASE("a training that is stopped and resumed ends as one that was not", "[store]") {
  const Bench bench;
  TrainingJob whole(bench.request("whole", "6"));
  const Losses expected = train(whole);
  CHECK_FALSE(whole.stopped());
  REQUIRE(expected.all.size() == 6);
  for (const char* file : {"model.safetensors", "model.toml", "trace.json.gz", "run.json"})
    CHECK(fs::exists(bench.run("whole") / file));

  Losses first;
  {
    TrainingJob job(bench.request("parts", "6"));
    CHECK(job.plan().problem.workload.micro_batch == 2);
    CHECK_FALSE(job.device().gpu);
    first = train(job, 2);
    CHECK(job.stopped());
  }
  const auto done = static_cast<std::int64_t>(first.all.size());
  CHECK(first.result.steps == done);
  CHECK(done >= 2);
  REQUIRE(done < 6);

  TrainRequest resume;  // nothing else needs to be said
  resume.run = bench.run("parts").string();
  resume.resume = true;
  TrainingJob job(resume);
  CHECK(job.plan().problem.model.name == "gpt-tiny");
  CHECK(job.settings().steps == 6);
  const Losses rest = train(job);
  CHECK(job.training().first_step() == done);
  CHECK_FALSE(job.stopped());
  std::vector<double> all = first.all;
  all.insert(all.end(), rest.all.begin(), rest.all.end());
  CHECK(all == expected.all);
  CHECK(rest.result.weights_hash == expected.result.weights_hash);
}

TEST_CASE("a training with a framework is refused before anything starts") {
  const Bench bench;
  TrainListener listener;
  listener.enter = [](TrainListener::Stage) { FAIL("a training has started"); };
  TrainRequest named = bench.request("run", "1"), changed = named;
  named.settings["framework"] = {"deepspeed-0.9"};
  changed.settings["set"].push_back("framework.memory.gpu=1MB");
  for (const auto& [request, framework] :
       {std::pair(named, "framework deepspeed-0.9:"),
        std::pair(changed, "framework spillway:memory.gpu=1MB:")}) {
    check_error([&, &request = request] { TrainingJob(request, listener); }, framework,
                "leave framework and");
    CHECK_FALSE(fs::exists(bench.run("run")));
  }
}

TEST_CASE("a run keeps its settings by names that are no flags", "[store]") {
  const Bench bench;
  TrainingJob job(bench.request("run", "1"));
  std::ifstream file(bench.run("run") / "run.json");
  const auto saved = nlohmann::json::parse(file);
  CHECK(saved.at("format") == 3);
  CHECK(saved.at("options").at("micro_batch") == std::vector<std::string>{"2"});
  for (const auto& item : saved.at("options").items()) CHECK(is_train_setting(item.key()));
}

TEST_CASE("a run of another format is refused, and it is said which and what to do", "[store]") {
  const Bench bench;
  {
    TrainingJob job(bench.request("run", "1"));
    train(job);
  }
  const fs::path path = bench.run("run") / "run.json";
  std::ifstream file(path);
  auto saved = nlohmann::json::parse(file);
  TrainRequest resume;
  resume.run = bench.run("run").string();
  resume.resume = true;
  for (const auto& [format, who] :
       std::vector<std::pair<int, std::string>>{{2, "an earlier"}, {4, "a later"}}) {
    saved["format"] = format;
    std::ofstream(path) << saved.dump();
    check_error([&] { TrainingJob job(resume); },
                path.string() + " was written by " + who +
                    " version of Spillway: it is of format " + std::to_string(format) +
                    ", and this version reads format 3",
                "go on with the run by the version that began it");
  }
}

TEST_CASE("a request that no training can meet is refused, and leaves nothing behind") {
  const Bench bench;
  const auto refused = [&](const std::string& key, const std::string& text, const std::string& what,
                           const std::string& hint) {
    TrainRequest request = bench.request("run", "2");
    request.settings[key] = {text};
    check_error([&] { TrainingJob job(request); }, what, hint);
    CHECK_FALSE(fs::exists(bench.run("run")));
  };
  refused("steps", "0", "steps = 0: not a positive number", "steps = 100");
  refused("beta1", "1", "beta1 = 1: not at least 0 and below 1", "leave it out");
  refused("warmup", "50", "warmup = 50: the training has 2 steps, and would never get to", "3%");
  refused("decay_share", "0.5", "decay_share = 0.5: the learning rate does not fall that way",
          "learning_rate_schedule = wsd");
  refused("final_learning_rate", "0", "final_learning_rate = 0: the learning rate does not fall",
          "learning_rate_schedule = cosine");
  refused("validation", "nofile", "validation = nofile is no file that is there, no percentage",
          "validation = held-out.jsonl");
  refused("micro_batch", "3", "micro-batch 3 does not divide batch 4", "micro_batch = 2");
  refused("precision", "fp8", "precision = fp8 is neither bf16 nor fp32", "precision = bf16");
  refused("tune_matmul", "off", "tune_matmul: the CPU backend has no choice", "device = cuda");
  refused("ssd", "/no/such/place", "ssd = /no/such/place: there is no such directory", "mounted");
  TrainRequest nameless = bench.request("run", "2");
  nameless.settings.erase("model");
  check_error([&] { TrainingJob job(nameless); }, "there is no model to train", "model");
  TrainRequest nowhere;
  nowhere.resume = true;
  check_error([&] { TrainingJob job(nowhere); }, "resume needs to know which run", "run = DIR");
}

}  // namespace spillway
