// Built-in machines, round trips, --set, bandwidth by drives. Errors: machine_errors_test.cpp.
#include "policies/machine/machine.hpp"
#include "tests/policies/machine/machine_text.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "policies/model/model.hpp"
#include "test_paths.hpp"
#include "tests/policies/input_error.hpp"

using namespace spillway;

namespace {

const std::string small = R"(name = "small"
[gpu]
memory = "8GB"
flops = "10TFLOPS"
memory_bandwidth = "280GB/s"
[pcie]
h2d = "12GB/s"
d2h = "11GB/s"
[host]
memory = "32GB"
bandwidth = "56GB/s"
cores = 8
)";

void check_equal(const Machine& a, const Machine& b) {
  // The text holds every field with all its digits; what it says is checked field by field below.
  CHECK(machine_to_toml(a) == machine_to_toml(b));
  CHECK(a.gpu.memory == b.gpu.memory);
  CHECK(a.gpu.flops == b.gpu.flops);
  CHECK(a.gpu.launch_ns == b.gpu.launch_ns);
  CHECK(a.gpu.multiprocessors == b.gpu.multiprocessors);
  CHECK(a.gpu.attention_flops == b.gpu.attention_flops);
  CHECK(a.gpu.product_gain == b.gpu.product_gain);
  CHECK(a.gpu.clock == b.gpu.clock);
  CHECK(a.host.core_bandwidth == b.host.core_bandwidth);
  CHECK(a.host.io_bandwidth == b.host.io_bandwidth);
  REQUIRE(a.gpu.by_shape.size() == b.gpu.by_shape.size());
  for (std::size_t i = 0; i < a.gpu.by_shape.size(); ++i) {
    CHECK(a.gpu.by_shape[i].tokens == b.gpu.by_shape[i].tokens);
    CHECK(a.gpu.by_shape[i].hidden == b.gpu.by_shape[i].hidden);
    CHECK(a.gpu.by_shape[i].share == b.gpu.by_shape[i].share);
  }
  CHECK(a.host.wake_ns == b.host.wake_ns);
  CHECK(a.host.adam_params_per_second == b.host.adam_params_per_second);
  CHECK(a.host.cores == b.host.cores);
  CHECK(a.ssd.capacity == b.ssd.capacity);
  CHECK(a.ssd.tbw == b.ssd.tbw);
  CHECK(a.ssd.read == b.ssd.read);
  CHECK(a.ssd.law == b.ssd.law);
  CHECK(a.ssd.mixed_gain == b.ssd.mixed_gain);
  CHECK(a.ssd.by_read_share == b.ssd.by_read_share);
  CHECK(a.ssd.read_share_by_depth == b.ssd.read_share_by_depth);
  CHECK(a.ssd.cache == b.ssd.cache);
  CHECK(a.ssd.cache_write == b.ssd.cache_write);
  CHECK(a.ssd.cache_recovery == b.ssd.cache_recovery);
  CHECK(a.sources == b.sources);
  REQUIRE(a.ssd.by_count.size() == b.ssd.by_count.size());
  for (const auto& [count, row] : a.ssd.by_count) {
    REQUIRE(b.ssd.by_count.count(count) == 1);
    CHECK(row.read == b.ssd.by_count.at(count).read);
    CHECK(row.write == b.ssd.by_count.at(count).write);
    CHECK(row.total == b.ssd.by_count.at(count).total);
  }
  CHECK(a.ssd.queue_depth == b.ssd.queue_depth);
  REQUIRE(a.ssd.by_queue_depth.size() == b.ssd.by_queue_depth.size());
  for (const auto& [depth, row] : a.ssd.by_queue_depth) {
    REQUIRE(b.ssd.by_queue_depth.count(depth) == 1);
    CHECK(row.read == b.ssd.by_queue_depth.at(depth).read);
    CHECK(row.write == b.ssd.by_queue_depth.at(depth).write);
    CHECK(row.total == b.ssd.by_queue_depth.at(depth).total);
  }
  REQUIRE(a.references.size() == b.references.size());
  for (std::size_t i = 0; i < a.references.size(); ++i) {
    CHECK(a.references[i].kind == b.references[i].kind);
    CHECK(a.references[i].shape == b.references[i].shape);
    CHECK(a.references[i].median_ns == b.references[i].median_ns);
    CHECK(a.references[i].spread == b.references[i].spread);
    CHECK(a.references[i].samples_ns == b.references[i].samples_ns);
  }
  REQUIRE(a.trials.size() == b.trials.size());
  for (std::size_t i = 0; i < a.trials.size(); ++i) {
    const TrialTime &one = a.trials[i], &other = b.trials[i];
    CHECK(std::tie(one.policy, one.batch, one.micro_batch, one.predicted_ns, one.median_ns,
                   one.spread, one.samples_ns) ==
          std::tie(other.policy, other.batch, other.micro_batch, other.predicted_ns,
                   other.median_ns, other.spread, other.samples_ns));
  }
  REQUIRE(a.kernels.size() == b.kernels.size());
  for (std::size_t i = 0; i < a.kernels.size(); ++i) {
    CHECK(a.kernels[i].kind == b.kernels[i].kind);
    CHECK(a.kernels[i].shape == b.kernels[i].shape);
    CHECK(a.kernels[i].flops == b.kernels[i].flops);
    CHECK(a.kernels[i].median_ns == b.kernels[i].median_ns);
    CHECK(a.kernels[i].spread == b.kernels[i].spread);
    CHECK(a.kernels[i].samples_ns == b.kernels[i].samples_ns);
  }
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  REQUIRE(!text.str().empty());
  return text.str();
}

// The ```toml blocks of a Markdown file.
std::vector<std::string> toml_blocks(const std::string& markdown) {
  std::vector<std::string> blocks;
  const std::string fence = "```toml\n";
  for (std::size_t at = markdown.find(fence); at != std::string::npos;
       at = markdown.find(fence, at)) {
    at += fence.size();
    blocks.push_back(markdown.substr(at, markdown.find("```", at) - at));
  }
  return blocks;
}

}  // namespace

TEST_CASE("every built-in machine loads by name, and every number in its file has a source") {
  std::set<std::string> names;
  for (const Machine& machine : builtin_machines()) {
    INFO(machine.name);
    CHECK(names.insert(machine.name).second);
    check_equal(load_machine(machine.name), machine);
    CHECK(machine.description.size() > 10);
    if (machine.cluster.nodes > 1) continue;  // clusters without drives: cluster_test.cpp
    for (const char* key :
         {"gpu.memory",  "gpu.flops",      "gpu.adam_rate",    "gpu.launch",
          "pcie.h2d",    "pcie.d2h",       "pcie.total",       "pcie.latency",
          "host.memory", "host.bandwidth", "host.cores",       "host.adam_rate",
          "ssd.count",   "ssd.capacity",   "ssd.read",         "ssd.write",
          "ssd.total",   "ssd.law",        "ssd.read_latency", "ssd.write_latency"}) {
      INFO(key);
      CHECK(machine.sources.count(key) == 1);
    }
  }
  const std::set<std::string> expected = {
      "a100-40gb-ssdtrain", "a100-80gb",        "a100-80gb-4gpu",
      "a100-roce-cluster",  "a800-cluster",     "h100-80gb",
      "h100-80gb-8gpu",     "h100-mlp-offload", "h200",
      "rtx-a6000-1ssd",     "rtx-a6000-2ssd",   "rtx3090-12ssd",
      "rtx3090-1ssd",       "rtx3090-2ssd",     "rtx4080-12ssd",
      "rtx4090-12ssd",      "rtx4090-1ssd",     "rtx4090-2ssd",
      "rtx5090-1ssd",       "rtx5090-2ssd",     "testbed"};
  CHECK(names == expected);
}

TEST_CASE("testbed: the CPU stands in for the GPU") {
  const Machine machine = load_machine("testbed");
  CHECK(machine.gpu.is_cpu);
  CHECK(machine.gpu.memory == 64'000'000);
  CHECK(machine.host.memory == 256'000'000);
  CHECK(machine.gpu.flops == 90e9);
  CHECK(machine.ssd.read == 0.8e9);
  CHECK(machine.ssd.write == 0.5e9);
  CHECK(machine.ssd.total == 0.9e9);
  CHECK(machine.ssd.law == SsdLaw::capped);
}

TEST_CASE("a machine file may leave out what has a default") {
  const Machine machine = parse_machine(small, "small.toml");
  CHECK(machine.ssd.count == 0);
  CHECK(machine.ssd.law == SsdLaw::capped);
  CHECK(machine.pcie.total == 0);
  CHECK(machine.gpu.launch_ns == 0);
  CHECK_FALSE(machine.gpu.is_cpu);
  CHECK(machine.host.adam_bytes_per_param == 28);
  CHECK(machine.gpu.adam_params_per_second == 10e9);  // 280 GB/s / 28 B
  CHECK(machine.host.adam_params_per_second == 2e9);  // 56 GB/s / 28 B
  CHECK(machine.sources.size() == 2);                 // the two derived rates
  CHECK(machine.sources.at("host.adam_rate").rfind("derived", 0) == 0);
}

TEST_CASE("the CPU Adam rate is min(cores x 1.2 Gparam/s, bandwidth / bytes), and follows --set") {
  CHECK(parse_machine(small, "s", {"host.cores=1"}).host.adam_params_per_second == 1.2e9);
  CHECK(parse_machine(small, "s", {"host.adam_cores=1"}).host.adam_params_per_second == 1.2e9);
  CHECK(parse_machine(small, "s", {"host.bandwidth=28GB/s"}).host.adam_params_per_second == 1e9);
  CHECK(parse_machine(small, "s", {"host.adam_bytes_per_param=56"}).host.adam_params_per_second ==
        1e9);
  CHECK(parse_machine(small, "s", {"host.adam_rate=3Gparam/s"}).host.adam_params_per_second == 3e9);
}

TEST_CASE("a value with a source, inline or as dotted keys, and sources of their own") {
  const Machine machine = parse_machine(
      small +
          "adam_cores = { value = 4, source = \"numactl\" }\nadam_rate.value = \"1Gparam/s\"\n"
          "adam_rate.source = \"timed\"\n[sources]\n\"ssd.by_count\" = \"fio\"\nhost.memory = "
          "\"dmidecode\"\n",
      "small.toml");
  CHECK(machine.host.adam_cores == 4);
  CHECK(machine.host.adam_params_per_second == 1e9);
  CHECK(machine.sources.at("host.adam_cores") == "numactl");
  CHECK(machine.sources.at("host.adam_rate") == "timed");
  CHECK(machine.sources.at("ssd.by_count") == "fio");
  CHECK(machine.sources.at("host.memory") == "dmidecode");
}

TEST_CASE("a built-in machine written as TOML reads back the same") {
  for (const Machine& machine : builtin_machines()) {
    INFO(machine.name);
    check_equal(parse_machine(machine_to_toml(machine), "written"), machine);
  }
}

TEST_CASE(
    "any machine written as TOML reads back bit for bit: random rates, kernels with samples") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto rate = [&] { return std::exp(std::uniform_real_distribution<double>(0, 45)(random)); };
  const auto whole = [&] {
    return std::uniform_int_distribution<std::int64_t>(1, 1'000'000'000'000'000)(random);
  };
  const auto share = [&] { return std::uniform_real_distribution<double>(1e-9, 1)(random); };
  for (int round = 0; round < 100; ++round) {
    Machine machine = parse_machine(small, "small.toml");
    machine.description = "two\nlines, \"quoted\", größe";
    machine.gpu.memory = static_cast<std::uint64_t>(whole());
    machine.gpu.flops = rate();
    machine.gpu.launch_ns = whole() % 1'000'000'000'000;
    machine.gpu.multiprocessors = whole() % 1'000'000;
    machine.gpu.attention_flops = rate();
    machine.gpu.product_gain = 1 + share();
    machine.gpu.clock = 0.001 + 0.999 * share();
    machine.gpu.by_shape = {{1024, 4096, share()}, {1 + whole() % 1'000'000, 5120, share()}};
    machine.host.core_bandwidth = rate();
    machine.host.io_bandwidth = rate();
    machine.pcie.total = rate();
    machine.host.cores = 0.5 + 1000 * share();
    machine.host.wake_ns = whole() % 1'000'000'000'000;
    machine.host.adam_params_per_second = rate();
    machine.ssd.count = 3;
    machine.ssd.capacity = static_cast<std::uint64_t>(whole());
    machine.ssd.read = rate();
    machine.ssd.write = rate();
    machine.ssd.law = static_cast<SsdLaw>(round % 4);
    machine.ssd.by_count = {{2, {rate(), rate(), 0}}, {7, {rate(), rate(), rate()}}};
    machine.ssd.queue_depth = 1 + whole() % deepest_queue;
    machine.ssd.by_queue_depth = {{1 / 3.0, {share(), share(), 0}},
                                  {1 + 1000 * share(), {share(), share(), share()}}};
    machine.ssd.mixed_gain = 1 + share();
    machine.ssd.by_read_share = {{0.5 * share(), 1 + share()}, {1 - 0.4 * share(), 1 + share()}};
    if (round % 2 == 0)
      machine.ssd.read_share_by_depth = {{4, {{0.5, 1 + share()}}}, {32, {{0.5, 1 + share()}}}};
    machine.ssd.cache = static_cast<std::uint64_t>(whole());
    machine.ssd.cache_write = rate();
    machine.ssd.cache_recovery = rate();
    machine.kernels = {{"forward", "gpt,C128", rate(), whole(), 0.1, {whole(), whole(), 0}},
                       {"backward", "gpt,\"odd\"", 0, whole(), 0, {}}};
    machine.references = {{"compute", "gpt-small,b2", 0, whole(), 0.1, {whole(), whole()}},
                          {"write", "bytes=33554432,drives=1", 0, whole(), 0, {}}};
    machine.trials = {{"fuyou:swap=auto", 8, 4, 1 + whole(), 1 + whole(), 0.1, {whole()}}};
    machine.sources["kernel"] = "measured";
    check_equal(parse_machine(machine_to_toml(machine), "written"), machine);
  }
}

TEST_CASE("option --set overrides any key, in order, and says so in the sources") {
  const Machine machine =
      load_machine("a100-80gb", {"host.memory=256GB", "gpu.flops=1TFLOPS", "gpu.flops=100TFLOPS",
                                 "ssd.law=duplex", "pcie.latency=2ms", "gpu.is_cpu=true",
                                 "host.cores=12.5", "ssd.read=3GB/s"});
  CHECK(machine.host.memory == 256'000'000'000);
  CHECK(machine.gpu.flops == 100e12);
  CHECK(machine.ssd.law == SsdLaw::duplex);
  CHECK(machine.pcie.latency_ns == 2'000'000);
  CHECK(machine.gpu.is_cpu);
  CHECK(machine.host.cores == 12.5);
  CHECK(machine.ssd.read == 3e9);
  CHECK(machine.ssd.write == 5e9);
  CHECK(machine.sources.at("gpu.flops") == "set on the command line");
  CHECK(machine.sources.at("ssd.write") == "ssd.by_count at 4 drives");
}

TEST_CASE(
    "option --set ssd.count: rows of the table, straight lines between, in proportion below, flat "
    "beyond") {
  const auto drives = [](int count) {
    return parse_machine(small_machine + small_table, "m.toml",
                         {"ssd.count=" + std::to_string(count)})
        .ssd;
  };
  CHECK(drives(1).read == 4.2e9);
  CHECK(drives(2).read == 7.4e9);
  CHECK(drives(3).write == 9.9e9);
  CHECK(drives(6).total == 16e9);
  CHECK(drives(4).read == Approx(9.9e9 + (16e9 - 9.9e9) / 3));
  CHECK(drives(9).write == Approx(18e9));
  CHECK(drives(24).read == 20e9);
  CHECK(drives(6).capacity == 6 * 3'840'000'000'000);
  CHECK(drives(24).capacity == 24 * 3'840'000'000'000);

  const Machine::Ssd below = load_machine("h200", {"ssd.count=1"}).ssd;  // the table begins at 4
  CHECK(below.read == Approx(27e9 / 4));
  CHECK(below.write == Approx(11e9 / 4));
  CHECK(load_machine("h200", {"ssd.count=6"}).ssd.write == Approx((11e9 + 26e9) / 2));
}

TEST_CASE("option --set ssd.count with other ssd keys: those win, in either order") {
  for (const auto& overrides :
       {std::vector<std::string>{"ssd.count=6", "ssd.read=1GB/s", "ssd.capacity=9TB"},
        std::vector<std::string>{"ssd.read=1GB/s", "ssd.capacity=9TB", "ssd.count=6"}}) {
    const Machine::Ssd ssd = parse_machine(small_machine + small_table, "m.toml", overrides).ssd;
    CHECK(ssd.read == 1e9);
    CHECK(ssd.write == 16e9);
    CHECK(ssd.capacity == 9'000'000'000'000);
  }
  CHECK(load_machine("rtx4090-12ssd", {"ssd.count=0"}).ssd.capacity == 0);
  CHECK(load_machine("rtx4090-12ssd", {"ssd.count=0"}).ssd.read == 0);
}

TEST_CASE("option --set ssd.count to what the file says changes nothing but its source") {
  Machine same = load_machine("testbed", {"ssd.count=1"});
  same.sources["ssd.count"] = load_machine("testbed").sources["ssd.count"];
  check_equal(same, load_machine("testbed"));
}

TEST_CASE("without a table of drives another count needs its bandwidths") {
  check_error([] { load_machine("testbed", {"ssd.count=2"}); },
              "ssd.count=2: ssd.count: no bandwidths are known for 2 drives", "[[ssd.by_count]]");
  const Machine::Ssd ssd =
      load_machine("testbed", {"ssd.count=2", "ssd.read=2GB/s", "ssd.write=1GB/s"}).ssd;
  CHECK(ssd.read == 2e9);
  CHECK(ssd.total == 0);  // the larger of both
  CHECK(ssd.capacity == 8'000'000'000);
}

TEST_CASE("bandwidths of the file win over its table, for the file's own count") {
  const std::string text = small +
                           "[ssd]\ncount = 2\ncapacity = \"1TB\"\nread = \"5GB/s\"\n"
                           "[[ssd.by_count]]\ncount = 2\nread = \"6GB/s\"\nwrite = \"3GB/s\"\n";
  CHECK(parse_machine(text, "t").ssd.read == 5e9);
  CHECK(parse_machine(text, "t").ssd.write == 3e9);
  CHECK(parse_machine(text, "t", {"ssd.count=1"}).ssd.read == 3e9);
}

namespace {

// Two drives; with 8 requests in flight they give all they have.
const std::string deep = small + R"([ssd]
count = 2
capacity = "2TB"
[[ssd.by_count]]
count = 2
read = "6GB/s"
write = "4GB/s"
total = "8GB/s"
[[ssd.by_count]]
count = 4
read = "10GB/s"
write = "6GB/s"
[[ssd.by_queue_depth]]
depth = 2
read = 0.25
write = 0.5
total = 0.4
[[ssd.by_queue_depth]]
depth = 8
read = 1
write = 1
)";

Machine::Ssd::Row at_depth(std::vector<std::string> overrides) {
  return parse_machine(deep, "deep.toml", overrides).ssd.at_queue_depth();
}

}  // namespace

TEST_CASE(
    "queue depth: rows of the table, straight lines between, in proportion below, flat beyond") {
  // The full bandwidths are 6, 4, 8 GB/s.
  CHECK(at_depth({}).read == 6e9);  // 32, as the executor has: beyond the last row
  CHECK(at_depth({"ssd.queue_depth=8"}).write == 4e9);
  CHECK(at_depth({"ssd.queue_depth=2"}).read == 0.25 * 6e9);
  CHECK(at_depth({"ssd.queue_depth=2"}).write == 0.5 * 4e9);
  CHECK(at_depth({"ssd.queue_depth=2"}).total == 0.4 * 8e9);
  CHECK(at_depth({"ssd.queue_depth=1"}).read == Approx(0.125 * 6e9));
  // Half way from 2 to 8; a total that a row leaves out is the larger of its two shares.
  CHECK(at_depth({"ssd.queue_depth=5"}).read == Approx(0.625 * 6e9));
  CHECK(at_depth({"ssd.queue_depth=5"}).total == Approx(0.7 * 8e9));
  CHECK(at_depth({"ssd.queue_depth=4096"}).total == 8e9);
  // A bandwidth that is set is the full one.
  CHECK(at_depth({"ssd.queue_depth=2", "ssd.read=20GB/s"}).read == 5e9);
}

TEST_CASE("keys that a machine does not have are not in its text") {
  const std::string text = machine_to_toml(parse_machine(small, "small.toml"));
  for (const char* key : {"mixed_gain", "cache", "by_read_share"})
    CHECK(text.find(key) == std::string::npos);
}

TEST_CASE("queue depth and number of drives: each drive needs its own requests") {
  // Four drives: 10 GB/s, reached with 16 requests, a quarter of it with 4.
  CHECK(at_depth({"ssd.count=4"}).read == 10e9);
  CHECK(at_depth({"ssd.count=4", "ssd.queue_depth=16"}).read == 10e9);
  CHECK(at_depth({"ssd.count=4", "ssd.queue_depth=4"}).read == 2.5e9);
  CHECK(at_depth({"ssd.queue_depth=10", "ssd.count=4"}).read == Approx(6.25e9));
  // One drive: half the bandwidth of two, a quarter of it with a single request.
  CHECK(at_depth({"ssd.count=1", "ssd.queue_depth=1"}).read == 0.75e9);
  // What is written reads back as it is, and is not scaled again.
  const Machine scaled = parse_machine(deep, "deep.toml", {"ssd.count=3", "ssd.queue_depth=7"});
  check_equal(parse_machine(machine_to_toml(scaled), "written"), scaled);
  CHECK(parse_machine(machine_to_toml(scaled), "written").ssd.at_queue_depth().write ==
        scaled.ssd.at_queue_depth().write);
}

TEST_CASE("without a table of queue depths only the executor's own depth is known") {
  CHECK(load_machine("h200", {"ssd.queue_depth=32"}).ssd.at_queue_depth().read ==
        load_machine("h200").ssd.read);
  check_error([] { load_machine("h200", {"ssd.queue_depth=4"}); },
              "ssd.queue_depth=4: ssd.queue_depth: nothing is known of the drives at depth 4",
              "spillway calibrate");
  check_error([] { at_depth({"ssd.queue_depth=0"}); },
              "ssd.queue_depth=0: ssd.queue_depth: 0 requests are not possible", "1 to 4096");
  check_error([] { at_depth({"ssd.queue_depth=4097"}); },
              "ssd.queue_depth=4097: ssd.queue_depth: 4097 requests are not possible", "1 to 4096");
}

TEST_CASE("a machine is a built-in name or a path") {
  const std::string path = "machine_test_small.toml";
  std::ofstream(path) << small;
  CHECK(load_machine(path, {"host.cores=3"}).host.cores == 3);
  std::remove(path.c_str());
  check_error([] { load_machine("h20"); }, "unknown machine h20", "did you mean h200?");
  check_error([] { load_machine("dgx/a.toml"); }, "dgx/a.toml: cannot read: No such file",
              "spelling");
}

TEST_CASE("docs/machine-files.md: its examples load, and it lists every key") {
  const std::string text = read_text(std::string(SPILLWAY_SOURCE_DIR) + "/docs/machine-files.md");
  int machines = 0, models = 0;
  for (const std::string& block : toml_blocks(text)) {
    INFO(block);
    if (block.find("[[model]]") != std::string::npos) {
      CHECK_NOTHROW(parse_model(block, "docs"));
      ++models;
    } else {
      CHECK_NOTHROW(parse_machine(block, "docs"));
      ++machines;
    }
  }
  CHECK(machines >= 1);
  CHECK(models >= 1);
  std::istringstream written(machine_to_toml(load_machine("testbed")));
  std::string section;
  int keys = 0;
  for (std::string line; std::getline(written, line);) {
    if (!line.empty() && line[0] == '[') section = line.substr(1, line.find(']') - 1) + ".";
    const std::size_t equals = line.find(" = ");
    if (equals == std::string::npos) continue;
    INFO(section + line.substr(0, equals));
    CHECK(text.find("`" + section + line.substr(0, equals) + "`") != std::string::npos);
    ++keys;
  }
  CHECK(keys == 36);
}
