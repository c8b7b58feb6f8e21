// How reads and writes share the drives: the laws, and the hull of what was measured of mixes.
#include "policies/cost/link_rates.hpp"

#include <catch2/catch.hpp>

#include <random>

using namespace spillway;

namespace {

DriveRates rates_by(SsdLaw law, const Machine::Ssd::Row& rates, double mixed_gain = 1,
                    const std::map<double, double>& by_read_share = {}) {
  Machine::Ssd ssd;
  ssd.law = law;
  ssd.mixed_gain = mixed_gain;
  ssd.by_read_share = by_read_share;
  return drive_rates(ssd, rates);
}

}  // namespace

TEST_CASE("Bytes read and written: times add, are independent, share a cap, or gain by mixing") {
  const Machine::Ssd::Row rates{20, 10, 16};
  CHECK(rates_by(SsdLaw::simplex, rates).seconds(100, 40) == Approx(5 + 4));
  CHECK(rates_by(SsdLaw::duplex, rates).seconds(100, 40) == Approx(5));
  CHECK(rates_by(SsdLaw::capped, rates).seconds(100, 40) == Approx(140.0 / 16));
  CHECK(rates_by(SsdLaw::capped, rates).seconds(100, 0) == Approx(100.0 / 16));  // below R
  CHECK(rates_by(SsdLaw::mixed, rates).seconds(100, 40) == Approx(9));
  CHECK(rates_by(SsdLaw::mixed, rates, 1.5).seconds(100, 40) == Approx(6));
  CHECK(rates_by(SsdLaw::mixed, rates, 2).seconds(100, 40) == Approx(5));
  // One kind alone has its bandwidth, whatever a mix gains.
  for (const double gain : {1.0, 1.3, 2.0}) {
    CHECK(rates_by(SsdLaw::mixed, rates, gain).seconds(100, 0) == Approx(5));
    CHECK(rates_by(SsdLaw::mixed, rates, gain).seconds(0, 40) == Approx(4));
  }
  CHECK(DriveRates{}.seconds(100, 40) == 0);
  for (const SsdLaw law : {SsdLaw::simplex, SsdLaw::duplex, SsdLaw::capped, SsdLaw::mixed}) {
    CHECK(rates_by(law, {}).seconds(100, 40) == 0);  // rates that are not known limit nothing
    CHECK(rates_by(law, {20, 0, 20}).seconds(100, 0) == Approx(5));
  }
}

TEST_CASE("The hull of one measured mix has two edges through it") {
  // R = 20, W = 10; of 3 bytes 2 are read: 2/20 + 1/10, so both take the same time alone. With
  // gain 1.6 that is the point (0.8, 0.8): x/4 + y <= 1 and x + y/4 <= 1 of x = r/R, y = w/W.
  const DriveRates rates = rates_by(SsdLaw::mixed, {20, 10, 0}, 1, {{2.0 / 3, 1.6}});
  REQUIRE(rates.limits.size() == 4);
  const DriveLimit &few_reads = rates.limits[2], &many_reads = rates.limits[3];
  CHECK(few_reads.name == "ssd.mixed.1");
  CHECK(few_reads.capacity == 1);
  CHECK(few_reads.per_read == Approx(0.25 / 20));
  CHECK(few_reads.per_written == Approx(1 / 10.0));
  CHECK(many_reads.name == "ssd.mixed.2");
  CHECK(many_reads.per_read == Approx(1 / 20.0));
  CHECK(many_reads.per_written == Approx(0.25 / 10));
  CHECK(rates.seconds(200, 100) == Approx(20 / 1.6));
  CHECK(rates.seconds(200, 0) == Approx(10));
  CHECK(rates.seconds(0, 100) == Approx(10));
}

TEST_CASE("A mix that is slower than its neighbours on the hull, or than turns, gets the hull's") {
  // All of R = W = 10. Gains 1.5 at a quarter and at three quarters of reads are (.375, 1.125),
  // which no write reaches: (1/3, 1) and (1, 1/3). Between them 4/3 is the line's.
  const std::map<double, double> dented = {{0.25, 1.5}, {0.5, 1.1}, {0.75, 1.5}};
  CHECK(gain_of_hull(dented, 10, 10, 0.25) == Approx(4 / 3.0));
  CHECK(gain_of_hull(dented, 10, 10, 0.5) == Approx(4 / 3.0));
  CHECK(gain_of_hull(dented, 10, 10, 0) == Approx(1));
  CHECK(gain_of_hull(dented, 10, 10, 1) == Approx(1));
  CHECK(rates_by(SsdLaw::mixed, {10, 10, 0}, 1, dented).limits.size() == 3);
  // No gain at all: one edge, that of simplex.
  const std::map<double, double> none = {{0.25, 1}, {0.5, 1}, {0.75, 1}};
  const DriveRates turns = rates_by(SsdLaw::mixed, {10, 5, 0}, 1, none);
  REQUIRE(turns.limits.size() == 3);
  CHECK(turns.seconds(70, 30) == Approx(7 + 6));
  // Full speed both ways at once: nothing is left to limit but the two ways.
  CHECK(rates_by(SsdLaw::mixed, {10, 10, 0}, 1, {{0.5, 2}}).limits.size() == 2);
}

TEST_CASE("A mix reaches what was measured, and never more than the best of the table allows") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    const double R = between(1, 20), W = between(1, 20);
    std::map<double, double> rows;
    double most = 1;
    for (const double share : {0.25, 0.5, 0.75}) {
      rows[share] = between(1, 2);
      most = std::max(most, rows[share]);
    }
    const DriveRates rates = rates_by(SsdLaw::mixed, {R, W, 0}, 1, rows);
    CHECK(rates.limits.size() <= 6);
    for (const auto& [share, gain] : rows) {
      const double reading = share / R, writing = (1 - share) / W;
      const double measured = std::max({(reading + writing) / gain, reading, writing});
      CHECK(rates.seconds(share, 1 - share) <= measured * (1 + 1e-6));
    }
    for (double share = 0; share <= 1; share += 0.05) {
      const double simplex = share / R + (1 - share) / W;
      const double seconds = rates.seconds(share, 1 - share);
      CHECK(seconds <= simplex * (1 + 1e-6));
      CHECK(seconds >= simplex / most * (1 - 1e-6));
      CHECK(seconds >= std::max(share / R, (1 - share) / W));
      CHECK(gain_of_hull(rows, R, W, share) == Approx(simplex / seconds));
    }
  }
}

TEST_CASE("Gains of mixes are those of the machine's queue depth") {
  // At half and half 1.2 with 4 requests in flight, 1.6 with 32: 1.4 half of the way.
  Machine::Ssd ssd;
  ssd.law = SsdLaw::mixed;
  ssd.read = ssd.write = 1e9;
  ssd.by_read_share = {{0.5, 1.9}};
  const auto seconds = [&](std::int64_t depth) {
    ssd.queue_depth = depth;
    return drive_rates(ssd, {ssd.read, ssd.write, 0}).seconds(1e9, 1e9);
  };
  // Without rows by depth the ones there are hold at every depth.
  CHECK(seconds(4) == Approx(2 / 1.9));
  ssd.read_share_by_depth = {{4, {{0.5, 1.2}}}, {32, {{0.5, 1.6}}}};
  CHECK(seconds(1) == Approx(2 / 1.2));
  CHECK(seconds(4) == Approx(2 / 1.2));
  CHECK(seconds(18) == Approx(2 / 1.4));
  CHECK(seconds(32) == Approx(2 / 1.6));
  CHECK(seconds(999) == Approx(2 / 1.6));
}
