// Reads and writes that share a link: the fluid model, by hand.
#include "exec/throttle/shared_link.hpp"

#include <catch2/catch.hpp>
#include <random>

namespace spillway {
namespace {
constexpr auto read = SharedLink::read;
constexpr auto write = SharedLink::write;
constexpr std::int64_t second = 1'000'000'000;
}  // namespace

TEST_CASE("A flow that is alone goes at its own rate, or at the total if that is less") {
  SharedLink link(100, 50, 80);  // bytes/s
  link.start(read, 160, 0);
  CHECK(link.end_ns(read) == 2 * second);  // 160 / 80
  link.advance(2 * second);
  CHECK_FALSE(link.running(read));
  link.start(write, 100, 5 * second);
  CHECK(link.end_ns(write) == 7 * second);  // 100 / 50
}

TEST_CASE("Two flows whose rates fit into the total do not disturb each other") {
  SharedLink link(100, 50, 150);
  link.start(read, 200, 0);
  link.start(write, 200, 0);
  CHECK(link.end_ns(read) == 2 * second);
  CHECK(link.end_ns(write) == 4 * second);
}

TEST_CASE("Two flows share the total in proportion to their rates, and the one left speeds up") {
  // R = 60, W = 40, total = 50: together each has half of its own rate, 30 and 20.
  SharedLink link(60, 40, 50);
  link.start(write, 100, 0);
  // One second alone: 40 bytes. From then on with a read of 60 bytes, which takes 2 s, while the
  // write moves 2 * 20 more; the last 20 take half a second at 40.
  link.start(read, 60, second);
  CHECK(link.end_ns(read) == 3 * second);
  CHECK(link.end_ns(write) == 3 * second + second / 2);
  link.advance(10 * second);
  CHECK(link.end_ns(read) == 3 * second);
  CHECK(link.end_ns(write) == 3 * second + second / 2);
}

TEST_CASE("A flow that begins behind the time is given what it would have moved since") {
  SharedLink link(60, 40, 50);
  link.start(write, 100, 0);
  link.advance(2 * second);  // 80 bytes; the last 20 shared take a second
  // It began at 1 s by right: one second at the shared rate of 30 is taken off its 90 bytes.
  link.start(read, 90, second);
  CHECK(link.end_ns(write) == 3 * second);
  // 30 more beside the write, and the last 30 at min(60, 50).
  CHECK(link.end_ns(read) == 3 * second + second * 30 / 50);
}

TEST_CASE("Whatever is looked at in between, the ends are the same and no byte is moved twice") {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  INFO("seed " << seed);
  std::uniform_real_distribution<double> rate(1e6, 1e9), size(1e3, 1e8), moment(0, 0.2);
  for (int round = 0; round < 200; ++round) {
    const double r = rate(random), w = rate(random), total = rate(random);
    SharedLink plain(r, w, total), watched(r, w, total);
    const double bytes[] = {size(random), size(random)};
    const auto later = static_cast<std::int64_t>(moment(random) * 1e9);
    plain.start(read, bytes[0], 0);
    watched.start(read, bytes[0], 0);
    for (int i = 1; i < 5; ++i) watched.advance(later * i / 5);
    plain.start(write, bytes[1], later);
    watched.start(write, bytes[1], later);
    for (int i = 0; i < 10; ++i) watched.advance(later + static_cast<std::int64_t>(1e7) * i);
    const std::int64_t ends[] = {plain.end_ns(read), plain.end_ns(write)};
    CHECK(static_cast<double>(watched.end_ns(read)) ==
          Approx(static_cast<double>(ends[0])).margin(5).epsilon(1e-9));
    CHECK(static_cast<double>(watched.end_ns(write)) ==
          Approx(static_cast<double>(ends[1])).margin(5).epsilon(1e-9));
    // No flow beats its own rate, and both together do not beat the total.
    const auto read_time = static_cast<double>(ends[0]) / 1e9;
    const auto write_time = static_cast<double>(ends[1] - later) / 1e9;
    CHECK(bytes[0] <= read_time * std::min(r, total) * (1 + 1e-6) + 1);
    CHECK(bytes[1] <= write_time * std::min(w, total) * (1 + 1e-6) + 1);
    const auto last = static_cast<double>(std::max(ends[0], ends[1])) / 1e9;
    CHECK(bytes[0] + bytes[1] <= last * total * (1 + 1e-6) + 2);
  }
}

}  // namespace spillway
