#include "tests/exec/streams/stream_training.hpp"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "policies/common/policy.hpp"
#include "tests/exec/cpu/hidden_device.hpp"

namespace spillway::test {

namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

Seeds::Seeds(std::uint64_t otherwise)
    : first(from_environment("SPILLWAY_TEST_SEED", std::random_device{}())),
      count(from_environment("SPILLWAY_TEST_SEEDS", otherwise)) {}

std::string to_text(std::uint64_t seed) {
  return fmt::format("seed {} (SPILLWAY_TEST_SEED={} SPILLWAY_TEST_SEEDS=1 repeats it)", seed,
                     seed);
}

void Numbers::add(const StepResult& step, bool with_norm) {
  steps.push_back(fmt::format("step {} loss {:a} norm {:a} skipped {}", step.step, step.loss,
                              with_norm ? step.gradient_norm : 0, step.skipped_unit));
}

std::string difference(const Numbers& a, const Numbers& b, std::size_t from) {
  if (a.steps.size() != from + b.steps.size())
    return fmt::format("{} steps, and {} from step {} on", a.steps.size(), b.steps.size(), from);
  for (std::size_t i = 0; i < b.steps.size(); ++i) {
    if (a.steps[from + i] != b.steps[i])
      return fmt::format("{} | {}", a.steps[from + i], b.steps[i]);
  }
  return a.weights_hash == b.weights_hash ? "" : "the weights after the last step";
}

TrainingOptions random_problem(const Workbench& bench, std::mt19937_64& random) {
  const auto between = [&](std::uint64_t low, std::uint64_t high) {
    return static_cast<int>(low + random() % (high - low + 1));
  };
  const int layers = between(1, 3), hidden = 16 * between(1, 2), micro_batches = between(1, 4);
  TrainingOptions o = bench.options("resident", layers, hidden, micro_batches);
  Workload& workload = o.problem.workload;
  workload.micro_batch = between(1, 2);
  workload.batch = workload.micro_batch * micro_batches;
  workload.sequence = 8;
  freeze_at_random(o.problem.model, random);
  // Gradients of these models have norms of about 1.
  const GradientClip clips[] = {{}, {ClipScope::global, 0.1}, {ClipScope::layer, 0.1}};
  workload.clip = clips[random() % 3];
  if (random() % 4 == 0) workload.on_nonfinite = OnNonFinite::skip;
  if (random() % 3 == 0) workload.moments = MomentWidth::bf16;
  o.guard_bytes = 1 << 16;
  // Runs of a few steps, of one step, or one run with all of them; the last one may be shorter.
  o.steps = between(4, 9);
  o.steps_per_run = between(0, 4);
  if (random() % 2 == 0) workload.precision = Precision::bf16;
  if (random() % 3 == 0) {  // on a device whose memory the host cannot touch
    o.make_device = [](const Problem& problem, std::uint64_t gpu, std::uint64_t host) {
      return std::make_unique<HiddenDevice>(problem, gpu, host);
    };
  }
  if (random() % 2 == 0) o.durability = {DurabilityMode::on, between(1, 3)};
  return o;
}

const std::vector<std::string>& stream_policies() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> policies;
    for (const PolicyInfo& one : builtin_policies()) {
      // Snake order adds micro-batches up in another order.
      policies.push_back(one.name == "greedysnake" ? "greedysnake:snake=off" : one.name);
    }
    for (const char* const more :
         {"zero-offload:parameters=host,max_reuse_distance=0,sub_group_size=5000",
          "zero-infinity:pipeline_read=on,pipeline_write=on,max_reuse_distance=0",
          "zero-infinity:gradients=host", "deep-optimizer-states:stride=2,sub_group_size=1",
          "deep-optimizer-states:stride=off", "fuyou:optimizer=serial,group=4e4",
          "fuyou:swap=0.5,checkpoints_ssd=0.5,group=5e3,state_buffers=3",
          "greedysnake:snake=off,alpha=0.4,optimizer_ssd=0.6,parameters_ssd=1,checkpoints_ssd=1",
          "greedysnake:snake=off,updates=micro-batch,alpha=0.4,optimizer_ssd=0.6,"
          "parameters_ssd=0.5"})
      policies.push_back(more);
    return policies;
  }();
  return all;
}

Numbers train_all(const TrainingOptions& options, bool with_norms) {
  Training training(options);
  Numbers numbers;
  numbers.weights_hash =
      training.run([&](const StepResult& step) { numbers.add(step, with_norms); }, nullptr)
          .weights_hash;
  return numbers;
}

Watchdog::Watchdog(std::chrono::seconds limit)
    : limit_(limit), thread_([this] {
        std::unique_lock lock(mutex_);
        while (!closing_) {
          const std::uint64_t before = number_;
          const bool moved =
              changed_.wait_for(lock, limit_, [&] { return closing_ || number_ != before; });
          if (moved) continue;
          std::fprintf(stderr, "hangs: %s\n", what_.c_str());
          std::signal(SIGABRT, SIG_DFL);
          std::abort();
        }
      }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::now(const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    what_ = what;
    ++number_;
  }
  changed_.notify_all();
}

}  // namespace spillway::test
