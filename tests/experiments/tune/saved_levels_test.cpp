#include "experiments/tune/saved_levels.hpp"

#include <catch2/catch.hpp>

#include "policies/model/operators.hpp"
#include "policies/model/saved.hpp"

namespace spillway {
namespace {

TEST_CASE("levels of what is saved go from nothing to all that is recomputed, layer by layer") {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-12ssd");
  problem.workload = {8, 2, 1024, Precision::bf16, GradientWidth::automatic};
  const SavedLevels levels(problem);
  const int layers = static_cast<int>(problem.model.layers);
  const auto recomputed = [&](double level) {
    double sum = 0;
    for (int layer = 0; layer < layers; ++layer)
      sum += recompute_flops(problem, levels.at(level).at(layer, layers), false);
    return sum;
  };
  CHECK(levels.at(0).at(0, layers) == saved_none);
  CHECK(levels.at(0).at(layers - 1, layers) == gpt_saved::all);
  CHECK(recomputed(levels.most()) == 0);
  // The hull is convex: each level saves fewer FLOPs per byte than the one before.
  double steepest = 1e300;
  for (double level = 1; level <= levels.most(); ++level) {
    const double flops = recomputed(level - 1) - recomputed(level);
    const double bytes = levels.bytes(levels.at(level)) - levels.bytes(levels.at(level - 1));
    INFO(level);
    CHECK(flops > 0);
    CHECK(bytes > 0);
    CHECK(flops / bytes <= steepest);
    steepest = flops / bytes * (1 + 1e-9);
  }
  for (const double level : {0.0, 0.4, 1.5, levels.most()}) {
    const auto masks = levels.at(level);
    CHECK(levels.bytes(levels.at(levels.level_of(masks))) == levels.bytes(masks));
  }
}

}  // namespace
}  // namespace spillway
