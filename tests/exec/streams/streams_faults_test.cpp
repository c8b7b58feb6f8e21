// Training on streams that does not go its way: a stop at any moment, a gradient that is not
// finite, a drive, a call, the device or the caller that fails. It ends, with the error that there
// was, and goes on from the last commit to the numbers of a training that nothing happened to.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "base/errors.hpp"
#include "exec/cpu/cpu_device.hpp"
#include "tests/exec/io/fault_drive.hpp"
#include "tests/exec/streams/stream_training.hpp"
#include "tests/policies/random_policy.hpp"

namespace spillway::test {
namespace {

// A device that makes one element of a unit's gradient NaN, once.
class SpoilingDevice : public Device {
 public:
  // After `backward` passes of the unit.
  struct When {
    int unit = 0;
    std::int64_t backward = 0;
  };
  SpoilingDevice(std::unique_ptr<Device> device, When when)
      : device_(std::move(device)), when_(when) {}

  std::string name() const override { return device_->name(); }
  std::span<std::byte> gpu_memory() override { return device_->gpu_memory(); }
  std::span<std::byte> host_memory() override { return device_->host_memory(); }
  void compute(const Task& task, const Operands& o) override {
    device_->compute(task, o);
    const bool sums = task.kind == TaskKind::backward || task.kind == TaskKind::embed_backward;
    if (sums && task.layer == when_.unit && passes_++ == when_.backward)
      reinterpret_cast<float*>(o.gradient)[77] = std::numeric_limits<float>::quiet_NaN();
  }
  void copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    device_->copy(lane, to, from, bytes);
  }
  std::uint64_t highest_written(Tier tier) const override { return device_->highest_written(tier); }

 private:
  std::unique_ptr<Device> device_;
  const When when_;
  std::int64_t passes_ = 0;  // of gpu.compute alone
};

TrainingOptions spoiled(TrainingOptions options, SpoilingDevice::When when) {
  options.make_device = [when](const Problem& problem, std::uint64_t gpu, std::uint64_t host) {
    return std::make_unique<SpoilingDevice>(std::make_unique<CpuDevice>(problem, gpu, host), when);
  };
  return options;
}

// In the arithmetic that the host reaches.
TrainingOptions in_fp32(TrainingOptions options) {
  options.problem.workload.precision = Precision::fp32;
  options.make_device = {};
  return options;
}

enum class Disturbance { stop, stop_by_caller, device, call, drive, gradient, report };
constexpr int troubles = 7;

struct CallerError {};

// One training, with as much trouble as it takes until it is through.
class Story {
 public:
  Story(const Workbench& bench, std::uint64_t seed) : random_(seed) {
    options_ = random_problem(bench, random_);
    options_.durability = {DurabilityMode::on, static_cast<std::int64_t>(1 + random_() % 3)};
    options_.steps = static_cast<std::int64_t>(6 + random_() % 10);
    options_.optimizer.warmup_steps = 3;
    options_.may_be_done = true;  // the drive fails when the weights are read at the end
    for (const auto& directory : options_.ssd) {
      fs::remove_all(directory);
      fs::create_directories(directory);
    }
  }

  // Of each kind, how often training ended by it.
  std::map<Disturbance, int> ended;

  void tell(std::optional<Disturbance> only) {
    if (only == Disturbance::gradient) {
      options_ = in_fp32(options_);
      options_.problem.workload.on_nonfinite = OnNonFinite::stop;
    }
    TrainingOptions undisturbed = options_;
    undisturbed.durability = {};
    undisturbed.policy = "resident";
    const Numbers expected = train_all(undisturbed, with_norms());
    Numbers found;
    int legs = 0;
    while (found.weights_hash == 0) {
      Disturbance trouble = only.value_or(static_cast<Disturbance>(random_() % troubles));
      // A model in bf16 has no gradient that can be spoiled; and there is an end to it all.
      if (trouble == Disturbance::gradient && only != trouble) trouble = Disturbance::stop;
      leg(trouble, ++legs > 8, found);
    }
    REQUIRE(difference(expected, found) == "");
  }

 private:
  bool with_norms() const { return options_.problem.workload.needs_norms(); }

  void choose_policy() {
    const std::uint64_t kind = random_() % 4;
    if (kind >= 2) {
      const RandomPolicyOptions policy{random_(), true};
      options_.make_policy = [policy] { return make_random_policy(policy); };
    } else {
      options_.make_policy = {};
      options_.policy = kind == 0 ? "resident"  // replayed as graphs
                                  : stream_policies()[random_() % stream_policies().size()];
    }
  }

  void leg(Disturbance trouble, bool in_peace, Numbers& found) {
    choose_policy();
    TrainingOptions options = options_;
    StreamOptions streams{.seed = random_()};
    FaultPlan plan;
    const auto moment = static_cast<std::int64_t>(random_() % 300);
    const std::int64_t stop_at = options.resume ? options.resume->record.version + moment % 5 : 2;
    if (in_peace) {
      trouble = Disturbance::stop;
    } else if (trouble == Disturbance::stop) {
      streams.call_at_work = moment;
      streams.call = [this] { training_->request_stop(); };
    } else if (trouble == Disturbance::device) {
      streams.fail_at_work = moment;
    } else if (trouble == Disturbance::call) {
      streams.fail_at_call = 3 * moment;
    } else if (trouble == Disturbance::drive) {
      const Fault fault = random_() % 2 == 0 ? Fault::io_error : Fault::no_space;
      plan.once = FaultPlan::Once{fault, static_cast<std::uint64_t>(moment)};
    } else if (trouble == Disturbance::gradient) {
      const auto units = static_cast<std::uint64_t>(options.problem.model.layers + 1);
      options = spoiled(options, {static_cast<int>(random_() % units), moment / 10});
    }
    FaultDrive drive(random_(), plan);
    options.make_ring = drive.rings(random_() % 2 == 0);
    StreamRecord record;
    try {
      training_ = std::make_unique<Training>(on_streams(options, record, streams));
    } catch (const MachineError& error) {
      // Before the first step: nothing was there to be lost.
      INFO(error.what());
      REQUIRE(drive.has_struck());
      training_.reset();
      options_.overwrite = true;
      return;
    }
    const auto first = static_cast<std::size_t>(training_->first_step());
    REQUIRE(first <= found.steps.size());
    found.steps.resize(first);
    std::int64_t committed = training_->first_step();
    training_->remove_previous_store();
    const StoreLocation location = training_->store_location();
    try {
      const TrainingResult result = training_->run(
          [&](const StepResult& step) {
            found.add(step, with_norms());
            if (in_peace || step.step != stop_at) return;
            if (trouble == Disturbance::stop_by_caller) training_->request_stop();
            if (trouble == Disturbance::report) throw CallerError();
          },
          nullptr, [&](std::int64_t version) { committed = version; });
      REQUIRE(result.steps == static_cast<std::int64_t>(found.steps.size()));
      REQUIRE(committed == result.steps);
      if (result.steps == options.steps) {
        found.weights_hash = result.weights_hash;
      } else {
        CHECK((trouble == Disturbance::stop || trouble == Disturbance::stop_by_caller));
        ended[trouble]++;
      }
    } catch (const CallerError&) {
      CHECK(trouble == Disturbance::report);
      ended[trouble]++;
    } catch (const MachineError& error) {
      check_error(trouble, error.what());
      ended[trouble]++;
    }
    training_.reset();
    REQUIRE(record.broken() == "");
    if (found.weights_hash != 0) return;
    options_.resume = find_resume_point(location);
    options_.overwrite = false;
    // What was announced counts, and what counts was reported.
    const std::int64_t version = options_.resume->record.version;
    REQUIRE(version >= committed);
    REQUIRE(version <= static_cast<std::int64_t>(found.steps.size()));
  }

  static void check_error(Disturbance trouble, const std::string& message) {
    INFO(message);
    const auto holds = [&](const char* part) { return message.find(part) != std::string::npos; };
    if (trouble == Disturbance::device) {
      CHECK(holds("the device failed, as the test wants it to"));
    } else if (trouble == Disturbance::call) {
      CHECK(holds("failed, as the test wants it to"));
    } else if (trouble == Disturbance::gradient) {
      CHECK(holds("holds NaN or Inf at step"));
    } else {
      CHECK(trouble == Disturbance::drive);
      CHECK(holds("/ssd-"));
    }
  }

  std::mt19937_64 random_;
  TrainingOptions options_;
  std::unique_ptr<Training> training_;
};

// `count` stories of one kind of trouble, or of all of them; and as many more as it takes until one
// training ended by it: trouble at a late moment may find it done.
void tell_stories(std::optional<Disturbance> only, std::uint64_t count) {
  const Workbench bench(folder_for_many_runs());
  Watchdog watchdog;
  const Seeds seeds(count);
  int ended = 0;
  const bool whole = seeds.count >= count;  // else one story is repeated
  const std::uint64_t end = seeds.first + seeds.count;
  for (std::uint64_t seed = seeds.first; seed < end || (whole && ended == 0 && seed < end + 100);
       ++seed) {
    INFO(to_text(seed));
    watchdog.now(to_text(seed));
    Story story(bench, seed);
    story.tell(only);
    for (const auto& [trouble, times] : story.ended) ended += times;
  }
  if (whole) CHECK(ended > 0);
}

}  // namespace

TEST_CASE("Streams: a training that is stopped at any moment goes on exactly", "[store][streams]") {
  tell_stories(Disturbance::stop, 6);
}

TEST_CASE("Streams: a device that fails at any moment ends training, which goes on exactly",
          "[store][streams]") {
  tell_stories(Disturbance::device, 5);
}

TEST_CASE("Streams: a call that fails at any moment ends training, which goes on exactly",
          "[store][streams]") {
  tell_stories(Disturbance::call, 5);
}

TEST_CASE("Streams: a drive that fails at any moment ends training, which goes on exactly",
          "[store][streams]") {
  tell_stories(Disturbance::drive, 5);
}

TEST_CASE("Streams: a gradient that is not finite ends training, which goes on exactly",
          "[store][streams]") {
  tell_stories(Disturbance::gradient, 5);
}

TEST_CASE("Streams: one trouble after another, and every step is exact", "[store][streams]") {
  tell_stories(std::nullopt, 6);
}

TEST_CASE("Streams: a step that is left out is the one the blocking device leaves out",
          "[store][streams]") {
  const Workbench bench(folder_for_many_runs());
  Watchdog watchdog;
  const std::uint64_t seed = Seeds(1).first;
  INFO(to_text(seed));
  std::mt19937_64 random(seed);
  for (const std::string& policy : stream_policies()) {
    INFO(policy);
    watchdog.now(fmt::format("{}, {}", to_text(seed), policy));
    TrainingOptions options = bench.options(policy, 2, 16, 2);
    options.problem.workload.clip = {random() % 2 == 0 ? ClipScope::global : ClipScope::off, 0.1};
    options.steps = 9;
    for (const OnNonFinite action : {OnNonFinite::skip, OnNonFinite::stop}) {
      options.problem.workload.on_nonfinite = action;
      // In the second micro-batch of the sixth step.
      options = spoiled(options, {1, 11});
      std::string messages[2];
      Numbers numbers[2];
      StreamRecord record;
      for (const bool on_threads : {false, true}) {
        try {
          numbers[on_threads] =
              train_all(on_threads ? on_streams(options, record, {.seed = random()}) : options);
        } catch (const MachineError& error) {
          messages[on_threads] = error.what();
        }
      }
      CHECK(difference(numbers[0], numbers[1]) == "");
      CHECK(messages[0] == messages[1]);
      CHECK(record.broken() == "");
      if (action == OnNonFinite::skip) {
        REQUIRE(numbers[1].steps.size() == 9);
        CHECK(numbers[1].steps[5].find("skipped 1") != std::string::npos);
      } else {
        CHECK(messages[1] == "the gradient of layer 1 holds NaN or Inf at step 5");
      }
    }
  }
}

}  // namespace spillway::test
