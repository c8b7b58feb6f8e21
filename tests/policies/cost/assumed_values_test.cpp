// What of a machine is assumed, and its ranges: as docs/machine-files.md lists them.
#include "policies/cost/assumed_values.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "policies/machine/rank_share.hpp"
#include "test_paths.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway;

namespace {

const AssumedValue* find(const std::vector<AssumedValue>& all, const std::string& key) {
  for (const AssumedValue& one : all) {
    if (std::find(one.keys.begin(), one.keys.end(), key) != one.keys.end()) return &one;
  }
  return nullptr;
}

bool is_assumed(const Machine& machine, const std::string& key) {
  return find(assumed_values(machine), key) != nullptr;
}

Machine small(const std::string& more = small_drives,
              const std::vector<std::string>& overrides = {}) {
  return parse_machine(small_machine + more, "m.toml", overrides);
}

Machine at(const Machine& machine, const std::string& key, bool low) {
  const std::vector<AssumedValue> all = assumed_values(machine);
  const AssumedValue* one = find(all, key);
  REQUIRE(one != nullptr);
  Machine changed = machine;
  (low ? one->set_low : one->set_high)(changed);
  return changed;
}

}  // namespace

TEST_CASE("Assumed values are those of the file, also of a rank that has a part of them") {
  const Machine node = load_machine("a100-80gb-4gpu");
  const std::vector<AssumedValue> of_node = assumed_values(node),
                                  of_rank = assumed_values(rank_share(node, 4));
  REQUIRE(of_rank.size() == of_node.size());
  for (std::size_t k = 0; k < of_node.size(); ++k) {
    CHECK(of_rank[k].name() == of_node[k].name());
    CHECK(of_rank[k].value == of_node[k].value);
    CHECK(of_rank[k].low == of_node[k].low);
  }
  // What is set is the rank's.
  Machine lower = rank_share(node, 4);
  const AssumedValue* bandwidth = find(of_rank, "host.bandwidth");
  REQUIRE(bandwidth != nullptr);
  bandwidth->set_low(lower);
  CHECK(lower.host.bandwidth == Approx(0.8 * node.host.bandwidth / 4));
}

TEST_CASE("A file without law, pageable rate and Adam rates: these are assumed, with ranges") {
  const Machine machine = small();
  for (const char* key : {"ssd.law", "pcie.pageable_h2d", "pcie.pageable_d2h", "host.adam_rate",
                          "gpu.adam_rate", "pcie.total", "gpu.launch", "ssd.read_latency"}) {
    INFO(key);
    const std::vector<AssumedValue> all = assumed_values(machine);
    const AssumedValue* const one = find(all, key);
    REQUIRE(one != nullptr);
    CHECK(one->moves_time());
    CHECK_FALSE(one->low.empty());
    CHECK_FALSE(one->high.empty());
    CHECK_FALSE(one->range_source.empty());
  }
  // What the file gives is none.
  for (const char* key : {"gpu.flops", "pcie.h2d", "ssd.read", "ssd.write", "host.bandwidth"})
    CHECK_FALSE(is_assumed(machine, key));
}

TEST_CASE("A path and a ceiling of drives move no more than what follows from them") {
  const Machine four = load_machine("rtx4090+desktop-ddr5+4x990pro");
  const auto at_ceiling = [&](const Machine& machine, bool low) {
    return at(machine, "ssd.ceiling", low).ssd.read;
  };
  // One drive is far from the ceiling; many are held by it.
  const Machine one = load_machine("rtx4090+desktop-ddr5+1x990pro");
  const Machine many = load_machine("rtx4090+desktop-ddr5+16x990pro");
  REQUIRE(is_assumed(one, "ssd.ceiling"));
  CHECK(at_ceiling(one, true) == one.ssd.read);
  CHECK(at_ceiling(one, false) == one.ssd.read);
  CHECK(many.ssd.read == four.ssd.by_count.rbegin()->second.read);
  CHECK(at_ceiling(many, true) == Approx(0.8 * many.ssd.read));
  CHECK(at_ceiling(many, false) == Approx(1.2 * many.ssd.read));
  CHECK(at_ceiling(many, false) ==
        load_machine("rtx4090+desktop-ddr5+16x990pro", {"ssd.ceiling=25.92GB/s"}).ssd.read);
  // At the ceiling, but no faster without it.
  const std::string three = "rtx4090+desktop-ddr5+3xp5800x";
  CHECK(at_ceiling(load_machine(three), false) ==
        Approx(load_machine(three, {"ssd.ceiling=25.92GB/s"}).ssd.read));
  // A path, with and without a ceiling: as the machine with that path has it.
  for (const char* ceiling : {"", "ceiling = \"15GB/s\"\n"}) {
    for (const char* count : {"ssd.count=2", "ssd.count=4", "ssd.count=12"}) {
      const auto with_path = [&](const std::string& path) {
        return small(
            "[ssd]\ncount = 4\ncapacity = \"4TB\"\ndrive_read = \"6GB/s\"\n"
            "drive_write = \"3GB/s\"\npath = { value = \"" +
                path + "\", source = \"assumed\" }\n" + ceiling,
            {count});
      };
      INFO(ceiling << count);
      const Machine low = at(with_path("24GB/s"), "ssd.path", true);
      const Machine high = at(with_path("24GB/s"), "ssd.path", false);
      CHECK(low.ssd.read == Approx(with_path("19.2GB/s").ssd.read));
      CHECK(low.ssd.write == Approx(with_path("19.2GB/s").ssd.write));
      CHECK(high.ssd.read == Approx(with_path("28.8GB/s").ssd.read));
      CHECK(high.ssd.write == Approx(with_path("28.8GB/s").ssd.write));
    }
  }
}

TEST_CASE("What is given is not assumed: in the file, by a setting, or as a zero with a source") {
  CHECK_FALSE(is_assumed(small(small_drives + "law = \"simplex\"\n"), "ssd.law"));
  CHECK_FALSE(is_assumed(small(small_drives, {"ssd.law=duplex"}), "ssd.law"));
  CHECK_FALSE(is_assumed(small(small_drives, {"host.adam_rate=2Gparam/s"}), "host.adam_rate"));
  CHECK_FALSE(is_assumed(small(small_drives, {"pcie.latency=0ns"}), "pcie.latency"));
  const std::string zero = "read_latency = { value = \"0ns\", source = \"measured\" }\n";
  CHECK_FALSE(is_assumed(small(small_drives + zero), "ssd.read_latency"));
  // One of both pageable rates: the other alone is assumed.
  const Machine one_way = small(small_drives, {"pcie.pageable_h2d=3GB/s"});
  CHECK_FALSE(is_assumed(one_way, "pcie.pageable_h2d"));
  CHECK(is_assumed(one_way, "pcie.pageable_d2h"));
}

TEST_CASE("A source that says so makes a value assumed: a rate has a fifth on either side") {
  Machine machine = small();
  machine.sources["pcie.h2d"] = "assumed: four fifths of the data sheet";
  CHECK(at(machine, "pcie.h2d", true).pcie.h2d == Approx(0.8 * machine.pcie.h2d));
  CHECK(at(machine, "pcie.h2d", false).pcie.h2d == Approx(1.2 * machine.pcie.h2d));
  machine.sources["gpu.launch"] = "assumed: as others have it";
  machine.gpu.launch_ns = 7000;
  CHECK(at(machine, "gpu.launch", true).gpu.launch_ns == 0);
  CHECK(at(machine, "gpu.launch", false).gpu.launch_ns == 14'000);
  machine.sources["host.reserved_share"] = "assumed: some";
  const std::vector<AssumedValue> all = assumed_values(machine);
  REQUIRE(find(all, "host.reserved_share") != nullptr);
  CHECK_FALSE(find(all, "host.reserved_share")->moves_time());
  // What is left out is assumed to be none; one way to say what is set aside is enough.
  REQUIRE(find(all, "gpu.context") != nullptr);
  CHECK(find(all, "gpu.context")->value == "none");
  CHECK(find(all, "host.reserved") != nullptr);
  machine.host.reserved_share = 0.1;
  CHECK(find(assumed_values(machine), "host.reserved") == nullptr);
  CHECK(find(assumed_values(small(small_drives)), "ssd.cache") != nullptr);
}

TEST_CASE("Ends of ranges: laws of drives, pageable copies, Adam") {
  const Machine machine = small();
  CHECK(at(machine, "ssd.law", true).ssd.law == SsdLaw::simplex);
  CHECK(at(machine, "ssd.law", false).ssd.law == SsdLaw::duplex);
  const Machine slow = at(machine, "pcie.pageable_h2d", true);
  CHECK(slow.pcie.pageable_h2d == Approx(0.1 * machine.pcie.h2d));
  CHECK(slow.pcie.pageable_d2h == Approx(0.1 * machine.pcie.d2h));
  CHECK(at(machine, "pcie.pageable_h2d", false).pcie.pageable_h2d == 0);
  CHECK(at(machine, "host.adam_rate", true).host.adam_params_per_second ==
        Approx(0.4 * machine.host.adam_params_per_second));
  CHECK(at(machine, "gpu.adam_rate", true).gpu.adam_params_per_second ==
        Approx(0.8 * machine.gpu.adam_params_per_second));
}

TEST_CASE("With the law given, what the law needs beside it may be assumed") {
  const Machine capped = small(small_drives + "law = \"capped\"\n");  // 3 read, 2 written
  // As slow as reads and writes in turns, which leave reads alone as fast as they are.
  CHECK(at(capped, "ssd.total", true).ssd.law == SsdLaw::simplex);
  CHECK(at(capped, "ssd.total", false).ssd.total == Approx(5e9));
  CHECK(is_assumed(small(small_drives), "ssd.total"));  // with the law, in one range
  CHECK_FALSE(
      is_assumed(small(small_drives + "law = \"capped\"\ntotal = \"3GB/s\"\n"), "ssd.total"));
  const Machine mixed = small(small_drives + "law = \"mixed\"\n");
  CHECK(at(mixed, "ssd.mixed_gain", true).ssd.mixed_gain == 1);
  CHECK(at(mixed, "ssd.mixed_gain", false).ssd.mixed_gain == 2);
  CHECK_FALSE(is_assumed(mixed, "ssd.total"));
  const std::string rows = "by_read_share = [ { share = 0.5, gain = 1.3 } ]\n";
  CHECK_FALSE(is_assumed(small(small_drives + "law = \"mixed\"\n" + rows), "ssd.mixed_gain"));
}

TEST_CASE("Only what matters on the machine: drives, collectives, kernels of a GPU") {
  for (const AssumedValue& one : assumed_values(small(""))) {
    for (const std::string& key : one.keys) {
      INFO(key);
      CHECK(key.rfind("ssd.", 0) != 0);
      CHECK(key.rfind("cluster.", 0) != 0);
    }
  }
  const Machine two = small(small_drives + "[cluster]\ngpus = 2\n");
  CHECK(is_assumed(two, "cluster.nvlink_latency"));
  CHECK_FALSE(is_assumed(two, "cluster.nic_latency"));
  Machine measured = small();
  CHECK(is_assumed(measured, "gpu.multiprocessors"));
  measured.kernels.push_back({"forward", "some", 1e9, 1000, 0, {}});
  CHECK_FALSE(is_assumed(measured, "gpu.multiprocessors"));
  const Machine cpu = load_machine("testbed");
  for (const char* key : {"pcie.pageable_h2d", "host.core_bandwidth", "gpu.memory_bandwidth"})
    CHECK_FALSE(is_assumed(cpu, key));
}

TEST_CASE("Every range of the program is in docs/machine-files.md, and no other") {
  std::set<std::string> in_program;
  const auto take = [&](const Machine& machine) {
    for (const AssumedValue& one : assumed_values(machine)) {
      if (one.moves_time()) in_program.insert(one.keys.begin(), one.keys.end());
    }
  };
  // Machines on which every one of them is assumed, somewhere.
  const std::string cluster = "[cluster]\nnodes = 2\ngpus = 2\nnic = \"10GB/s\"\n";
  take(small(small_drives + cluster));
  take(small(small_drives + "law = \"capped\"\n"));
  take(small(small_drives + "law = \"mixed\"\n"));
  Machine all = small(small_drives + "law = \"capped\"\ntotal = \"3GB/s\"\n" + cluster);
  all.gpu.attention_flops = 1e12;
  all.host.core_bandwidth = 13e9;
  for (const std::string& key : machine_keys()) all.sources[key] = "assumed";
  all.sources["ssd.by_count"] = "assumed";
  all.sources["ssd.law"] = "measured";
  take(all);
  all = small(
      "[ssd]\ncount = 4\ncapacity = \"4TB\"\ndrive_read = \"6GB/s\"\ndrive_write = \"3GB/s\"\n"
      "path = { value = \"24GB/s\", source = \"assumed\" }\n"
      "ceiling = { value = \"15GB/s\", source = \"assumed\" }\n");
  take(all);
  all = small("", {"gpu.adam_rate=1Gparam/s"});
  all.gpu.memory_bandwidth = 0;
  take(all);

  std::ifstream page(SPILLWAY_SOURCE_DIR "/docs/machine-files.md");
  std::set<std::string> in_docs;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("#", 0) == 0) inside = line == "### Ranges of what is assumed";
    if (!inside || line.rfind("| `", 0) != 0) continue;
    // The keys of the first column.
    std::istringstream cell(line.substr(0, line.find('|', 1)));
    for (std::string part; std::getline(cell, part, '`');)
      if (part.find('.') != std::string::npos && part.find(' ') == std::string::npos)
        in_docs.insert(part);
  }
  CHECK(in_docs == in_program);
}
