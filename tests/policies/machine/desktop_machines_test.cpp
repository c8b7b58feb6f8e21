// The built-in desktops: one GPU, consumer drives, and a variant of each with one drive.
#include <catch2/catch.hpp>

#include <string>

#include "policies/machine/machine.hpp"
#include "tests/policies/input_error.hpp"

using namespace spillway;

namespace {

const std::string desktops[] = {"rtx3090", "rtx4090", "rtx5090", "rtx-a6000"};

}  // namespace

TEST_CASE("the variant of a desktop with one drive is its file with ssd.count=1") {
  for (const std::string& desktop : desktops) {
    INFO(desktop);
    Machine variant = load_machine(desktop + "-1ssd");
    CHECK(variant.name == desktop + "-1ssd");
    CHECK(variant.sources.at("ssd.count") == "chosen for this variant of " + desktop + "-2ssd");
    Machine set = load_machine(desktop + "-2ssd", {"ssd.count=1"});
    CHECK(set.name == desktop + "-2ssd");
    CHECK(set.sources.at("ssd.count") == "set on the command line");
    variant.name = set.name;
    variant.sources["ssd.count"] = set.sources["ssd.count"];
    CHECK(machine_to_toml(variant) == machine_to_toml(set));
  }
}

TEST_CASE("a desktop's display takes a gigabyte, and the CUDA context comes off once") {
  for (const std::string& desktop : desktops) {
    INFO(desktop);
    const Machine card = load_machine(desktop + "+desktop-ddr5");
    CHECK(load_machine(desktop + "-2ssd").gpu.memory == card.gpu.memory - 1'000'000'000);
    CHECK(load_machine(desktop + "-1ssd").gpu.context == card.gpu.context);
  }
  // A server has no display.
  CHECK(load_machine("h100-mlp-offload").gpu.memory == load_machine("h100-80gb").gpu.memory);
}

TEST_CASE("a variant takes --set as its file does") {
  const Machine one = load_machine("rtx4090-1ssd", {"host.memory=64GiB"});
  CHECK(static_cast<double>(one.host.memory) == Approx(0.91 * 64 * (1 << 30)));
  CHECK(one.ssd.capacity == 2'000'000'000'000);
  const Machine four = load_machine("rtx4090-1ssd", {"ssd.count=4"});
  const Machine set = load_machine("rtx4090-2ssd", {"ssd.count=4"});
  CHECK(four.ssd.capacity == 8'000'000'000'000);
  CHECK(four.ssd.read == set.ssd.read);
  CHECK(four.ssd.write == set.ssd.write);
  CHECK_FALSE(four.ssd.extrapolated());
  CHECK(load_machine("rtx4090-2ssd", {"ssd.count=0"}).ssd.cache == 0);  // of drives that have one
  check_error([] { load_machine("rtx4090-1ssd", {"ssd.counts=4"}); }, "ssd.counts=4: unknown key",
              "ssd.count");
}

TEST_CASE(
    "desktops have drives with a cache: writes sustained below the data sheet, a known life") {
  for (const std::string& desktop : desktops) {
    INFO(desktop);
    const Machine one = load_machine(desktop + "-1ssd"), two = load_machine(desktop + "-2ssd");
    // Samsung 990 PRO 2 TB: 7450 and 6900 MB/s, 1200 TB written.
    CHECK(one.ssd.read <= 7.45e9);
    CHECK(one.ssd.write < 6.9e9 / 2);
    CHECK(two.ssd.read == 2 * one.ssd.read);
    CHECK(two.ssd.write == 2 * one.ssd.write);
    CHECK(one.ssd.tbw == 1'200'000'000'000'000);
    CHECK(two.ssd.tbw == one.ssd.tbw);  // of one drive
    CHECK(one.sources.count("ssd.tbw") == 1);
    CHECK(one.sources.count("ssd.drive_write") == 1);
    // Memory sets the rate of the optimizer, not the 16 cores.
    CHECK(one.host.adam_params_per_second == one.host.bandwidth / 28);
  }
}

TEST_CASE("GPUs sustain less than their whitepaper's dense bf16 with fp32 accumulation") {
  const std::pair<const char*, double> peaks[] = {
      {"rtx3090-2ssd", 71e12},      {"rtx4090-2ssd", 165.2e12}, {"rtx5090-2ssd", 209.5e12},
      {"rtx-a6000-2ssd", 154.8e12}, {"a100-80gb", 312e12},      {"h100-80gb", 989.4e12}};
  for (const auto& [name, peak] : peaks) {
    INFO(name);
    CHECK(load_machine(name).gpu.flops < 0.98 * peak);
    CHECK(load_machine(name).gpu.flops > 0.7 * peak);
  }
}

TEST_CASE("a file of one's own has no variants") {
  check_error([] { parse_machine("name = \"a\"\n[variants]\nb = [\"ssd.count=1\"]\n", "a.toml"); },
              "a.toml:2:2: unknown key variants", "name");
}
