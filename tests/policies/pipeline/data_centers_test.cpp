// Data centres from TOML, and the rate of many TCP flows.
#include "policies/pipeline/data_centers.hpp"

#include <catch2/catch.hpp>

#include "tests/policies/input_error.hpp"

using namespace spillway;

namespace {

template <class Body>
std::string message_of(Body body) {
  return input_error(body).what();
}

const std::string two = R"(name = "two"
[[data_center]]
name = "east"
nodes = 4
[[data_center]]
name = "west"
nodes = 2
[[wan]]
from = "east"
to = "west"
rtt = "40ms"
window = "1.47MB"
pair = "625MB/s"
)";

std::string why(const std::string& text) {
  return message_of([&] { parse_data_centers(text, "two.toml"); });
}

}  // namespace

TEST_CASE("A flow has window / rtt, many flows as many times that, up to what a pair has") {
  DataCenters centers = parse_data_centers(two, "two.toml");
  CHECK(centers.nodes() == 6);
  const WanLink* link = centers.link("east", "west");
  REQUIRE(link != nullptr);
  CHECK(link->pair_rate() == Approx(1.47e6 / 0.040));  // 294 Mb/s
  CHECK(link->latency_ns() == 20'000'000);
  set_on_links(centers, "flows=10");
  CHECK(centers.link("east", "west")->pair_rate() == Approx(10 * 1.47e6 / 0.040));
  set_on_links(centers, "flows=100");
  CHECK(centers.link("west", "east")->pair_rate() == Approx(625e6));
}

TEST_CASE(
    "Rates of one flow by round trip, as reported of a cloud (unverified): 1.47 MB in flight") {
  // 10 ms: 1220 Mb/s, 20 ms: 600, 30 ms: 396, 40 ms: 293; within 4 %.
  const double mbit[] = {1220, 600, 396, 293};
  for (int i = 0; i < 4; ++i) {
    DataCenters centers = parse_data_centers(two, "two.toml");
    set_on_links(centers, "rtt=" + std::to_string(10 * (i + 1)) + "ms");
    CHECK(centers.links.front().pair_rate() * 8e-6 == Approx(mbit[i]).epsilon(0.04));
  }
}

TEST_CASE("The other way is alike, unless a table of its own says otherwise") {
  CHECK(parse_data_centers(two, "two.toml").links.size() == 2);
  const DataCenters own = parse_data_centers(
      two +
          "[[wan]]\nfrom = \"west\"\nto = \"east\"\nrtt = \"60ms\"\nwindow = \"1MB\"\npair = "
          "\"1GB/s\"\n",
      "two.toml");
  CHECK(own.links.size() == 2);
  CHECK(own.link("west", "east")->rtt_ns == 60'000'000);
  CHECK(own.link("east", "west")->rtt_ns == 40'000'000);
}

TEST_CASE("What a file of data centres gets wrong is named with its place") {
  CHECK(why("").find("no data centre") != std::string::npos);
  CHECK(why(two + "[[wan]]\nfrom = \"east\"\nto = \"north\"\nrtt = \"1ms\"\nwindow = \"1MB\"\npair "
                  "= \"1GB/s\"\n")
            .find("no data centre north") != std::string::npos);
  CHECK(why(two + "[[data_center]]\nname = \"west\"\nnodes = 1\n").find("two data centres named") !=
        std::string::npos);
  CHECK(why(two + "[[wan]]\nfrom = \"east\"\nto = \"west\"\nrtt = \"0ms\"\nwindow = \"1MB\"\npair "
                  "= \"1GB/s\"\n")
            .find("rtt") != std::string::npos);
  CHECK(why("nodes = 3\n" + two).find("two.toml:1") != std::string::npos);
  DataCenters centers = parse_data_centers(two, "two.toml");
  CHECK(message_of([&] { set_on_links(centers, "flow=1"); }).find("flow") != std::string::npos);
  CHECK(message_of([&] { set_on_links(centers, "flows=0"); }).find("flows") != std::string::npos);
}
