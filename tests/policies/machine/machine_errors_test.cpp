// Every error path of a machine file and of --set: the place, what is wrong, the hint.
#include <catch2/catch.hpp>

#include <string>

#include "policies/machine/machine.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway;

namespace {

// Line numbers in the expectations below are lines of this text.
const std::string file = small_machine + small_drives + R"([[ssd.by_count]]
count = 1
read = "1GB/s"
write = "1GB/s"
[[kernel]]
kind = "forward"
shape = "gpt"
median_ns = 12
samples_ns = [11, 12, 13]
)";

// The file with one piece of text exchanged.
auto with(const std::string& from, const std::string& to) {
  std::string text = file;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  return [text] { parse_machine(text, "m.toml"); };
}

auto set(const std::string& text) {
  return [text] { parse_machine(file, "m.toml", {text}); };
}

}  // namespace

TEST_CASE("the file that the errors start from is sound") {
  CHECK_NOTHROW(parse_machine(file, "m.toml"));
}

TEST_CASE("machine file: syntax, unknown keys and sections") {
  check_error(with("\"8GB\"", "\"8GB"), "m.toml:3:", "docs/machine-files.md");
  check_error(with("flops", "memory"), "m.toml:4:", "");  // twice in one table
  check_error(with("flops", "flop"), "m.toml:4:1: unknown key gpu.flop", "did you mean gpu.flops?");
  check_error(with("[pcie]", "[pci]"), "m.toml:6:2: unknown key pci", "did you mean pcie?");
  check_error(with("name = \"m\"", "name = \"m\"\nmemory = \"8GB\""),
              "m.toml:2:1: unknown key memory", "gpu.memory or host.memory");
  check_error(with("[gpu]", "[[gpu]]"), "m.toml:2:1: gpu is not a table", "write [gpu]");
}

TEST_CASE("machine file: wrong kind of value, wrong unit") {
  check_error(with("\"8GB\"", "8"), "m.toml:3:10: gpu.memory is an integer", "memory = \"24GB\"");
  check_error(with("\"8GB\"", "8.5"), "m.toml:3:10: gpu.memory is a number", "memory = \"24GB\"");
  check_error(with("\"8GB\"", "[\"8GB\"]"), "m.toml:3:10: gpu.memory is an array",
              "memory = \"24GB\"");
  check_error(with("\"8GB\"", "2024-01-01"), "m.toml:3:10: gpu.memory is a date",
              "memory = \"24GB\"");
  check_error(with("\"8GB\"", "\"8GB/s\""), "m.toml:3:10: gpu.memory: \"8GB/s\" is not a size",
              "24GB");
  check_error(with("\"12GB/s\"", "\"12GB\""), "m.toml:7:7: pcie.h2d: \"12GB\" is not a bandwidth",
              "21GB/s");
  check_error(with("\"12GB/s\"", "\"-12GB/s\""), "m.toml:7:7: pcie.h2d: \"-12GB/s\" is not",
              "21GB/s");
  check_error(with("cores = 8", "cores = \"8\""), "m.toml:12:9: host.cores is a string",
              "cores = 16");
  check_error(with("cores = 8", "cores = -8"), "m.toml:12:9: host.cores: \"-8\" is not a number",
              "0.5");
  check_error(with("cores = 8", "cores = inf"), "m.toml:12:9: host.cores: \"inf\" is not a number",
              "0.5");
  check_error(with("count = 2", "count = 2.5"), "m.toml:14:9: ssd.count: \"2.5\" is not a whole",
              "12");
  check_error(with("[gpu]", "[gpu]\nis_cpu = 1"), "m.toml:3:10: gpu.is_cpu is an integer",
              "is_cpu = true");
  check_error(with("count = 2", "law = \"simple\"\ncount = 2"),
              "m.toml:14:7: ssd.law: unknown value \"simple\"", "did you mean simplex?");
}

TEST_CASE("machine file: a value with a source") {
  check_error(with("\"8GB\"", "{ value = \"8GB\", sorce = \"x\" }"),
              "m.toml:3:27: unknown key gpu.memory.sorce", "known: value, source");
  check_error(with("\"8GB\"", "{ source = \"x\" }"), "m.toml:3:10: gpu.memory has no value",
              "memory = { value = \"24GB\"");
  check_error(with("\"8GB\"", "{ value = \"8GB\", source = 3 }"),
              "m.toml:3:27: gpu.memory: source is not a string", "datasheet");
  check_error(with("\"8GB\"", "{ value = 8 }"), "m.toml:3:20: gpu.memory is an integer", "24GB");
  check_error(with("name = \"m\"", "name = \"m\"\nsources = 3"),
              "m.toml:2:11: a source is not a string", "[sources]");
  check_error(with("name = \"m\"", "name = \"m\"\nsources = \"x\""),
              "m.toml:2:11: a source is not a string", "[sources]");
  check_error(with("name = \"m\"", "name = \"m\"\nsources.a.b = 3"),
              "m.toml:2:15: a source is not a string", "[sources]");
}

TEST_CASE("machine file: what is missing is reported at its section") {
  check_error(with("name = \"m\"\n", ""), "m.toml:1:1: name is missing",
              "add for example name = \"my-machine\"");
  check_error(with("flops = \"10TFLOPS\"\n", ""), "m.toml:2:1: gpu.flops is missing",
              "add for example flops = \"160TFLOPS\" under [gpu]");
  check_error(with("d2h = \"11GB/s\"\n", ""), "m.toml:6:1: pcie.d2h is missing", "under [pcie]");
  check_error(with("cores = 8\n", ""), "m.toml:9:1: host.cores is missing", "under [host]");
  check_error(with("capacity = \"1TB\"\n", ""), "m.toml:13:1: ssd.capacity is missing",
              "under [ssd]");
  check_error(with("memory_bandwidth = \"280GB/s\"\n", ""),
              "m.toml:2:1: gpu.memory_bandwidth is missing", "under [gpu]");
  check_error(with("memory_bandwidth = \"280GB/s\"\n", "memory_bandwidth = \"0B/s\"\n"),
              "m.toml:2:1: gpu.adam_rate: it is missing", "one of the two");
  check_error([] { parse_machine("name = \"a\"\n", "m.toml"); },
              "m.toml:1:1: gpu.memory, gpu.flops, gpu.memory_bandwidth, pcie.h2d, pcie.d2h, "
              "host.memory, host.bandwidth, host.cores are missing",
              "memory_bandwidth = \"1000GB/s\" under [gpu]; h2d = \"21GB/s\", ");
  check_error([] { parse_machine("name = \"a\"\n", "m.toml"); }, "m.toml:1:1: gpu.memory, ",
              "; or begin with known parts, as parts = \"rtx3090+desktop-ddr4+2x990pro\"");
  check_error([] { parse_machine("", "m.toml"); }, "m.toml:1:1: name, gpu.memory, ",
              "name = \"my-machine\"; memory = ");
  std::string no_table = file.substr(0, file.find("[[ssd"));
  no_table.replace(no_table.find("write = \"2GB/s\"\n"), 16, "");
  check_error([&] { parse_machine(no_table, "m.toml"); }, "m.toml:13:1: ssd.write is missing",
              "under [ssd]");
}

TEST_CASE("machine file: numbers that make no sense") {
  check_error(with("\"8GB\"", "\"0B\""), "m.toml:3:10: gpu.memory: it is zero", "24GB");
  check_error(with("\"10TFLOPS\"", "\"0FLOPS\""), "m.toml:4:9: gpu.flops: it is zero", "160TFLOPS");
  check_error(with("\"3GB/s\"", "\"0B/s\""), "m.toml:16:8: ssd.read: it is zero", "7GB/s");
  check_error(with("cores = 8", "cores = 8\nadam_cores = 9"),
              "m.toml:13:14: host.adam_cores: 9 is more than host.cores = 8", "raise host.cores");
  check_error(with("count = 2", "count = 2\ncores = 8.5"),
              "m.toml:15:9: ssd.cores: 8.5 is more than", "lower it");
  check_error(with("count = 2", "count = 2000000"),
              "m.toml:14:9: ssd.count: 2000000 drives are too many", "");
  check_error(with("\"m\"", "\"\""), "m.toml:1:8: name: it is empty", "");
}

TEST_CASE("machine file: the table of drives") {
  check_error(with("[[ssd.by_count]]", "[ssd.by_count]"), "m.toml:18:1: ssd.by_count is not a list",
              "two brackets");
  check_error(with("count = 1\n", ""), "m.toml:18:1: count is missing", "count = 12");
  check_error(with("count = 1\nread = \"1GB/s\"\n", "count = 1\n"), "m.toml:18:1: read is missing",
              "read = ");
  check_error(with("count = 1\n", "count = 0\n"), "m.toml:19:9: count: it is zero", "one drive");
  check_error(with("read = \"1GB/s\"", "read = \"0B/s\""), "m.toml:20:8: read: it is zero",
              "4.2GB/s");
  check_error(with("write = \"1GB/s\"", "write = \"0B/s\""), "m.toml:21:9: write: it is zero",
              "4.2GB/s");
  check_error(with("count = 1\n", "cuont = 1\n"), "m.toml:19:1: unknown key cuont",
              "did you mean count?");
  check_error(with("read = \"1GB/s\"", "read = { value = \"1GB/s\" }"),
              "m.toml:20:8: read is a table", "21GB/s");
  check_error(with("[[kernel]]",
                   "[[ssd.by_count]]\ncount = 1\nread = \"1GB/s\"\nwrite = \"1GB/s\"\n[[kernel]]"),
              "m.toml:23:9: count: there are two rows for 1 drives", "keep one");
}

TEST_CASE("machine file: the table of shapes") {
  const auto row = [](const std::string& text) {
    return with("[[kernel]]", "[[gpu.by_shape]]\n" + text + "\n[[kernel]]");
  };
  CHECK_NOTHROW(row("tokens = 1024\nhidden = 4096\nshare = 0.7")());
  check_error(row("tokens = 1024\nhidden = 4096"), "m.toml:22:1: share is missing", "share = ");
  check_error(row("tokens = 0\nhidden = 4096\nshare = 1"), "m.toml:23:10: tokens: 0 is no size",
              "1 to 1e9");
  check_error(row("tokens = 1\nhidden = 1\nshare = 0"), "m.toml:25:9: share: 0 is not a share",
              "about 1");
  check_error(row("tokens = 1\nhidden = 1\nshare = 3"), "m.toml:25:9: share: 3 is not a share",
              "about 1");
  check_error(row("tokens = 1\nhidden = 1\nshare = 1\n[[gpu.by_shape]]\ntokens = 1\nhidden = 1\n"
                  "share = 1"),
              "m.toml:27:10: tokens: there are two rows", "keep one");
  check_error(with("[gpu]", "[gpu]\nproduct_gain = 0.5"), "m.toml:3:16: gpu.product_gain: 0.5 is",
              "");
  check_error(with("[gpu]", "[gpu]\nclock = 0"), "m.toml:3:9: gpu.clock: it is zero",
              "for example 1");
  check_error(with("[gpu]", "[gpu]\nclock = 1.5"), "m.toml:3:9: gpu.clock: 1.5 is outside", "unit");
}

TEST_CASE("machine file: the table of queue depths") {
  const auto row = [](const std::string& text) {
    return with("[[kernel]]", "[[ssd.by_queue_depth]]\n" + text + "\n[[kernel]]");
  };
  CHECK_NOTHROW(row("depth = 1\nread = 0.5\nwrite = 1")());
  check_error(with("[[kernel]]", "[ssd.by_queue_depth]\ndepth = 1\n[[kernel]]"),
              "m.toml:22:1: ssd.by_queue_depth is not a list", "two brackets");
  check_error(row("read = 0.5\nwrite = 1"), "m.toml:22:1: depth is missing", "depth = ");
  check_error(row("depth = 1\nwrite = 1"), "m.toml:22:1: read is missing", "read = ");
  check_error(row("depth = 0\nread = 0.5\nwrite = 1"), "m.toml:23:9: depth: it is zero",
              "one request");
  check_error(row("depth = 1\nread = 0\nwrite = 1"), "m.toml:24:8: read: 0 is not a share",
              "at most 1");
  check_error(row("depth = 1\nread = 1\nwrite = 1.5"), "m.toml:25:9: write: 1.5 is not a share",
              "at most 1");
  check_error(row("depth = 1\nread = 1\nwrite = 1\ntotal = 2"),
              "m.toml:26:9: total: 2 is not a share of ssd.total", "at most 1");
  check_error(row("depth = 1\nread = \"1GB/s\"\nwrite = 1"), "m.toml:24:8: read", "");
  check_error(row("depth = 1\nread = 1\nwrite = 1\n[[ssd.by_queue_depth]]\ndepth = 1\nread = 1\n"
                  "write = 1"),
              "m.toml:27:9: depth: there are two rows for depth 1", "keep one");
  check_error(row("depht = 1\nread = 1\nwrite = 1"), "m.toml:23:1: unknown key depht",
              "did you mean depth?");
}

TEST_CASE("machine file: measured kernels") {
  check_error(with("[[kernel]]", "[kernel]"), "m.toml:22:1: kernel is not a list of tables",
              "two brackets");
  check_error(with("\"forward\"", "\"foward\""), "m.toml:23:8: kind: unknown value \"foward\"",
              "forward");
  check_error(with("kind = \"forward\"\n", ""), "m.toml:22:1: kind is missing", "kind = ");
  check_error(with("shape = \"gpt\"\n", ""), "m.toml:22:1: shape is missing", "shape = ");
  check_error(with("median_ns = 12\n", ""), "m.toml:22:1: median_ns is missing", "median_ns = 12");
  check_error(with("median_ns", "mediam_ns"), "m.toml:25:1: unknown key mediam_ns", "median_ns");
  check_error(with("[11, 12, 13]", "[11, -12]"), "m.toml:26:19: samples_ns: a sample is not",
              "samples_ns = [");
  check_error(with("[11, 12, 13]", "[11, \"a\"]"), "m.toml:26:19: samples_ns: a sample is not",
              "samples_ns = [");
  check_error(with("[11, 12, 13]", "11"), "m.toml:26:14: samples_ns is not an array",
              "samples_ns = [");
}

TEST_CASE("machine file: reference kernels") {
  const auto row = [](const std::string& text) {
    return with("[[kernel]]", "[[reference]]\n" + text + "\n[[kernel]]");
  };
  CHECK_NOTHROW(row("kind = \"adam\"\nshape = \"s\"\nmedian_ns = 1")());
  check_error(with("[[kernel]]", "[reference]\nkind = \"adam\"\n[[kernel]]"),
              "m.toml:22:1: reference is not a list of tables", "two brackets");
  check_error(row("kind = \"forward\"\nshape = \"s\"\nmedian_ns = 1"),
              "m.toml:23:8: kind: unknown value \"forward\"", "compute");
  check_error(row("kind = \"adam\"\nshape = \"s\""), "m.toml:22:1: median_ns is missing",
              "median_ns = 12");
  check_error(row("kind = \"adam\"\nshape = \"s\"\nflops = 1\nmedian_ns = 1"),
              "m.toml:25:1: unknown key flops", "");
}

TEST_CASE("machine file: trials") {
  const auto row = [](const std::string& times) {
    return with("[[kernel]]", "[[trial]]\npolicy = \"resident\"\nbatch = 2\nmicro_batch = 1\n" +
                                  times + "\n[[kernel]]");
  };
  CHECK_NOTHROW(row("predicted_ns = 3\nmedian_ns = 2")());
  check_error(row("predicted_ns = 3"), "m.toml:22:1: median_ns is missing", "");
  check_error(row("predicted_ns = 0\nmedian_ns = 2"), "m.toml:22:1: a trial's step takes no time",
              "leave the trial out");
}

TEST_CASE("option --set: every error names the override") {
  check_error(set("gpu.flop=1TFLOPS"), "gpu.flop=1TFLOPS: unknown key gpu.flop",
              "did you mean gpu.flops?");
  check_error(set("memory=1GB"), "memory=1GB: unknown key memory", "gpu.memory or host.memory");
  check_error(set("gpu.memory"), "gpu.memory: not of the form KEY=VALUE", "host.memory = 256GB");
  check_error(set("gpu.memory="), "gpu.memory=: gpu.memory: \"\" is not a size in bytes", "24GB");
  check_error(set("gpu.memory=8"
                  "GB/s"),
              "gpu.memory=8GB/s: gpu.memory: \"8GB/s\" is not a size in bytes", "24GB");
  check_error(set("gpu.memory=0"), "gpu.memory=0: gpu.memory: it is zero", "24GB");
  check_error(set("gpu.is_cpu=yes"), "gpu.is_cpu=yes: gpu.is_cpu: \"yes\" is neither",
              "true or false");
  check_error(set("host.cores=8 cores"), "host.cores=8 cores: host.cores: \"8 cores\" is not",
              "0.5");
  check_error(set("host.cores=1e999"), "host.cores=1e999: host.cores: \"1e999\" is out of range",
              "0.5");
  check_error(set("ssd.count=-1"), "ssd.count=-1: ssd.count: \"-1\" is not a whole number", "12");
  check_error(set("ssd.count=3,host.memory=96GB"),
              "ssd.count=3,host.memory=96GB: more than one setting",
              "ssd.count=3 host.memory=96GB");
  check_error(set("ssd.count=3, host.memory=96GB,gpu.memory=1GB"),
              "ssd.count=3, host.memory=96GB,gpu.memory=1GB: more than one setting",
              "ssd.count=3 host.memory=96GB gpu.memory=1GB");
  check_error(set("ssd.by_count=3"), "ssd.by_count=3: unknown key ssd.by_count", "ssd.count");
}

TEST_CASE("numbers that no machine has are refused where they stand") {
  const std::string hint = "check the number and its unit";
  check_error(with("10TFLOPS", "1e-300FLOPS"),
              "m.toml:4:9: gpu.flops: 1e-300 is outside 1 .. 1e+21", hint);
  check_error(with("12GB/s", "1e300B/s"), "m.toml:7:7: pcie.h2d: 1e+300 is outside", hint);
  check_error(with("8GB", "17EB"), "m.toml:3:10: gpu.memory: 1.7e+19 is outside 0 .. 1e+18", hint);
  check_error(with("cores = 8", "cores = 1e300"), "m.toml:12:9: host.cores: 1e+300", hint);
  check_error(with("count = 1\nread = \"1GB/s\"", "count = 1\nread = \"1e-9B/s\""),
              "m.toml:", hint);
  check_error(with("median_ns = 12", "median_ns = 9000000000000000000"), "m.toml:", hint);
  check_error(set("pcie.latency=9000000000s"), "pcie.latency=9000000000s: pcie.latency", hint);
  // The capacity grows with the drives, beyond what can be counted.
  check_error(set("ssd.count=9000000000000000000"), "m.toml:", hint);
}

TEST_CASE("names and texts of a machine that a terminal would obey or hide are refused") {
  check_error(with("\"m\"", "\"m\\u001b[2J\""),
              "m.toml:1:8: name: the text holds the control character U+001B", "UTF-8");
  check_error(with("\"m\"", "\"a\\nb\""), "m.toml:1:8: name: it holds the control character U+000A",
              "letters, digits");
  check_error(with("\"m\"", "\"m\\u202e\""), "m.toml:1:8: name: the text holds the invisible", "");
  check_error(with("\"m\"", "\"" + std::string(201, 'm') + "\""), "m.toml:1:8: name: it has 201",
              "shorter");
  check_error(with("[gpu]", "description = \"\\u200b\"\n[gpu]"), "m.toml:2:15: description: the",
              "");
  CHECK_NOTHROW(with("[gpu]", "description = \"two\\nlines, größe\"\n[gpu]")());
}

TEST_CASE("Gains of mixed traffic that no drives have are refused with their place") {
  const auto row = [](const std::string& text) {
    return with("[[kernel]]", "[[ssd.by_read_share]]\n" + text + "\n[[kernel]]");
  };
  check_error(row("share = 0.5"), "m.toml:22:1: gain is missing", "gain = 0.5");
  check_error(row("share = 1\ngain = 1.5"), "m.toml:23:9: share: 1 is not a mix",
              "between 0 and 1");
  check_error(row("share = 0.5\ngain = 0.9"), "m.toml:24:8: gain: 0.9 is outside 1 .. 2",
              "take turns");
  check_error(row("share = 0.5\ngain = 2.1"), "m.toml:24:8: gain: 2.1 is outside 1 .. 2",
              "neither slows");
  check_error(row("share = 0.5\ngain = 1\n[[ssd.by_read_share]]\nshare = 0.5\ngain = 2"),
              "m.toml:26:9: share: there are two rows for share 0.5", "keep one");
  check_error(row("share = 0.5\ngain = 1\ndepth = 0"), "m.toml:25:9: depth: 0 requests in flight",
              "full depth");
  CHECK_NOTHROW(
      row("share = 0.5\ngain = 1\n[[ssd.by_read_share]]\nshare = 0.5\ngain = 2\n"
          "depth = 4")());
  check_error(with("count = 2", "mixed_gain = 0.5\ncount = 2"),
              "m.toml:14:14: ssd.mixed_gain: 0.5 is outside 1 .. 2", "take turns");
  check_error(with("count = 2", "cache = \"1GB\"\ncount = 2"),
              "m.toml:14:9: ssd.cache: how fast it is written is not given", "ssd.cache_write");
}
