// The executor under load: once it runs it allocates nothing, and lanes with nothing to do sleep.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "exec/run/training.hpp"
#include "tests/exec/io/rings.hpp"
#include "tests/exec/training_support.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SPILLWAY_COUNTS_ALLOCATIONS 0
#else
#define SPILLWAY_COUNTS_ALLOCATIONS 1
#endif

namespace {

// Allocations while `counting`, on all threads but the one that reports.
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};
thread_local bool reports = false;

}  // namespace

#if SPILLWAY_COUNTS_ALLOCATIONS
// The sized and array forms end up here too.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // both are malloc's, once inlined
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (counting.load(std::memory_order_relaxed) && !reports) {
    ++allocations;
  }
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#pragma GCC diagnostic pop
#endif

namespace spillway {
namespace {

using test::Workbench;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_CASE("after start-up neither lanes nor commits allocate, over several runs of a schedule",
          "[store]") {
  if (!SPILLWAY_COUNTS_ALLOCATIONS) {
    WARN("skipped: sanitizers have an allocator of their own");
    return;
  }
  const Workbench bench;
  const IoMethod ring = GENERATE(from_range(test::rings()));
  for (const char* policy :
       {"greedysnake:optimizer_ssd=1,checkpoints_ssd=1,parameters_ssd=0.5,alpha=0.3",
        "zero-infinity:pipeline_read=on,pipeline_write=on,max_reuse_distance=0", "fuyou",
        "deep-optimizer-states"}) {
    INFO(policy << " over " << test::to_string(ring));
    TrainingOptions options = bench.options(policy);
    options.make_ring = test::factory_of(ring);
    options.durability = {DurabilityMode::on, 2};
    options.steps = 20;
    options.steps_per_run = 5;
    Training training(options);
    reports = true;
    allocations = 0;
    training.run(
        [&](const StepResult& step) {
          // The first run opens the lanes' channels; the last step ends the training.
          if (step.step == 5) counting = true;
          if (step.step == 18) counting = false;
        },
        nullptr);
    reports = false;
    counting = false;
    CHECK(allocations == 0);
  }
}

TEST_CASE("lanes that wait use no processor time", "[store]") {
  const Workbench bench;
  TrainingOptions options = bench.options("fuyou");
  options.make_ring = test::factory_of(GENERATE(from_range(test::rings())));
  options.steps = 3;
  Training training(options);
  double used = 0;
  training.run(
      [&](const StepResult& step) {
        if (step.step != 0) return;
        // All lanes run dry: the step after the last one of the schedule never comes.
        ::usleep(300'000);
        const double before = cpu_seconds();
        ::usleep(500'000);
        used = cpu_seconds() - before;
      },
      nullptr);
  // Seven polling lanes would use a good part of a second of it.
  CHECK(used < 0.1);
}

}  // namespace
}  // namespace spillway
