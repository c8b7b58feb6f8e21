// The price of a policy against its evaluation in full.
#include "experiments/plan/price.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "base/errors.hpp"
#include "policies/spillway/spillway.hpp"
#include "tests/experiments/tune/random_plans.hpp"

namespace spillway {
namespace {

struct Setting {
  Problem problem;
  std::string policy, text;
};

class Settings {
 public:
  explicit Settings(std::uint64_t seed) : dice_(seed) {}

  Setting next() {
    Setting setting = dice_.chance(0.2) ? small() : large();
    const Workload& workload = setting.problem.workload;
    setting.text += " micro-batch " + std::to_string(workload.micro_batch) + " of " +
                    std::to_string(workload.batch) + ": " + setting.policy;
    return setting;
  }

 private:
  // Layers of some kilobytes, on machines of any proportions.
  Setting small() {
    Setting setting{test::random_problem(dice_), "", "a small model"};
    ModelSpec& model = setting.problem.model;
    model.layers = dice_.between(30, 70);
    if (dice_.chance(0.3)) test::freeze_some(model, dice_.below(std::uint64_t{1} << 32));
    setting.policy = spillway_plan(setting.problem);
    return setting;
  }
  Setting large() {
    const std::string model = one_of({"gpt-175b", "gpt-65b", "gpt-30b", "gpt-13b"});
    const std::string machine = one_of({"rtx4090-12ssd", "a100-80gb", "h200"});
    const std::vector<std::string> overrides = {
        "host.memory=" + one_of({"128GB", "256GB", "512GB", "768GB", "1TB", "2TB", "4TB"}),
        "ssd.count=" + one_of({"1", "2", "3", "6", "12"})};
    Setting setting;
    setting.problem.model = load_model(model);
    setting.problem.machine = load_machine(machine, overrides);
    Workload& workload = setting.problem.workload;
    workload.micro_batch = std::stol(one_of({"1", "2", "4", "8"}));
    workload.batch = workload.micro_batch * std::stol(one_of({"1", "2", "3", "4", "8", "16"}));
    if (happens(6)) workload.clip = parse_gradient_clip("global=1");
    setting.policy = happens(5) ? spillway_plan(setting.problem) : policy();
    setting.text = model + " on " + machine + " " + overrides[0] + " " + overrides[1];
    return setting;
  }
  bool happens(unsigned one_in) { return dice_.below(one_in) == 0; }
  std::string one_of(const std::vector<std::string>& values) {
    return values[dice_.below(values.size())];
  }
  std::string fraction() { return one_of({"0", "0.1", "0.25", "0.3", "0.5", "0.7", "0.9", "1"}); }
  std::string policy() {
    switch (dice_.below(10)) {
      case 0:
        return one_of({"zero-infinity", "zero-infinity:pipeline_read=on,pipeline_write=on",
                       "zero-offload", "zero-infinity:retention=nearest"});
      case 1:
        return one_of({"deep-optimizer-states", "deep-optimizer-states:stride=3", "resident"});
      case 2:
      case 3:
        return fuyou();
      default:
        return greedysnake();
    }
  }
  // Any plan. Most have layers that are alike and keep nothing: others are built in full.
  std::string spillway_plan(const Problem& problem) {
    Plan plan = test::random_plan(dice_, problem);
    const auto layers = static_cast<int>(problem.model.layers);
    const auto make_alike = [&](auto& by_layer) { by_layer = by_layer.at(0, layers); };
    if (!happens(5)) {
      make_alike(plan.parameters.rest);
      make_alike(plan.checkpoints.rest);
      make_alike(plan.optimizer_state.rest);
      if (plan.saved.rest) make_alike(*plan.saved.rest);
      plan.saved.saves =
          ByLayer<SavedMask>::but_last(plan.saved.saves.at(0, layers), saved_all(problem.model));
    }
    if (!happens(5)) {
      plan.retention = {};
      plan.spare_gpu_bytes = plan.spare_host_bytes = 0;
    }
    if (!happens(5)) plan.optimizer.group = UpdateGroup::calls;
    return spillway_policy(plan);
  }
  std::string fuyou() {
    std::string text = "fuyou:optimizer=" + one_of({"optimized", "naive", "serial"});
    if (happens(2)) text += ",checkpoints_ssd=" + fraction();
    if (happens(3)) text += ",swap=" + one_of({"auto", "all", "0.5", "0.2"});
    if (happens(4)) text += ",state_buffers=3";
    if (happens(4)) text += ",group=" + one_of({"1e8", "7e8", "3e9"});
    if (happens(12)) text += ",retention=nearest";
    return text;
  }
  std::string greedysnake() {
    if (happens(10)) return "greedysnake:placement=lp,alpha=auto";
    std::string text = "greedysnake:alpha=" + fraction();
    if (happens(3)) text += ",snake=off";
    if (happens(4)) text += ",updates=micro-batch";
    if (happens(2))
      text += ",optimizer_ssd=" + fraction() + ",checkpoints_ssd=" + fraction() +
              ",parameters_ssd=" + fraction();
    if (happens(4)) text += ",gradients_gpu=" + fraction();
    if (happens(4)) text += ",recompute=needed";
    if (happens(12)) text += ",retention=nearest";
    return text;
  }

  test::Dice dice_;
};

double off_by(double price, double full) {
  return full == 0 ? std::abs(price) : std::abs(price / full - 1);
}

struct Tally {
  int compared = 0, extrapolated = 0;
};

// Where a price is not that of the whole schedule it is as good, and it says the same of memory.
void check_against_full(const Setting& setting, Tally& tally) {
  INFO(setting.text);
  std::optional<Evaluation> full;
  try {
    full = evaluate(setting.problem, setting.policy);
  } catch (const InputError&) {
    CHECK_THROWS_AS(price(setting.problem, setting.policy), InputError);
    return;
  }
  const Price one = price(setting.problem, setting.policy);
  ++tally.compared;
  tally.extrapolated += one.is_extrapolated ? 1 : 0;
  REQUIRE(one.fits == full->schedule.fits());
  if (!one.fits) return;
  CHECK(one.policy == full->schedule.policy());
  CHECK(one.schedule_tasks == full->schedule.tasks().size());
  CHECK(off_by(one.step_seconds, full->result->step_seconds) <= 1e-3);
  CHECK(off_by(one.tokens_per_second, full->result->tokens_per_second) <= 1e-3);
  CHECK(off_by(one.bound_seconds, full->result->bound_seconds) <= 1e-3);
  CHECK(one.bound_by == full->result->bound_by);
  CHECK(off_by(one.ssd_bytes_written_per_step, full->result->ssd_bytes_written_per_step) <= 1e-3);
  const StoreBytes store = store_bytes(full->schedule, true);
  CHECK(one.store.second_copies == store.second_copies);
  CHECK(one.store.memory_copies == store.memory_copies);
  CHECK(one.store.records == store.records);
  CHECK(one.store.first_fill == store.first_fill);
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    const TierUse& use = one.memory[static_cast<std::size_t>(tier)];
    const TierUse& of_full = full->schedule.use(tier);
    CHECK(use.capacity_bytes == of_full.capacity_bytes);
    // Gaps between buffers may differ.
    CHECK(off_by(static_cast<double>(use.peak_bytes), static_cast<double>(of_full.peak_bytes)) <=
          0.15);
  }
}

void check_settings(int count) {
  constexpr std::uint64_t seed = 20;
  INFO("seed " << seed);
  Settings settings(seed);
  Tally tally;
  for (int k = 0; k < count; ++k) check_against_full(settings.next(), tally);
  // Falling back to the whole schedule every time would be right, too.
  CHECK(tally.extrapolated > 0);
}

TEST_CASE("prices of random settings agree with their evaluation") { check_settings(40); }

TEST_CASE("prices of a thousand random settings agree with their evaluation", "[slow]") {
  check_settings(1000);
}

TEST_CASE("a price is the same each time") {
  Settings settings(3);
  for (int k = 0; k < 10; ++k) {
    const Setting setting = settings.next();
    INFO(setting.text);
    const std::optional<Price> one = quick_price(setting.problem, setting.policy);
    const std::optional<Price> two = quick_price(setting.problem, setting.policy);
    REQUIRE(one.has_value() == two.has_value());
    if (!one) continue;
    CHECK(one->step_seconds == two->step_seconds);
    CHECK(one->tasks == two->tasks);
    for (std::size_t tier = 0; tier < tier_count; ++tier)
      CHECK(one->memory[tier].peak_bytes == two->memory[tier].peak_bytes);
  }
}

TEST_CASE("what is wrong with a policy is said of the whole problem") {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-12ssd");
  CHECK_THROWS_AS(price(problem, "greedysnake:alpha=2"), InputError);
  CHECK_THROWS_AS(price(problem, "no-such-policy"), InputError);
  problem.workload.batch = 7;
  problem.workload.micro_batch = 2;
  CHECK_THROWS_AS(price(problem, "greedysnake"), InputError);
}

TEST_CASE("layers that keep pace with the GPU are priced from a few of them") {
  Problem problem;
  problem.model = load_model("gpt-175b");
  problem.machine = load_machine("h200", {"host.memory=4TB"});
  problem.workload.batch = 64;
  problem.workload.micro_batch = 4;
  const std::string policy = "greedysnake:optimizer_ssd=0,checkpoints_ssd=0,parameters_ssd=0";
  const Price one = price(problem, policy);
  REQUIRE(one.is_extrapolated);
  const Evaluation full = evaluate(problem, policy);
  CHECK(one.step_seconds == Approx(full.result->step_seconds).epsilon(1e-6));
  CHECK(one.tasks < one.schedule_tasks / 2);
}

}  // namespace
}  // namespace spillway
