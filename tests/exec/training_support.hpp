// What the tests of training share: a folder with text and ssd directories, a tiny model, and runs
// whose losses can be compared bit by bit.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "exec/run/training.hpp"
#include "policies/schedule/program.hpp"
#include "tests/policies/drive_sets.hpp"

namespace spillway::test {

namespace fs = std::filesystem;

// In memory where there is room for files in memory: many short runs then need not wait for a disk
// to make files durable. (Unbuffered I/O is not to be had there.)
inline std::filesystem::path folder_for_many_runs() {
  std::error_code ignored;
  const std::filesystem::path memory = "/dev/shm";
  const auto space = std::filesystem::space(memory, ignored);
  const bool has_room = !ignored && space.available > (std::uint64_t{64} << 20);
  return has_room ? memory : std::filesystem::temp_directory_path();
}

// A GPT, a llama with a head of its own, and one with a tied head and all else that a llama may
// have.
inline constexpr const char* trained_models[] = {"gpt-tiny", "llama-tiny", "qwen-tiny"};

// Of five models one trains adapters with dropout, one adapters without, and one freezes its first
// layer or two, if it has more.
inline void freeze_at_random(ModelSpec& model, std::mt19937_64& random) {
  const auto choice = random() % 5;
  if (choice < 2) {
    model.lora_rank = 4;
    model.lora_dropout = choice == 0 ? 0.25 : 0;
    const bool is_gpt = model.architecture == Architecture::gpt;
    if (random() % 2 == 0) model.lora_targets = is_gpt ? "c_attn,mlp.c_proj" : "q_proj,v_proj";
  } else if (choice == 2) {
    model.frozen_layers = static_cast<std::int64_t>(random() % 2) + 1;
    model.frozen_layers = std::min(model.frozen_layers, model.layers - 1);
  }
}

// A folder of its own for each test, with a text to train on and directories for the ssd tier.
class Workbench {
 public:
  explicit Workbench(const fs::path& where = fs::temp_directory_path()) {
    std::string pattern = (where / "spillway-training-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    fs::create_directories(root_ / "ssd-a");
    fs::create_directories(root_ / "ssd-b");
    std::ofstream text(root_ / "text.txt");
    for (int i = 0; i < 400; ++i)
      text << "line " << i * i << " of a text that repeats itself, but not quite.\n";
  }
  ~Workbench() { fs::remove_all(root_); }
  fs::path root() const { return root_; }

  // Plenty of memory, two directories; `hidden` channels in 4 heads, micro-batches of 2 sequences
  // of 16 tokens; of the kind of model that trained_models names.
  TrainingOptions options(const std::string& policy, int layers = 3, int hidden = 32,
                          int micro_batches = 4, const std::string& model = "gpt-tiny") const {
    TrainingOptions o;
    std::vector<std::string> shape = {fmt::format("layers={}", layers),
                                      fmt::format("hidden={}", hidden), "heads=4"};
    if (model != "gpt-tiny") shape.push_back(fmt::format("ffn={}", 3 * hidden));
    if (model == "qwen-tiny") {
      shape.push_back(fmt::format("head_width={}", hidden / 4 + 2));
      shape.push_back("window=7");
    }
    o.problem.model = load_model(model, shape);
    o.problem.machine.name = "test";
    o.problem.machine.gpu.is_cpu = true;
    o.problem.machine.gpu.memory = o.problem.machine.host.memory = std::uint64_t{1} << 30;
    o.problem.machine.ssd.capacity = std::uint64_t{1} << 30;
    o.problem.workload = {2 * micro_batches, 2, 16, Precision::fp32, GradientWidth::automatic};
    o.policy = policy;
    o.steps = 20;
    o.data = {root_ / "text.txt"};
    o.ssd = {root_ / "ssd-a", root_ / "ssd-b"};
    o.guard_bytes = 1 << 20;
    return o;
  }

 private:
  fs::path root_;
};

// The directories in so many sets of drives of different speed, of which as many are in each.
inline void put_on_sets(TrainingOptions& options, std::vector<std::uint32_t> sets,
                        std::uint64_t choice = 0x15) {
  Machine& machine = options.problem.machine;
  machine.more_ssd = {};
  give_drive_sets(machine, static_cast<int>(sets.size()), choice);
  options.ssd_sets = std::move(sets);
}

struct Losses {
  std::vector<double> of_step;
  std::uint64_t weights_hash = 0;
};

// The first step whose loss differs by a bit, or that the weights do; empty when all is equal.
inline std::string difference(const Losses& a, const Losses& b) {
  if (a.of_step.size() != b.of_step.size())
    return fmt::format("{} and {} steps", a.of_step.size(), b.of_step.size());
  for (std::size_t s = 0; s < a.of_step.size(); ++s) {
    if (std::bit_cast<std::uint64_t>(a.of_step[s]) != std::bit_cast<std::uint64_t>(b.of_step[s]))
      return fmt::format("step {}: loss {:.17g} and {:.17g}", s, a.of_step[s], b.of_step[s]);
  }
  return a.weights_hash == b.weights_hash ? "" : "the weights after the last step";
}

// What the runs of a training take of each tier: the usual ones, and the last one.
inline TierBytes planned_peaks(const Training& training, const TrainingOptions& options) {
  TierBytes peaks{};
  const auto add = [&](const Schedule& schedule) {
    for (const Tier tier : memories_of(options.problem.machine)) {
      std::uint64_t& peak = peaks[static_cast<std::size_t>(tier)];
      peak = std::max(peak, schedule.use(tier).peak_bytes);
    }
  };
  const Schedule& whole = training.schedule();
  add(whole);
  if (const auto left = static_cast<int>(options.steps % whole.steps()); left > 0) {
    add(options.make_policy ? build_schedule(options.problem, *options.make_policy(), left)
                            : build_schedule(options.problem, whole.policy(), left));
  }
  return peaks;
}

// Trains, and checks that no lane touched a byte beyond what was planned, nor anything the guard.
inline Losses train_within_plan(const TrainingOptions& options) {
  Training training(options);
  Losses losses;
  const auto take = [&](const StepResult& step) { losses.of_step.push_back(step.loss); };
  losses.weights_hash = training.run(take, nullptr).weights_hash;
  const TierBytes peaks = planned_peaks(training, options);
  for (const Tier tier : memories_of(options.problem.machine)) {
    const std::uint64_t peak = peaks[static_cast<std::size_t>(tier)];
    INFO(to_string(tier));
    CHECK(training.highest_use(tier) <= peak);
    if (!is_drives(tier)) CHECK(training.highest_written(tier) <= peak);
  }
  return losses;
}

// Of a part of a training that may have been stopped.
struct PartOfTraining {
  std::vector<double> losses;
  std::vector<std::int64_t> commits;
  std::int64_t first = 0, steps = 0;
  std::uint64_t hash = 0;
  StoreLocation location;
};

// Trains until `stop_at` steps are reported (-1: to the end), and adds to what was trained before.
inline PartOfTraining train_until(const TrainingOptions& options, std::int64_t stop_at = -1) {
  Training training(options);
  PartOfTraining outcome;
  outcome.first = training.first_step();
  training.remove_previous_store();
  const TrainingResult result = training.run(
      [&](const StepResult& step) {
        REQUIRE(step.step == outcome.first + static_cast<std::int64_t>(outcome.losses.size()));
        outcome.losses.push_back(step.loss);
        if (step.step + 1 == stop_at) training.request_stop();
      },
      nullptr, [&](std::int64_t step) { outcome.commits.push_back(step); });
  outcome.steps = result.steps;
  outcome.hash = result.weights_hash;
  outcome.location = training.store_location();
  return outcome;
}

}  // namespace spillway::test
