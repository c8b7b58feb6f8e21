#include "exec/data/safetensors_folder.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using namespace spillway::test;
using nlohmann::json;

namespace {

// A file with tensors of two elements each.
void write_shard(const std::filesystem::path& path, const std::vector<std::string>& names) {
  std::vector<SafetensorsTensor> tensors;
  for (const std::string& name : names) tensors.push_back({name, {2}});
  write_safetensors(path, tensors, [](std::size_t, std::uint64_t, std::span<std::byte> piece) {
    std::memset(piece.data(), 0, piece.size());
  });
}

void write_index(const TemporaryFolder& folder, const json& files) {
  write_file(folder / "model.safetensors.index.json",
             json{{"metadata", {{"total_size", 24}}}, {"weight_map", files}}.dump());
}

std::string refusal(const TemporaryFolder& folder) {
  return message_of<InputError>([&] { SafetensorsFolder{folder.path()}; });
}

}  // namespace

TEST_CASE("shards are one set of tensors") {
  const TemporaryFolder folder;
  write_shard(folder / "a.safetensors", {"x", "y"});
  write_shard(folder / "b.safetensors", {"z"});
  write_index(folder, {{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"z", "b.safetensors"}});
  CHECK(SafetensorsFolder::has_weights(folder.path()));
  const SafetensorsFolder tensors(folder.path());
  REQUIRE(tensors.tensors().size() == 3);
  CHECK(tensors.tensors().at("z").file == 1);
  CHECK(tensors.files()[1].path().filename() == "b.safetensors");
  // A file of its own stands before an index, as in transformers; and other headers, another hash.
  write_shard(folder / "model.safetensors", {"alone"});
  const SafetensorsFolder single(folder.path());
  CHECK(single.tensors().size() == 1);
  CHECK(single.hash() != tensors.hash());
}

TEST_CASE("an index that does not agree with the files is refused") {
  const TemporaryFolder folder;
  write_shard(folder / "a.safetensors", {"x", "y"});
  write_shard(folder / "b.safetensors", {"z"});
  const json right = {{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"z", "b.safetensors"}};
  const auto edited = [&](const char* tensor, const json& file) {
    json files = right;
    files[tensor] = file;
    return files;
  };
  write_index(folder, edited("z", "a.safetensors"));
  CHECK_THAT(refusal(folder), Catch::Contains("in none of the files"));
  write_shard(folder / "a.safetensors", {"x", "y", "w"});
  write_index(folder, right);
  CHECK_THAT(refusal(folder), Catch::Contains("w") && Catch::Contains("does not list"));
  write_shard(folder / "a.safetensors", {"x", "y", "z"});
  CHECK_THAT(refusal(folder), Catch::Contains("tensor z is in"));
  write_index(folder, edited("q", "c.safetensors"));
  CHECK_THAT(refusal(folder), Catch::Contains("not there: c.safetensors"));
}

TEST_CASE("a shard is a file in the folder, never a way out of it") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "sub");
  write_shard(folder / "sub/model.safetensors", {"x"});
  for (const char* name :
       {"../x.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ".", ""}) {
    write_index(folder, {{"x", name}});
    CHECK_THAT(refusal(folder), Catch::Contains("no file in this folder"));
  }
}

TEST_CASE("an index that is no index is refused") {
  const TemporaryFolder folder;
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("{\"weight_map\": []}"), std::string("{"),
        std::string("{\"weight_map\": {}}"), std::string("{\"weight_map\": {\"x\": 1}}"),
        std::string(100000, '[')}) {
    write_file(folder / "model.safetensors.index.json", text);
    CHECK(refusal(folder).find("index.json") != std::string::npos);
  }
}

TEST_CASE("a folder without safetensors says what it lacks") {
  const TemporaryFolder folder;
  CHECK_FALSE(SafetensorsFolder::has_weights(folder.path()));
  CHECK_THAT(refusal(folder), Catch::Contains("no weights") && Catch::Contains("random_weights"));
  write_file(folder / "pytorch_model.bin", "pickle");
  CHECK_THAT(refusal(folder), Catch::Contains("save_pretrained"));
}
