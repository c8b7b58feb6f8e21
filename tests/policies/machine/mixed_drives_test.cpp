// Drives with a law for mixed traffic, and with a write cache.
#include <catch2/catch.hpp>

#include "policies/machine/machine.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway;

namespace {

const std::string mixing = small_machine + R"([ssd]
count = 2
capacity = "2TB"
read = "6GB/s"
write = "4GB/s"
law = "mixed"
mixed_gain = 1.1
cache = "100GB"
cache_write = "10GB/s"
cache_recovery = "1GB/s"
[[ssd.by_read_share]]
share = 0.5
gain = 1.4
)";

}  // namespace

TEST_CASE(
    "law mixed: a gain that is set holds for every mix, other drives have more or less cache") {
  const Machine machine = parse_machine(mixing, "mixing.toml");
  CHECK(machine.ssd.law == SsdLaw::mixed);
  CHECK(machine.ssd.mixed_gain == 1.1);
  CHECK(machine.ssd.by_read_share == std::map<double, double>{{0.5, 1.4}});
  CHECK(machine.ssd.cache == 100'000'000'000);
  const Machine set = parse_machine(mixing, "mixing.toml", {"ssd.mixed_gain=1.2"});
  CHECK(set.ssd.mixed_gain == 1.2);
  CHECK(set.ssd.by_read_share.empty());
  // The cache is one drive's, its rates are those of all drives, as ssd.write is.
  const Machine four =
      parse_machine(mixing, "mixing.toml", {"ssd.count=4", "ssd.read=12GB/s", "ssd.write=8GB/s"});
  CHECK(four.ssd.cache == 100'000'000'000);
  CHECK(four.ssd.cache_write == 20e9);
  CHECK(four.ssd.cache_recovery == 2e9);
  CHECK(four.ssd.law == SsdLaw::mixed);
  CHECK(four.ssd.by_read_share == machine.ssd.by_read_share);
}

TEST_CASE("What drives do with mixes is written with the machine, and read back") {
  const std::string by_depth =
      mixing + "[[ssd.by_read_share]]\nshare = 0.5\ngain = 1.2\ndepth = 4\n";
  const Machine machine = parse_machine(by_depth, "mixing.toml");
  CHECK(machine_to_toml(machine).find("mixed_gain") != std::string::npos);
  CHECK(machine.ssd.by_read_share == std::map<double, double>{{0.5, 1.4}});
  const std::map<double, std::map<double, double>> rows = {{4, {{0.5, 1.2}}}};
  CHECK(machine.ssd.read_share_by_depth == rows);
  CHECK(parse_machine(machine_to_toml(machine), "again").ssd.read_share_by_depth == rows);
  // The row with a depth decides, whatever the queue; a gain that is set does away with both.
  CHECK(machine.ssd.gains_at_queue_depth() == std::map<double, double>{{0.5, 1.2}});
  const Machine set = parse_machine(by_depth, "mixing.toml", {"ssd.mixed_gain=1.3"});
  CHECK(set.ssd.gains_at_queue_depth().empty());
  // Twice the drives need twice the requests for the same.
  const Machine four =
      parse_machine(by_depth, "mixing.toml", {"ssd.count=4", "ssd.read=12GB/s", "ssd.write=8GB/s"});
  CHECK(four.ssd.read_share_by_depth.count(8) == 1);
}
