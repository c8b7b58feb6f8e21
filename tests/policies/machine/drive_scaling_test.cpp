// Drives by what one does and the path that all share; host memory set aside by share.
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "policies/machine/machine.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway;

namespace {

const std::string scaled = small_machine + R"([ssd]
count = 4
capacity = "4TB"
drive_read = "6GB/s"
drive_write = "3GB/s"
path = "24GB/s"
)";

}  // namespace

TEST_CASE("Drives and the path that they share: the times of both add") {
  const auto drives = [](const std::string& count) {
    return parse_machine(scaled, "m.toml", {"ssd.count=" + count}).ssd;
  };
  // 1 / (1 / 24 + 1 / 24) and 1 / (1 / 12 + 1 / 24).
  CHECK(drives("4").read == Approx(12e9));
  CHECK(drives("4").write == Approx(8e9));
  CHECK(drives("1").read == Approx(4.8e9));
  CHECK(drives("12").read == Approx(18e9));
  CHECK_FALSE(drives("12").extrapolated());
  CHECK(parse_machine(scaled, "m.toml", {"ssd.path=0B/s"}).ssd.read == Approx(24e9));
  const Machine again = parse_machine(machine_to_toml(parse_machine(scaled, "m.toml")), "again");
  CHECK(again.ssd.read == Approx(12e9));
  CHECK(again.ssd.by_count.at(7).write == Approx(1e9 / (1.0 / 21 + 1.0 / 24)));
}

TEST_CASE("Half of what one drive does, or drives in two ways, is refused") {
  std::string half = scaled;
  half.erase(half.find("drive_write"), half.find("path") - half.find("drive_write"));
  CHECK_THROWS_WITH(parse_machine(half, "m.toml"), Catch::Contains("belong together"));
  CHECK_THROWS_WITH(parse_machine(small_machine + small_table +
                                      "drive_read = \"6GB/s\"\n"
                                      "drive_write = \"3GB/s\"\n",
                                  "m.toml"),
                    Catch::Contains("there is a table ssd.by_count"));
}

TEST_CASE("What the CUDA context takes of the GPU is kept of what the file gives") {
  const auto gpu = [](const std::vector<std::string>& settings) {
    return load_machine("rtx4090-12ssd", settings).gpu;
  };
  CHECK(gpu({"gpu.memory=20GB", "gpu.context=500MB"}).memory == 19'500'000'000);
  CHECK(gpu({"gpu.context=0B"}).memory == 25'380'000'000);
  CHECK_THROWS_WITH(gpu({"gpu.context=30GB"}), Catch::Contains("leaves nothing of gpu.memory"));
  const Machine machine = load_machine("rtx4090-12ssd");
  CHECK(machine.gpu.memory == 24'100'000'000);
  const Machine again = parse_machine(machine_to_toml(machine), "again");
  CHECK(again.gpu.memory == machine.gpu.memory);
  CHECK(again.gpu.context == machine.gpu.context);
}

TEST_CASE("A share of host memory is set aside of what is installed, also with another size") {
  const auto host = [](const std::vector<std::string>& settings) {
    return load_machine("rtx4090-12ssd", settings).host;
  };
  CHECK(host({"host.memory=200GB"}).memory == 186'000'000'000);
  CHECK(host({"host.memory=100GB"}).memory == 93'000'000'000);
  CHECK(host({"host.memory=100GB", "host.reserved=10GB"}).memory == 90'000'000'000);
  CHECK(host({"host.memory=100GB", "host.reserved_share=0.5"}).memory == 50'000'000'000);
  CHECK_THROWS_WITH(host({"host.reserved_share=1"}), Catch::Contains("leaves nothing"));
  const Machine machine = load_machine("rtx4090-12ssd");
  const Machine again = parse_machine(machine_to_toml(machine), "again");
  CHECK(again.host.memory == machine.host.memory);
  CHECK(again.host.reserved == machine.host.reserved);
}
