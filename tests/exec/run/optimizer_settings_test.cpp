#include "exec/run/optimizer_settings.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"

using namespace spillway;

namespace {

OptimizerSettings settings(LearningRateShape shape) {
  OptimizerSettings o;
  o.learning_rate = 2;
  o.warmup_steps = 10;
  o.decay_steps = 110;
  o.shape = shape;
  o.final_learning_rate = 0.25;
  return o;
}

}  // namespace

TEST_CASE("A learning rate rises in a straight line, whatever it does then", "[learning rate]") {
  for (const LearningRateShape shape : {LearningRateShape::constant, LearningRateShape::cosine,
                                        LearningRateShape::linear, LearningRateShape::wsd}) {
    const OptimizerSettings o = settings(shape);
    CHECK(o.learning_rate_at(0) == Approx(0.2));
    CHECK(o.learning_rate_at(4) == Approx(1.0));
    CHECK(o.learning_rate_at(9) == Approx(2.0));
    CHECK(o.learning_rate_at(10) == Approx(2.0));
    CHECK(o.at(4).learning_rate == 1.0f);
    CHECK(o.at(4).t == 5);
    CHECK(parse_learning_rate_shape(to_string(shape)) == shape);
  }
}

TEST_CASE("Each schedule of learning rates has the values of its formula", "[learning rate]") {
  CHECK(settings(LearningRateShape::constant).learning_rate_at(10'000) == Approx(2));
  const OptimizerSettings cosine = settings(LearningRateShape::cosine);
  CHECK(cosine.learning_rate_at(60) == Approx(2 * (0.25 + 0.75 * 0.5)));
  CHECK(cosine.learning_rate_at(35) == Approx(2 * (0.25 + 0.75 * 0.5 * (1 + 0.70710678))));
  const OptimizerSettings linear = settings(LearningRateShape::linear);
  CHECK(linear.learning_rate_at(60) == Approx(2 * (1 - 0.75 * 0.5)));
  OptimizerSettings wsd = settings(LearningRateShape::wsd);
  CHECK(wsd.learning_rate_at(89) == Approx(2));
  CHECK(wsd.learning_rate_at(100) == Approx(2 * (1 - 0.75 * 0.5)));
  wsd.decay_share = 0.5;
  CHECK(wsd.learning_rate_at(85) == Approx(2 * (1 - 0.75 * 0.5)));
  for (const OptimizerSettings& o : {cosine, linear, wsd}) {
    CHECK(o.learning_rate_at(110) == Approx(0.5));
    CHECK(o.learning_rate_at(1'000'000) == Approx(0.5));
  }
  CHECK_THROWS_AS(parse_learning_rate_shape("wds"), InputError);
}
