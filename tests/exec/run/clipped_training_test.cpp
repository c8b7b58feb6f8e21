// Training with clipped gradients, and with gradients that are not finite: every policy to the bit
// as resident, held against fp64, and the layer named.
#include <fmt/format.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "base/errors.hpp"
#include "exec/cpu/cpu_device.hpp"
#include "exec/data/dataset.hpp"
#include "exec/run/executor.hpp"
#include "exec/run/model_access.hpp"
#include "exec/store/training_store.hpp"
#include "exec/store/version_gate.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway {
namespace {

constexpr GradientClip off{}, tight{ClipScope::global, 0.05}, loose{ClipScope::global, 1e9},
    by_layer{ClipScope::layer, 0.03};

// Policies, and settings of theirs that order updates differently; all of one numerical class.
constexpr const char* policies[] = {
    "zero-offload",
    "zero-offload:parameters=host,max_reuse_distance=0,sub_group_size=5000",
    "zero-infinity:max_reuse_distance=0",
    "zero-infinity:pipeline_read=on,pipeline_write=on,sub_group_size=5000,max_reuse_distance=0",
    "zero-infinity:gradients=host",
    "deep-optimizer-states:stride=2,sub_group_size=1",
    "deep-optimizer-states:stride=off",
    "fuyou",
    "fuyou:optimizer=naive",
    "fuyou:optimizer=serial,group=4e4",
    "fuyou:swap=0.5,checkpoints_ssd=0.5,group=5e3,state_buffers=3",
    "greedysnake:snake=off",
    "greedysnake:snake=off,alpha=1,optimizer_ssd=0.5,parameters_ssd=0.5",
    "greedysnake:snake=off,alpha=0.4,optimizer_ssd=0.6,parameters_ssd=1,checkpoints_ssd=1",
    "greedysnake:snake=off,alpha=0,optimizer_ssd=1,parameters_ssd=1",
    "greedysnake:snake=off,updates=micro-batch,alpha=0.4,optimizer_ssd=0.6,parameters_ssd=0.5",
    "greedysnake:snake=off,updates=micro-batch,alpha=0,optimizer_ssd=1,parameters_ssd=1"};

// A device that spoils one element of a unit's gradient in one step, or leaves one update out.
class MeddlingDevice : public Device {
 public:
  explicit MeddlingDevice(CpuDevice& device) : device_(device) {}
  struct Poison {
    int step = 0, unit = 0;
    float value = 0;
  };
  std::optional<Poison> poison;
  int dropped_update = -1;

  std::string name() const override { return device_.name(); }
  std::span<std::byte> gpu_memory() override { return device_.gpu_memory(); }
  std::span<std::byte> host_memory() override { return device_.host_memory(); }
  void compute(const Task& task, const Operands& o) override {
    if (task.kind == TaskKind::optimizer && task.update == dropped_update) return;
    device_.compute(task, o);
    const bool sums = task.kind == TaskKind::backward || task.kind == TaskKind::embed_backward;
    if (poison && sums && task.step == poison->step && task.layer == poison->unit)
      reinterpret_cast<float*>(o.gradient)[77] = poison->value;
  }
  void copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    device_.copy(lane, to, from, bytes);
  }

 private:
  CpuDevice& device_;
};

struct Outcome {
  std::vector<StepResult> steps;
  std::uint64_t hash = 0;
  std::vector<float> weights;  // of all units
};

class Trainer {
 public:
  GradientClip clip;
  OnNonFinite action = OnNonFinite::stop;
  std::int64_t micro_batch = 2;
  OptimizerSettings settings;
  std::optional<MeddlingDevice::Poison> poison;
  int dropped_update = -1;
  int steps = 6;

  Outcome train(const std::string& policy) const {
    TrainingOptions options = bench_.options(policy);
    Problem& problem = options.problem;
    problem.workload.micro_batch = micro_batch;
    problem.workload.clip = clip;
    problem.workload.on_nonfinite = action;
    const Schedule schedule = build_schedule(problem, policy, steps);
    schedule.require_fit();
    const auto dataset = std::make_shared<const Dataset>(options.data, options.seed);
    CpuDevice cpu(problem, schedule.use(Tier::gpu).peak_bytes, schedule.use(Tier::host).peak_bytes);
    MeddlingDevice device(cpu);
    device.poison = poison;
    device.dropped_update = dropped_update;
    const std::vector<const Schedule*> schedules = {&schedule};
    TrainingStoreOptions store_options;
    store_options.directories = options.ssd;
    TrainingStore store(schedules, store_options);
    store.fill(schedule, device, initial_state(problem.model, options.seed));
    VersionGate gate({1, 0, store.base_epoch(), steps},
                     static_cast<std::uint32_t>(store.parts().size()), false);
    Executor executor(device, store.store(), dataset, settings, {&gate, nullptr, store.parts()});
    Outcome outcome;
    executor.run(schedule, 0, [&](const StepResult& step) { outcome.steps.push_back(step); });
    ModelAccess access({schedule, device, store.store(), store.chunks(), store.parts()},
                       gate.points().copy_of(steps));
    outcome.hash = hash_of_weights(
        problem.model, [&](std::int64_t unit, int, std::uint64_t first, std::uint64_t count,
                           float* to) { access.read_master(unit, first, count, to); });
    for (std::int64_t unit = 0; unit <= problem.model.layers; ++unit) {
      const auto elements = static_cast<std::size_t>(unit_elements(problem.model, unit));
      outcome.weights.resize(outcome.weights.size() + elements);
      access.read_master(unit, 0, elements, &outcome.weights.back() + 1 - elements);
    }
    return outcome;
  }

 private:
  test::Workbench bench_;
};

// The same bits, NaN equal to NaN.
bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void check_identical(const Outcome& a, const Outcome& b, const std::string& what) {
  INFO(what);
  REQUIRE(a.steps.size() == b.steps.size());
  for (std::size_t s = 0; s < a.steps.size(); ++s) {
    INFO("step " << s);
    CHECK(same(a.steps[s].loss, b.steps[s].loss));
    CHECK(same(a.steps[s].gradient_norm, b.steps[s].gradient_norm));
    CHECK(a.steps[s].skipped_unit == b.steps[s].skipped_unit);
  }
  CHECK(a.hash == b.hash);
}

}  // namespace

TEST_CASE("Clipped, every policy trains bit-identically to resident, norms included") {
  Trainer trainer;
  const Outcome unclipped = trainer.train("resident");
  for (const GradientClip& clip : {tight, by_layer}) {
    for (const std::int64_t micro_batch : {2, 8}) {
      trainer.clip = clip;
      trainer.micro_batch = micro_batch;
      const Outcome resident = trainer.train("resident");
      CHECK(resident.hash != unclipped.hash);  // it does clip
      CHECK(resident.steps[0].gradient_norm > 0.1);
      for (const char* policy : policies) {
        check_identical(
            resident, trainer.train(policy),
            fmt::format("{}, {}, micro-batches of {}", policy, to_string(clip), micro_batch));
      }
    }
  }
}

TEST_CASE("A limit that is never reached, and a skip that is never needed, change no bit") {
  Trainer trainer;
  const Outcome resident = trainer.train("resident");
  for (const char* policy : {"resident", "fuyou", "greedysnake:snake=off"}) {
    trainer.clip = loose;
    CHECK(trainer.train(policy).hash == resident.hash);
    trainer.clip = off;
    trainer.action = OnNonFinite::skip;
    CHECK(trainer.train(policy).hash == resident.hash);
    trainer.action = OnNonFinite::stop;
  }
}

TEST_CASE("One step with clipping is the one without, its gradient scaled by limit / norm") {
  // beta1 = beta2 = 0 and epsilon = lr = 1e4 make AdamW w - lr g / (|g| + epsilon), which is
  // w - g (1 - |g| / 1e4 ..): so the weights of a step of learning rate 0 less those of a step
  // without clipping are the gradient, to fp32's rounding of weights up to 1 (6e-8) and 1e-4 of
  // itself. It has the norm that is reported, and clipping scales it.
  Trainer trainer;
  trainer.steps = 1;
  trainer.settings.beta1 = trainer.settings.beta2 = trainer.settings.weight_decay = 0;
  trainer.settings.learning_rate = trainer.settings.epsilon = 1e4;
  const Outcome unclipped = trainer.train("resident");
  trainer.settings.learning_rate = 0;
  const Outcome start = trainer.train("resident");
  trainer.settings.learning_rate = 1e4;
  std::vector<double> gradient(start.weights.size());
  double squares = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<double>(start.weights[i]) - static_cast<double>(unclipped.weights[i]);
    squares += gradient[i] * gradient[i];
  }
  const double norm = std::sqrt(squares);
  REQUIRE(norm > 0.5);
  CHECK(unclipped.steps[0].gradient_norm == Approx(norm).epsilon(2e-3));
  for (const double limit : {0.5 * norm, 0.01 * norm, 2 * norm}) {
    trainer.clip = {ClipScope::global, limit};
    const Outcome clipped = trainer.train("fuyou");
    CHECK(clipped.steps[0].gradient_norm == Approx(norm).epsilon(2e-3));
    const double factor = std::min(1.0, limit / (norm + 1e-6));
    double difference = 0, largest = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double expected = static_cast<double>(start.weights[i]) - factor * gradient[i];
      difference =
          std::max(difference, std::abs(static_cast<double>(clipped.weights[i]) - expected));
      largest = std::max(largest, factor * std::abs(gradient[i]));
    }
    INFO("limit " << limit);
    CHECK(difference <= 3e-3 * largest + 2e-7);
  }
}

TEST_CASE("A gradient that is not finite stops every policy, which names the layer and the step") {
  Trainer trainer;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  const auto check_stop = [&](const std::string& policy, const std::string& name) {
    INFO(policy << ", " << to_string(trainer.clip));
    try {
      trainer.train(policy);
      FAIL_CHECK("training went on");
    } catch (const MachineError& error) {
      CHECK(error.what() == fmt::format("the gradient of {} holds NaN or Inf at step 3", name));
      CHECK(error.hint().find("on_nonfinite = skip") != std::string::npos);
    }
  };
  for (const GradientClip& clip : {off, tight, by_layer}) {
    trainer.clip = clip;
    for (const char* policy : policies) {
      trainer.poison = {3, 1, nan};
      check_stop(policy, "layer 1");
    }
    for (const char* policy : {"resident", "fuyou", "greedysnake:snake=off,alpha=0"}) {
      trainer.poison = {3, 0, -inf};
      check_stop(policy, "layer 0");
      trainer.poison = {3, 3, inf};
      check_stop(policy, "the embedding");
    }
  }
}

TEST_CASE("Skipped is a step whose update nobody applied, in every policy alike") {
  Trainer trainer;
  // The reference: nothing is wrong, but the device applies nothing of step 3.
  for (const GradientClip& clip : {off, by_layer}) {
    trainer.clip = clip;
    trainer.action = OnNonFinite::stop;
    trainer.poison.reset();
    trainer.dropped_update = 3;
    const Outcome dropped = trainer.train("resident");
    trainer.dropped_update = -1;
    CHECK(trainer.train("resident").hash != dropped.hash);
    trainer.action = OnNonFinite::skip;
    trainer.poison = {3, 1, std::numeric_limits<float>::quiet_NaN()};
    const Outcome resident = trainer.train("resident");
    CHECK(resident.hash == dropped.hash);
    for (std::size_t s = 0; s < resident.steps.size(); ++s) {
      CHECK(resident.steps[s].skipped_unit == (s == 3 ? 1 : -1));
      CHECK(std::isfinite(resident.steps[s].gradient_norm) == (s != 3));
      CHECK(resident.steps[s].loss == dropped.steps[s].loss);
    }
    for (const char* policy : policies) check_identical(resident, trainer.train(policy), policy);
  }
}

TEST_CASE("A loss that is not finite is a step skipped, too, and names the last layer") {
  // A learning rate of 1e30 makes weights whose activations overflow; all later steps are skipped,
  // and the weights stay as the first update left them.
  Trainer trainer;
  trainer.action = OnNonFinite::skip;
  trainer.settings.learning_rate = 1e30;
  const Outcome outcome = trainer.train("fuyou");
  CHECK(outcome.steps[0].skipped_unit == -1);
  for (std::size_t s = 1; s < outcome.steps.size(); ++s) CHECK(outcome.steps[s].skipped_unit == 2);
  trainer.steps = 1;
  CHECK(trainer.train("fuyou").hash == outcome.hash);
}

}  // namespace spillway
