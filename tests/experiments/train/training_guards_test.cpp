#include "experiments/train/training_guards.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace spillway {
namespace {

TEST_CASE("evaluations are watched for the best one and for no more progress") {
  EvaluationWatch watch(2, 0.1);
  CHECK(watch.take(0, 5.0));
  CHECK(watch.take(10, 4.0));
  CHECK_FALSE(watch.take(20, 4.5));
  CHECK(watch.not_better() == 1);
  // Better, but not by the margin: the best so far, and no progress.
  CHECK(watch.take(30, 3.95));
  CHECK(watch.not_better() == 2);
  CHECK(watch.out_of_patience());
  REQUIRE(watch.best());
  CHECK(watch.best()->step == 30);
  CHECK(watch.take(40, 3.85));
  CHECK_FALSE(watch.out_of_patience());
  CHECK_FALSE(watch.take(50, std::nan("")));
  CHECK(watch.not_better() == 1);

  EvaluationWatch patient;
  for (int step = 0; step < 100; ++step) patient.take(step, step);
  CHECK_FALSE(patient.out_of_patience());
  CHECK(patient.best()->step == 0);
}

TEST_CASE("a loss far above those before it is a spike") {
  SpikeWatch watch(4);
  for (std::size_t step = 0; step < SpikeWatch::fewest_losses; ++step) {
    CHECK_FALSE(watch.is_spike(1e9));
    watch.take(3.0 + 0.1 * static_cast<double>(step % 3));
  }
  CHECK_FALSE(watch.is_spike(3.3));
  CHECK(watch.is_spike(4.0));
  CHECK_FALSE(watch.is_spike(std::nan("")));
  CHECK_FALSE(watch.is_spike(std::numeric_limits<double>::infinity()));
  CHECK_FALSE(watch.is_spike(0.5));
  CHECK_FALSE(SpikeWatch().is_spike(1e9));

  // Losses that hardly differ: a deviation counts as a hundredth of the average.
  SpikeWatch calm(4);
  for (int step = 0; step < 200; ++step) calm.take(2.0);
  CHECK_FALSE(calm.is_spike(2.07));
  CHECK(calm.is_spike(2.09));
  CHECK(calm.average() == 2.0);
}

TEST_CASE("batches that are left out in a row are counted from the last one back") {
  CHECK(left_out_in_a_row({}) == 0);
  CHECK(left_out_in_a_row({7}) == 1);
  CHECK(left_out_in_a_row({3, 4, 6, 7, 8}) == 3);
}

}  // namespace
}  // namespace spillway
