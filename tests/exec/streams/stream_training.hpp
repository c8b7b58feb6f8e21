// What the tests of training on streams share (tests/exec/streams/streams_*_test.cpp): small random
// problems, all numbers of a training, and an eye on trainings that do not end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/exec/streams/stream_device.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {

// How many seeds: SPILLWAY_TEST_SEEDS, or `otherwise`; the first one: SPILLWAY_TEST_SEED, or
// random.
struct Seeds {
  explicit Seeds(std::uint64_t otherwise);
  std::uint64_t first, count;
};
// For INFO.
std::string to_text(std::uint64_t seed);

// All that a training tells of its steps, as text, to the bit; and its weights.
struct Numbers {
  std::vector<std::string> steps;
  std::uint64_t weights_hash = 0;

  // Norms of pieces are added up piece by piece: with another policy, and no clipping, they may
  // differ by a rounding.
  void add(const StepResult& step, bool with_norm = true);
};
// The first step that differs; empty when all is equal. Steps are compared from global step `from`
// on, which is where `b` begins.
std::string difference(const Numbers& a, const Numbers& b, std::size_t from = 0);

// A small problem of a seed: layers, micro-batches, precision, clipping, several runs or one,
// durability.
TrainingOptions random_problem(const Workbench& bench, std::mt19937_64& random);

// Policies that are built in, and settings of theirs that move and delay in other ways; all of them
// add micro-batches in the same order.
const std::vector<std::string>& stream_policies();

// Trains from start to end on the device that the options say.
Numbers train_all(const TrainingOptions& options, bool with_norms = true);

// Ends the program, with what it was told was going on, when that takes minutes: a test that hangs
// then says which.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit = std::chrono::seconds(180));
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  void now(const std::string& what);

 private:
  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_ = "nothing yet";
  std::uint64_t number_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace spillway::test
