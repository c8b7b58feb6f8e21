#include "exec/data/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

using Values = std::vector<std::vector<float>>;

SafetensorsSource from(const Values& values) {
  return [&](std::size_t tensor, std::uint64_t offset, std::span<std::byte> piece) {
    const auto bytes = std::as_bytes(std::span(values[tensor]));
    REQUIRE(offset + piece.size() <= bytes.size());
    std::memcpy(piece.data(), bytes.data() + offset, piece.size());
  };
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A file as text: length, header, data.
std::string file_text(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(data_bytes, 'd');
}

std::string entry(const std::string& name, const std::string& shape, int begin, int end,
                  const std::string& type = "F32") {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, type,
                     shape, begin, end);
}

}  // namespace

TEST_CASE("tensors of any shape are read back as written") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const TemporaryFolder folder;
  std::vector<SafetensorsTensor> tensors = {
      {"scalar", {}}, {"empty", {3, 0}}, {"large", {3, 1 << 20}}};
  for (int i = 0; i < 20; ++i) {
    SafetensorsTensor tensor{fmt::format("transformer.h.{}.\"odd\" \u00e9", i), {}};
    for (std::uint64_t d = random() % 4; d > 0; --d) {
      tensor.shape.push_back(static_cast<std::int64_t>(random() % 9));
    }
    tensors.push_back(tensor);
  }
  Values values;
  for (const SafetensorsTensor& tensor : tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= size;
    values.emplace_back(static_cast<std::size_t>(elements));
    for (float& value : values.back()) value = static_cast<float>(random() % 100000) / 7.0f;
  }
  write_safetensors(folder / "m.safetensors", tensors, from(values), {{"format", "pt"}});

  const SafetensorsFile file(folder / "m.safetensors");
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(file.tensors().size() == tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto found = std::find_if(file.tensors().begin(), file.tensors().end(),
                                    [&](const auto& t) { return t.name == tensors[i].name; });
    REQUIRE(found != file.tensors().end());
    CHECK(found->shape == tensors[i].shape);
    CHECK(file.read(tensors[i].name) == values[i]);
  }
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("the file is laid out as the format says, with data at a multiple of 4096") {
  const TemporaryFolder folder;
  const Values values = {{1.0f, 2.0f}, {3.0f}};
  write_safetensors(folder / "m", {{"a", {1, 2}}, {"b", {1}}}, from(values));
  const std::string text = read_file(folder / "m");
  // 8 bytes of length + header = 4096, then 12 bytes of data.
  REQUIRE(text.size() == 4096 + 12);
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  REQUIRE(length == 4096 - 8);
  CHECK(text[8] == '{');
  CHECK(text[4095] == ' ');
  const auto header = nlohmann::json::parse(text.substr(8, length));
  CHECK(header == nlohmann::json::parse(
                      R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},
                          "b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})"));
  float data[3];
  std::memcpy(data, text.data() + 4096, 12);
  CHECK(std::vector<float>(data, data + 3) == std::vector<float>{1, 2, 3});
}

TEST_CASE("the source is asked in order, for pieces of whole elements") {
  const TemporaryFolder folder;
  const std::int64_t elements = (9 << 20) / 4 + 1;  // more than two pieces of 4 MiB
  std::uint64_t expected = 0;
  write_safetensors(folder / "m", {{"a", {elements}}},
                    [&](std::size_t tensor, std::uint64_t offset, std::span<std::byte> piece) {
                      REQUIRE(tensor == 0);
                      REQUIRE(offset == expected);
                      REQUIRE(piece.size() % 4 == 0);
                      REQUIRE(piece.size() <= 4 << 20);
                      expected += piece.size();
                      std::fill(piece.begin(), piece.end(), std::byte{0});
                    });
  CHECK(expected == static_cast<std::uint64_t>(elements) * 4);
}

TEST_CASE("a failed write leaves the old file whole and nothing beside it") {
  const TemporaryFolder folder;
  const Values values = {{1.0f}};
  write_safetensors(folder / "m", {{"a", {1}}}, from(values));
  const std::string before = read_file(folder / "m");
  const auto failing = [&] {
    write_safetensors(folder / "m", {{"a", {2 << 20}}},
                      [](std::size_t, std::uint64_t offset, std::span<std::byte>) {
                        if (offset > 0) throw MachineError("the source failed");
                      });
  };
  CHECK(contains(message_of<MachineError>(failing), "the source failed"));
  CHECK(read_file(folder / "m") == before);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);

  // A folder is not replaced by a file.
  write_file(folder / "taken/inside", "");
  CHECK_THROWS_AS(write_safetensors(folder / "taken", {{"a", {1}}}, from(values)), InputError);
}

TEST_CASE("a missing folder is the user's input, a full disk the machine's") {
  const TemporaryFolder folder;
  const Values values = {{1.0f}};
  const auto missing = [&] { write_safetensors(folder / "no/m", {{"a", {1}}}, from(values)); };
  CHECK(contains(message_of<InputError>(missing), "there is no such directory"));

  const SmallFilesystem disk("tmpfs", "size=1m");
  if (!disk.mounted()) {
    WARN("skipped the full disk: " << disk.reason());
    return;
  }
  bool asked = false;
  const auto full = [&] {
    write_safetensors(disk.path() / "m", {{"a", {1 << 20}}},
                      [&](std::size_t, std::uint64_t, std::span<std::byte>) { asked = true; });
  };
  const std::string message = message_of<MachineError>(full);
  CHECK(contains(message, "cannot reserve 4.20 MB for"));
  CHECK(contains(message, "the disk is full"));
  CHECK_FALSE(asked);  // before any data was made
  CHECK(holds_nothing(disk.path()));
}

TEST_CASE("files that break a rule of the format are refused, with the rule") {
  const TemporaryFolder folder;
  const std::string a = entry("a", "[2]", 0, 8);
  struct Case {
    std::string text;
    std::string complaint;
  };
  const std::vector<Case> cases = {
      {"1234567", "shorter than the 8 bytes"},
      {file_text("", 0), "does not start with {"},
      {file_text(" {}", 0), "does not start with {"},
      {file_text("{\"a\":", 0), "not JSON"},
      {file_text("{}", 0).substr(0, 9), "ends inside its header"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}"), "the limit is 100 MB"},
      {file_text("{" + a + "}", 7), "its tensors take 8 bytes, its data has 7"},
      {file_text("{" + a + "}", 9), "its tensors take 8 bytes, its data has 9"},
      {file_text("{" + a + "," + entry("b", "[1]", 9, 13) + "}", 13),
       "a hole in the data before tensor b"},
      {file_text("{" + entry("a", "[2]", 4, 12) + "}", 12), "a hole in the data before tensor a"},
      {file_text("{" + a + "," + entry("b", "[1]", 4, 8) + "}", 8), "tensor b overlaps"},
      {file_text("{" + a + "," + a + "}", 8), "two tensors are called a"},
      {file_text("{" + entry("a", "[3]", 0, 8) + "}", 8), "shape of tensor a does not agree"},
      {file_text("{" + entry("a", "[2]", 8, 0) + "}", 8), "a hole in the data before tensor a"},
      {file_text("{" + entry("a", "[4294967296,4294967296]", 0, 0) + "}", 0), "does not agree"},
      {file_text("{" + entry("a", "[-1]", 0, 4) + "}", 4), "lacks a dtype, shape or data_offsets"},
      {file_text("{" + entry("a", "[1]", 0, 4, "F31") + "}", 4), "unknown type F31"},
      {file_text(R"({"a":{"dtype":"F32","shape":[1]}})", 4),
       "lacks a dtype, shape or data_offsets"},
      {file_text(R"({"a":5})", 4), "lacks a dtype, shape or data_offsets"},
      // Made to take memory: refused before it is parsed to its end, which would not be JSON.
      {file_text("{" + entry("a", "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0", 0, 0), 0),
       "more than 16 dimensions"},
      {file_text(R"({"a":{"shape":[[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[])", 0),
       "more than 16 dimensions"},
      {file_text(R"({"__metadata__":{"n":1}})", 0), "its metadata is not text"},
      {file_text(R"({"__metadata__":"n"})", 0), "its metadata is not a map"},
  };
  for (const Case& each : cases) {
    write_file(folder / "bad", each.text);
    const std::string message = message_of<InputError>([&] { SafetensorsFile(folder / "bad"); });
    INFO(message);
    CHECK(contains(message, each.complaint));
    CHECK(contains(message, (folder / "bad").string()));
  }
  CHECK(
      contains(message_of<InputError>([&] { SafetensorsFile(folder / "none"); }), "No such file"));
}

TEST_CASE("files of other writers are read: any order of names, no padding, other types") {
  const TemporaryFolder folder;
  write_file(folder / "m",
             file_text("{" + entry("z", "[1]", 0, 4) + "," + entry("b", "[3]", 8, 14, "BF16") +
                           "," + entry("a", "[]", 4, 8) + "}",
                       14));
  const SafetensorsFile file(folder / "m");
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[1].name == "a");
  CHECK(file.read("a").size() == 1);
  CHECK(contains(message_of<InputError>([&] { file.read("b"); }), "is BF16, not F32"));
  CHECK(contains(message_of<InputError>([&] { file.read("c"); }), "has no tensor c"));
}

TEST_CASE("a file that cannot be read is not taken for one of another format") {
  // Reading it fails with an errno of the driver's: the loopback has no speed.
  const std::filesystem::path unreadable = "/sys/class/net/lo/speed";
  std::error_code error;
  if (!std::filesystem::is_regular_file(unreadable, error)) {
    WARN("skipped: there is no " << unreadable);
    return;
  }
  const std::string message = message_of<MachineError>([&] { SafetensorsFile file(unreadable); });
  CHECK_THAT(message, Catch::Contains("cannot read " + unreadable.string()));
}
