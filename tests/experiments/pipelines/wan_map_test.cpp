// ATLAS over others on a WAN: where it gains, and where nothing is left of it.
#include "experiments/pipelines/wan_map.hpp"

#include <catch2/catch.hpp>

using namespace spillway;

namespace {

WanMapRow row_of(double ratio, int micro_batches, int held = 0, double gain = 17) {
  WanMapAxes axes;
  axes.ratios = {ratio};
  axes.micro_batches = {micro_batches};
  axes.centers = {2};
  axes.held = {held};
  axes.flows_gain = gain;
  const std::vector<WanMapRow> rows = wan_map(axes);
  REQUIRE(rows.size() == 1);
  return rows.front();
}

}  // namespace

TEST_CASE("With many micro-batches a step is bound by max(F + B, C) a micro-batch, in either way") {
  // Time sharing shortens each crossing, not the load of the link.
  const WanMapRow row = row_of(8, 512);
  REQUIRE(row.atlas);
  CHECK(*row.atlas / 512 == Approx(8).epsilon(0.03));
  CHECK(*row.baselines[2].many_flows / 512 == Approx(8).epsilon(0.03));
  CHECK(*row.over_many_flows() == Approx(1).epsilon(0.03));
  CHECK(*row.over_fastest() == Approx(17).epsilon(0.03));
}

TEST_CASE("Where computing bounds with one flow, too, nothing is gained") {
  const WanMapRow row = row_of(0.05, 512);
  CHECK(*row.over_fastest() == Approx(1).epsilon(0.03));
  CHECK(row.atlas_busy > 0.95);
}

TEST_CASE("An order that holds more than memory does has no time") {
  const WanMapRow row = row_of(1, 16, 6);
  CHECK_FALSE(row.baselines[0].one_flow);  // GPipe holds 16
  CHECK_FALSE(row.baselines[1].one_flow);  // 1F1B holds as many as there are stages, 8
  CHECK(row.baselines[2].one_flow);        // Varuna as many as it may
  CHECK(row.atlas);
  CHECK(row_of(1, 16, 8).baselines[1].one_flow);
}

TEST_CASE("Few micro-batches: pipelines that take turns cross sooner than side by side") {
  const WanMapRow row = row_of(8, 4);
  CHECK(*row.over_many_flows() > 1.05);
  CHECK(row.cell == 8);
}
