#include "policies/model/model_folder.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/errors.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/temporary_folder.hpp"

using namespace spillway;

namespace {

namespace fs = std::filesystem;

constexpr const char* tiny_config = R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
  "vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4})";

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// An environment variable that has its old value again at the end.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("a folder with a config.json is a model, and settings change it") {
  const test::TemporaryFolder folder;
  write(folder / "my-gpt/config.json", tiny_config);
  const ModelSpec model = load_model(folder / "my-gpt");
  CHECK(model.name == "my-gpt");
  CHECK(model.layers == 2);
  CHECK(load_model(folder / "my-gpt/").name == "my-gpt");
  const ModelSpec wider = load_model(folder / "my-gpt", {"hidden=64", "layers=3"});
  CHECK(wider.layers == 3);
  CHECK(wider.ffn == 256);
  fs::create_directories(folder / "empty");
  check_error([&] { load_model(folder / "empty"); }, (folder / "empty").string(), "Hugging Face");
}

TEST_CASE("a model that was downloaded is found in Hugging Face's cache by its name") {
  const test::TemporaryFolder folder;
  const Variable none("HF_HUB_CACHE", ""), home("HF_HOME", folder.path().string());
  const fs::path repository = folder / "hub/models--org--tiny.1";
  write(repository / "refs/main", "0123abcd");
  write(repository / "blobs/b", tiny_config);
  fs::create_directories(repository / "snapshots/0123abcd");
  fs::create_symlink("../../blobs/b", repository / "snapshots/0123abcd/config.json");
  const auto found = find_model_folder("org/tiny.1");
  REQUIRE(found);
  CHECK(found->path == repository / "snapshots/0123abcd");
  CHECK(load_model("org/tiny.1").name == "tiny.1");
  CHECK(name_in_cache(found->path) == "org/tiny.1");
  // Another revision has no name, nor has a folder elsewhere.
  write(repository / "snapshots/89ab/config.json", tiny_config);
  CHECK(name_in_cache(repository / "snapshots/89ab").empty());
  write(folder / "models--org--tiny.1/snapshots/0123abcd/config.json", tiny_config);
  CHECK(name_in_cache(folder / "models--org--tiny.1/snapshots/0123abcd").empty());
  CHECK(name_in_cache(folder / "absent").empty());
  // Without an organisation, as the oldest models.
  fs::rename(repository, folder / "hub/models--tiny.1");
  CHECK(load_model("tiny.1").hidden == 32);
  CHECK(name_in_cache(find_model_folder("tiny.1")->path) == "tiny.1");
}

TEST_CASE("where a name is nowhere the places that were looked at are named") {
  const test::TemporaryFolder folder;
  const Variable none("HF_HUB_CACHE", ""), home("HF_HOME", folder.path().string());
  check_error([] { load_model("org/absent"); }, "unknown model org/absent",
              (folder / "hub/models--org--absent/refs/main").string());
  // A reference is the name of a snapshot, and leads nowhere else.
  write(folder / "config.json", tiny_config);
  write(folder / "hub/models--org--odd/refs/main", "../../..");
  fs::create_directories(folder / "hub/models--org--odd/snapshots");
  CHECK_FALSE(find_model_folder("org/odd"));
  for (const char* name : {"../x", "a/b/c", "", "a//b", "-a", ".hidden"})
    CHECK_FALSE(find_model_folder(name));
}

// The current directory, until it goes.
class InFolder {
 public:
  explicit InFolder(const fs::path& folder) : before_(fs::current_path()) {
    fs::current_path(folder);
  }
  ~InFolder() { fs::current_path(before_); }

 private:
  fs::path before_;
};

TEST_CASE("a built-in model's name is the built-in model") {
  const test::TemporaryFolder folder;
  const Variable none("HF_HUB_CACHE", ""), home("HF_HOME", folder.path().string());
  write(folder / "gpt-tiny/config.json", tiny_config);
  write(folder / "hub/models--gpt-tiny/refs/main", "0123");
  write(folder / "hub/models--gpt-tiny/snapshots/0123/config.json", tiny_config);
  const InFolder in(folder.path());
  CHECK_FALSE(find_model_folder("gpt-tiny"));
  CHECK(find_model_folder("./gpt-tiny"));
}

TEST_CASE("a file goes before a name on Hugging Face, and a cache has a place of its own") {
  const test::TemporaryFolder folder;
  const Variable none("HF_HUB_CACHE", ""), home("HOME", folder.path().string());
  const auto has = [&](const fs::path& cache) {
    write(cache / "models--org--m/refs/main", "0123");
    write(cache / "models--org--m/snapshots/0123/config.json", tiny_config);
    const auto found = find_model_folder("org/m");
    fs::remove_all(cache);
    return found.has_value();
  };
  const Variable named("HF_HOME", "~/mine"), other("XDG_CACHE_HOME", "");
  CHECK(has(folder / "mine/hub"));
  ::setenv("HF_HOME", "", 1);
  CHECK(has(folder / ".cache/huggingface/hub"));
  ::setenv("HF_HUB_CACHE", "~/all", 1);
  CHECK(has(folder / "all"));
  const InFolder in(folder.path());
  ::setenv("HF_HUB_CACHE", "", 1);
  ::setenv("HOME", "", 1);
  CHECK_FALSE(has(".cache/huggingface/hub"));
  ::setenv("HF_HOME", (folder / "home").c_str(), 1);
  write("org/m", "name = \"a file\"");
  CHECK_FALSE(has(folder / "home/hub"));
  fs::remove_all("org");
  CHECK(has(folder / "home/hub"));
}
