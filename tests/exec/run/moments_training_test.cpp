// Training with AdamW's moments in bf16: a policy changes time, never numbers; stopped and resumed
// anywhere it goes on bit for bit; what it takes of the drives is two thirds, as predicted; and the
// loss is that of fp32 moments within a bound.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "exec/run/training.hpp"
#include "exec/store/ssd_store.hpp"
#include "exec/store/store_header.hpp"
#include "tests/exec/cpu/hidden_device.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {
namespace {

// Every policy, and states in every tier, in two of them, and cut in odd places; all of one
// numerical class.
const std::vector<std::string>& policies() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> policies;
    for (const PolicyInfo& one : builtin_policies())
      policies.push_back(one.name == "greedysnake" ? "greedysnake:snake=off" : one.name);
    for (const char* const more :
         {"zero-offload:parameters=host,sub_group_size=5000",
          "zero-infinity:pipeline_read=on,pipeline_write=on,sub_group_size=5000,"
          "max_reuse_distance=0",
          "zero-infinity:pipeline_read=on,sub_group_size=1,reduce_bucket_size=1",
          "zero-infinity:gradients=host", "deep-optimizer-states:stride=off",
          "deep-optimizer-states:stride=2,sub_group_size=1",
          "deep-optimizer-states:stride=3,sub_group_size=5000,staging=double",
          "fuyou:optimizer=serial", "fuyou:optimizer=naive,group=5e3",
          "fuyou:swap=0.5,checkpoints_ssd=0.5,group=2048,state_buffers=3",
          "greedysnake:snake=off,alpha=0.5,optimizer_ssd=1",
          "greedysnake:snake=off,alpha=0.25,optimizer_ssd=0.3,parameters_ssd=1,checkpoints_ssd=1",
          "greedysnake:snake=off,updates=micro-batch,alpha=0.4,optimizer_ssd=0.6,"
          "parameters_ssd=0.5"})
      policies.push_back(more);
    return policies;
  }();
  return all;
}

TrainingOptions with_bf16_moments(TrainingOptions options) {
  options.problem.workload.moments = MomentWidth::bf16;
  return options;
}

TrainingOptions in_bf16(TrainingOptions options) {
  options.problem.workload.precision = Precision::bf16;
  options.make_device = [](const Problem& problem, std::uint64_t gpu, std::uint64_t host) {
    return std::make_unique<HiddenDevice>(problem, gpu, host, 2);
  };
  return options;
}

struct Part : Losses {
  StoreLocation location;
};

// From the resume point, if there is one, until `stop_at` steps are reported (-1: to the end).
Part train_part(const TrainingOptions& options, std::int64_t stop_at = -1) {
  Training training(options);
  training.remove_previous_store();
  Part part;
  part.weights_hash = training
                          .run(
                              [&](const StepResult& step) {
                                part.of_step.push_back(step.loss);
                                if (step.step + 1 == stop_at) training.request_stop();
                              },
                              nullptr)
                          .weights_hash;
  part.location = training.store_location();
  return part;
}

// A seed's training resumed under one policy after another.
void check_resumed(const TrainingOptions& base, const std::string& before,
                   const std::string& after) {
  TrainingOptions options = base;
  options.policy = "resident";
  const Losses whole = train_within_plan(options);
  options.durability = {DurabilityMode::on, 1};
  options.guard_bytes = 0;
  options.policy = before;
  Part both = train_part(options, 4);
  REQUIRE(both.of_step.size() < static_cast<std::size_t>(options.steps));
  options.policy = after;
  options.resume = find_resume_point(both.location);
  const Part tail = train_part(options);
  both.of_step.insert(both.of_step.end(), tail.of_step.begin(), tail.of_step.end());
  both.weights_hash = tail.weights_hash;
  CHECK(difference(both, whole) == "");
}

// Words drawn as often as in a language (the k-th of 400 with a chance as 1 / k), in sentences: a
// text that can be learned, and not by heart.
void write_prose(const fs::path& file) {
  std::mt19937_64 random(1);
  std::vector<std::string> words;
  std::vector<double> chances;
  for (int k = 1; k <= 400; ++k) {
    std::string word;
    for (auto letters = 2 + random() % 7; letters > 0; --letters)
      word += "etaoinshrdlucmfwypvbgk"[random() % 22];
    words.push_back(word);
    chances.push_back(1.0 / k);
  }
  std::discrete_distribution<std::size_t> draw(chances.begin(), chances.end());
  std::ofstream text(file);
  for (int sentence = 0; sentence < 4000; ++sentence) {
    for (auto count = 4 + random() % 12; count > 0; --count) text << words[draw(random)] << ' ';
    text << ".\n";
  }
}

// Trains a model of that shape with moments in fp32 and in bf16, which do not agree to the bit.
void check_loss(int layers, int hidden, int steps) {
  const Workbench bench(folder_for_many_runs());
  write_prose(bench.root() / "prose.txt");
  const auto losses = [&](MomentWidth moments) {
    TrainingOptions options = bench.options("resident", layers, hidden, 1);
    options.problem.workload.batch = options.problem.workload.micro_batch = 4;
    options.problem.workload.sequence = 64;
    options.problem.workload.moments = moments;
    options.data = {bench.root() / "prose.txt"};
    options.steps = steps;
    return train_within_plan(options).of_step;
  };
  const std::vector<double> wide = losses(MomentWidth::fp32), narrow = losses(MomentWidth::bf16);
  const auto last = [&](const std::vector<double>& all) {
    return std::accumulate(all.end() - steps / 6, all.end(), 0.0) / (steps / 6);
  };
  INFO("last " << steps / 6 << " steps: " << last(wide) << " with fp32 moments, " << last(narrow)
               << " with bf16");
  CHECK(last(wide) < 0.8 * wide.front());  // it learns
  CHECK(std::abs(last(narrow) / last(wide) - 1) < 0.005);
  CHECK(last(narrow) != last(wide));
  for (std::size_t s = 0; s < wide.size(); ++s) {
    INFO("step " << s);
    CHECK(std::abs(narrow[s] / wide[s] - 1) < 0.05);
  }
}

}  // namespace

TEST_CASE("with bf16 moments every policy trains bit-identically to resident, in fp32 and bf16") {
  const Workbench bench(folder_for_many_runs());
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const auto options = [&](const std::string& policy) {
      TrainingOptions o = with_bf16_moments(bench.options(policy));
      o.steps = 7;
      return precision == Precision::bf16 ? in_bf16(o) : o;
    };
    const Losses resident = train_within_plan(options("resident"));
    CHECK(resident.of_step.back() < resident.of_step.front());
    TrainingOptions wide = options("resident");
    wide.problem.workload.moments = MomentWidth::fp32;
    if (precision == Precision::bf16) wide = in_bf16(wide);
    CHECK(train_within_plan(wide).weights_hash != resident.weights_hash);
    for (const std::string& policy : policies()) {
      INFO(policy << (precision == Precision::bf16 ? " in bf16" : " in fp32"));
      CHECK(difference(train_within_plan(options(policy)), resident) == "");
    }
  }
}

TEST_CASE("with bf16 moments the cut into micro-batches and the threads leave the numbers alone") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = with_bf16_moments(bench.options("resident"));
  options.steps = 4;
  const Losses whole = train_within_plan(options);
  for (const std::int64_t micro_batch : {1, 4, 8}) {
    options.problem.workload.micro_batch = micro_batch;
    options.threads = micro_batch == 4 ? 3 : 1;
    options.policy = micro_batch == 1 ? "fuyou" : "resident";
    CHECK(difference(train_within_plan(options), whole) == "");
  }
}

TEST_CASE("another seed rounds moments otherwise, the same seed alike") {
  const Workbench bench;
  TrainingOptions options = with_bf16_moments(bench.options("resident"));
  options.steps = 3;
  const Losses once = train_within_plan(options);
  CHECK(difference(train_within_plan(options), once) == "");
  options.seed = 2;
  CHECK(train_within_plan(options).weights_hash != once.weights_hash);
}

TEST_CASE("a training with bf16 moments goes on bit for bit, from any tier to any") {
  const Workbench bench(folder_for_many_runs());
  for (const bool narrow : {false, true}) {
    TrainingOptions options = with_bf16_moments(bench.options("resident"));
    if (narrow) options = in_bf16(options);
    options.steps = 40;
    for (const auto& [before, after] : {std::pair{"resident", "resident"},
                                        {"resident", "zero-infinity:max_reuse_distance=0"},
                                        {"zero-infinity:max_reuse_distance=0", "zero-offload"},
                                        {"fuyou", "fuyou"},
                                        {"greedysnake:snake=off,optimizer_ssd=0.5,parameters_ssd=1",
                                         "deep-optimizer-states:stride=2,sub_group_size=1"}}) {
      INFO(before << " to " << after << (narrow ? " in bf16" : " in fp32"));
      check_resumed(options, before, after);
    }
  }
}

TEST_CASE("a training does not go on with moments of another width, and says which it has") {
  const Workbench bench;
  for (const MomentWidth first : {MomentWidth::fp32, MomentWidth::bf16}) {
    TrainingOptions options = bench.options("zero-infinity");
    options.problem.workload.moments = first;
    options.durability = {DurabilityMode::on, 1};
    options.guard_bytes = 0;
    options.steps = 40;
    const Part head = train_part(options, 3);
    options.resume = find_resume_point(head.location);
    CHECK(options.resume->record.identity.parts.at(0).moments == first);
    const MomentWidth other = first == MomentWidth::fp32 ? MomentWidth::bf16 : MomentWidth::fp32;
    options.problem.workload.moments = other;
    try {
      Training training(options);
      FAIL_CHECK("accepted");
    } catch (const InputError& error) {
      CHECK(error.what() == fmt::format("moments is {}, but the training to go on with has {}",
                                        to_string(other), to_string(first)));
      CHECK_THAT(error.hint(), Catch::Contains("leave the option out"));
    }
    options.problem.workload.moments = first;
    train_part(options);  // it was not harmed
  }
}

// State bytes per element, 12 and 8, are all that differs in what a step reads and writes and what
// a commit copies; the files of the store have the size that is predicted, to the byte.
TEST_CASE("drives are written two thirds of the state, as predicted to the byte") {
  const Workbench bench;
  const auto elements = [&](const Problem& problem) {
    std::uint64_t all = 0;
    for (std::int64_t unit = 0; unit <= problem.model.layers; ++unit)
      all += static_cast<std::uint64_t>(unit_elements(problem.model, unit));
    return all;
  };
  struct Written {
    std::uint64_t read = 0, written = 0, copied = 0, store = 0;
  };
  const auto measure = [&](const std::string& policy, MomentWidth moments) {
    TrainingOptions options = bench.options(policy);
    options.problem.workload.moments = moments;
    options.steps = 6;
    options.durability = {DurabilityMode::on, 1};
    Training training(options);
    Written w;
    w.copied = training.bytes_copied_per_commit();
    w.store = training.store_bytes().address_space();
    CHECK(training.store()->size() == w.store);
    const StoreLocation location = training.store_location();
    std::uint64_t on_disk = 0;
    for (std::size_t i = 0; i < location.directories.size(); ++i) {
      on_disk += fs::file_size(store_file(location.directories[i], i, location.generation)) -
                 store_header_bytes;
    }
    CHECK(on_disk == w.store);
    training.run(
        [&](const StepResult& step) {
          w.read = step.ssd_bytes_read;
          w.written = step.ssd_bytes_written;
        },
        nullptr);
    return w;
  };
  const std::uint64_t all = elements(bench.options("resident").problem);
  {
    INFO("all state in memory: commits copy it");
    const Written wide = measure("resident", MomentWidth::fp32),
                  narrow = measure("resident", MomentWidth::bf16);
    CHECK(wide.copied == 12 * all);
    CHECK(narrow.copied == 8 * all);
    CHECK(wide.store - narrow.store == 2 * 4 * all);
  }
  {
    INFO("all state on the ssd: read and written by every step");
    const Written wide = measure("zero-infinity", MomentWidth::fp32),
                  narrow = measure("zero-infinity", MomentWidth::bf16);
    CHECK(wide.copied == 0);
    CHECK(narrow.copied == 0);
    CHECK(wide.read - narrow.read == 4 * all);
    CHECK(wide.written - narrow.written == 4 * all);
    CHECK(wide.store - narrow.store == 2 * 4 * all);
  }
}

// Rounding adds noise to the moments whose mean is zero: with beta2 = 0.999 of about
// 2^-9 sqrt(500) = 4 % to v, 2 % to its root, and so to the steps, apart in each element. What is
// disturbed so takes another path: single steps of so small a batch were found to differ by up to
// 1.7 %, the mean over the last 50 of 300 by 0.07 %. The bounds are three and seven times as much.
TEST_CASE("after 60 steps of a small model the loss is that of fp32 moments within 0.5 %") {
  check_loss(2, 32, 60);
}
TEST_CASE("after 300 steps of gpt-tiny the loss is that of fp32 moments within 0.5 %", "[slow]") {
  check_loss(4, 128, 300);
}

}  // namespace spillway::test
