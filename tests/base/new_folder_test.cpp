// A folder appears whole or not at all, and what killed programs have left of one goes.
#include "base/new_folder.hpp"

#include <catch2/catch.hpp>
#include <fstream>

#include "base/errors.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway::test {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file) { std::ofstream(file) << "text"; }

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a new folder has its name once it is complete, and is gone where it never is") {
  const TemporaryFolder folder;
  {
    NewFolder made(folder / "out");
    write(made.directory().path_of("a"));
    CHECK_FALSE(fs::exists(folder / "out"));
    made.commit();
    CHECK(fs::exists(folder / "out/a"));
  }
  {
    const NewFolder left(folder / "other");
    write(left.directory().path_of("a"));
    CHECK(entries(folder.path()) == 2);
  }
  CHECK(entries(folder.path()) == 1);
  CHECK_THROWS_AS(NewFolder(folder / "out"), InputError);
  CHECK_THROWS_WITH(NewFolder(folder / "no/out"),
                    Catch::Contains("there is no folder " + (folder / "no").string()));
}

TEST_CASE(
    "what a killed program left of a folder goes with the next one of its name, and no more") {
  const TemporaryFolder folder;
  const char* const gone[] = {".step-000100.partial-0123456789abcdef",
                              ".step-7.partial-fedcba9876543210"};
  const char* const stay[] = {".step-000100.partial-mine", ".other-1.partial-0123456789abcdef",
                              "step-000200"};
  for (const char* name : gone) fs::create_directory(folder / name);
  for (const char* name : stay) fs::create_directory(folder / name);
  write(folder / gone[0] / "large");
  std::ofstream(folder / ".step-1.partial-0123456789abcdef") << "a file";
  NewFolder at_work(folder / "step-300");
  {
    NewFolder next(folder / "step-400");
    next.commit();
  }
  for (const char* name : gone) CHECK_FALSE(fs::exists(folder / name));
  for (const char* name : stay) CHECK(fs::exists(folder / name));
  CHECK(fs::exists(folder / ".step-1.partial-0123456789abcdef"));
  at_work.commit();
  CHECK(fs::exists(folder / "step-300"));
}

}  // namespace spillway::test
