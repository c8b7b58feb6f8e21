// A machine key by key: what is given, derived, assumed.
#include "policies/machine/machine_account.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <fstream>

#include "tests/policies/machine/machine_text.hpp"
#include "tests/temporary_folder.hpp"

using namespace spillway;

namespace {

// The path of a file in the folder with that text.
std::string write(const test::TemporaryFolder& folder, const std::string& name,
                  const std::string& text) {
  const std::string path = (folder / name).string();
  std::ofstream(path) << text;
  return path;
}

MachineValue value_of(const MachineAccount& account, const std::string& key) {
  for (const MachineValue& value : account.values) {
    if (value.key == key) return value;
  }
  FAIL(key + " is not there");
  return {};
}

const MachineTable& table_of(const MachineAccount& account, const std::string& key) {
  const auto found = std::find_if(account.tables.begin(), account.tables.end(),
                                  [&](const MachineTable& table) { return table.key == key; });
  REQUIRE(found != account.tables.end());
  return *found;
}

}  // namespace

TEST_CASE("Every key that a setting may have is in the account, once") {
  const MachineAccount account = account_of_machine("rtx4090-2ssd");
  std::vector<std::string> keys, expected = machine_keys();
  // Of a second set of drives only where there is one.
  std::erase_if(expected, [](const std::string& key) {
    return key.rfind("ssd", 0) == 0 && key.rfind("ssd.", 0) != 0;
  });
  for (const MachineValue& value : account.values) keys.push_back(value.key);
  std::sort(keys.begin(), keys.end());
  std::sort(expected.begin(), expected.end());
  CHECK(keys == expected);
}

TEST_CASE("A machine without its file has no rates of one drive, but what follows from them") {
  const MachineAccount account = account_of(load_machine("rtx4090-2ssd"));
  for (const MachineValue& value : account.values) {
    CHECK(value.key.rfind("ssd.drive_", 0) == std::string::npos);
    CHECK(value.key != "ssd.ceiling");
  }
  const MachineTable& table = table_of(account, "ssd.by_count");
  CHECK(table.origin == Origin::derived);
  CHECK(table.source.find("one drive") != std::string::npos);
}

TEST_CASE("Each value of every built-in machine says where it is from") {
  for (const Machine& machine : builtin_machines()) {
    const MachineAccount account = account_of_machine(machine.name);
    CHECK(machine_to_toml(account.machine) == machine_to_toml(machine));
    for (const MachineValue& value : account.values) {
      INFO(machine.name << " " << value.key);
      CHECK_FALSE(value.source.empty());
      if (value.key == "name" || value.key == "description") continue;
      // Built-in machines have a source for everything that they give.
      CHECK(value.source != "no source is given");
    }
  }
}

TEST_CASE("Given, derived and assumed are told apart, by file, rule and what is left out") {
  const MachineAccount account = account_of_machine("rtx4090-2ssd", {"host.memory=64GiB"});
  const MachineValue memory = value_of(account, "gpu.memory");
  CHECK(memory.origin == Origin::assumed);  // "less 1 GB for a display (assumed)"
  CHECK(memory.value == "24380MB");         // of the file: gpu.context comes off it
  CHECK(memory.shown == "24.38 GB");
  CHECK(account.machine.gpu.memory == 23'100'000'000);
  const MachineValue flops = value_of(account, "gpu.flops");
  CHECK(flops.origin == Origin::given);
  CHECK(flops.shown == "160.3 TFLOPS");
  CHECK(value_of(account, "gpu.memory_bandwidth").shown == "1.008 TB/s");
  CHECK_THAT(flops.source, Catch::StartsWith("Ratel, ICDE 2025"));
  CHECK(value_of(account, "host.memory").source == "set on the command line");
  CHECK(value_of(account, "host.memory").origin == Origin::given);
  const MachineValue reserved = value_of(account, "host.reserved");
  CHECK(reserved.origin == Origin::derived);
  CHECK_THAT(reserved.source, Catch::Contains("host.reserved_share x host.memory"));
  const MachineValue adam = value_of(account, "gpu.adam_rate");
  CHECK(adam.origin == Origin::derived);
  CHECK(adam.shown == "36 Gparam/s");
  CHECK(value_of(account, "ssd.read").origin == Origin::derived);
  CHECK(value_of(account, "ssd.drive_read").shown == "7.2 GB/s");
  CHECK(value_of(account, "ssd.law").origin == Origin::assumed);
  const MachineValue pageable = value_of(account, "pcie.pageable_h2d");
  CHECK(pageable.origin == Origin::assumed);
  CHECK(pageable.shown == "-");
  CHECK(pageable.source == "left out: as pinned");
}

TEST_CASE("A file without sources: what it gives is given all the same") {
  const test::TemporaryFolder folder;
  const std::string path = write(folder, "m.toml", small_machine + small_drives);
  const MachineAccount account = account_of_machine(path, {"ssd.write=1GB/s"});
  CHECK(value_of(account, "pcie.h2d").origin == Origin::given);
  CHECK(value_of(account, "pcie.h2d").source == "no source is given");
  CHECK(value_of(account, "ssd.write").shown == "1 GB/s");
  CHECK(value_of(account, "ssd.law").origin == Origin::assumed);
  CHECK(value_of(account, "ssd.law").value == "capped");
  CHECK(value_of(account, "host.adam_rate").origin == Origin::derived);
  CHECK(account.concerns("ssd.law"));
  CHECK_FALSE(account.concerns("cluster.nic"));
  const MachineAccount bare = account_of_machine(write(folder, "bare.toml", small_machine));
  CHECK_FALSE(bare.concerns("ssd.law"));
  CHECK(bare.concerns("ssd.count"));
}

TEST_CASE("A usual value that a file gives is given, a zero without a source is not known") {
  const test::TemporaryFolder folder;
  const std::string path =
      write(folder, "m.toml",
            small_machine + small_drives + "law = \"capped\"\nread_latency = \"0us\"\n" +
                "write_latency = { value = \"0us\", source = \"datasheet\" }\n");
  const MachineAccount account = account_of_machine(path, {});
  CHECK(value_of(account, "ssd.law").origin == Origin::given);
  CHECK(value_of(account, "ssd.law").source == "no source is given");
  CHECK(value_of(account, "ssd.read_latency").origin == Origin::assumed);
  CHECK(value_of(account, "ssd.write_latency").origin == Origin::given);
  // Settings have their own source.
  CHECK(value_of(account_of_machine(path, {"ssd.law=capped"}), "ssd.law").source ==
        "set on the command line");
}

TEST_CASE("Tables: drives by number from the rates of one, or as the file has them") {
  const MachineAccount by_parts = account_of_machine("rtx4090+epyc-rome-512gb+5xpm9a3");
  const MachineTable& scaled = table_of(by_parts, "ssd.by_count");
  CHECK(scaled.origin == Origin::derived);
  CHECK_THAT(scaled.source, Catch::Contains("1 / ssd.path"));
  std::vector<std::string> counts;
  for (const auto& row : scaled.rows) counts.push_back(row.front());
  CHECK(counts == std::vector<std::string>{"1", "2", "4", "5", "8", "16", "32", "64"});
  const test::TemporaryFolder folder;
  const MachineAccount own =
      account_of_machine(write(folder, "m.toml", small_machine + small_table));
  CHECK(table_of(own, "ssd.by_count").rows.size() == 5);
  CHECK(table_of(own, "ssd.by_count").rows.back() ==
        std::vector<std::string>{"12", "20.0 GB/s", "20.0 GB/s", "20.0 GB/s"});
}
