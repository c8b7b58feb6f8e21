// A small sweep, and what tests ask of one.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/program.hpp"

namespace spillway::test {

// 18 points, some of which cannot be: 4 does not divide 6.
inline const std::string small_sweep =
    "name = \"small\"\n"
    "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\n"
    "[[axis]]\npolicy = [\"resident\", \"zero-infinity\", \"greedysnake\"]\n"
    "[[axis]]\nbatch = [2, 4, 6]\nmicro_batch = [1, 2, 4]\n"
    "[[axis]]\n\"host.memory\" = [\"1MB\", \"1GB\"]\n";

inline std::vector<std::string> sweep(const std::string& file, const std::string& out) {
  return {"sweep", file, "--out", out};
}

inline std::string results(const std::string& out) {
  return read_file(std::filesystem::path(out) / "results.csv");
}

inline nlohmann::json summary(const std::vector<std::string>& command) {
  const Outcome outcome = run(command + std::vector<std::string>{"--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json();
}

inline bool has_gnuplot() { return std::system("gnuplot --version > /dev/null 2>&1") == 0; }

}  // namespace spillway::test
