// The tests tagged [sanitizer], which compute-sanitizer is given on a GPU, launch every kernel
// there is.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "test_paths.hpp"
#include "tests/emulator/emulator.hpp"

namespace {

constexpr const char* wish = "SPILLWAY_NAME_KERNELS";
constexpr const char* mark = "launched ";

// Names all kernels that a run of this program launched, where the environment asks for it.
class NamesKernels : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseEnded(const Catch::TestCaseStats&) override {
    constexpr std::string_view kernel = "kernel ";
    for (const auto& [name, count] : emulator::counts())
      if (name.starts_with(kernel) && count > 0) launched_.insert(name.substr(kernel.size()));
  }
  void testRunEnded(const Catch::TestRunStats&) override {
    if (std::getenv(wish) == nullptr) return;
    for (const std::string& name : launched_) std::printf("\n%s%s\n", mark, name.c_str());
  }

 private:
  std::set<std::string> launched_;
};

// What stands in quotes behind "launch(" or "start_copy(", which launches what it is given.
std::set<std::string> kernels_of_the_sources() {
  std::set<std::string> names;
  const std::regex pattern("(?:launch|start_copy)\\(\\s*\"([a-z_]+)\"");
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(SPILLWAY_SOURCE_DIR "/exec/cuda")) {
    if (file.path().extension() != ".cu") continue;
    std::ifstream stream(file.path());
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at)
      names.insert((*at)[1]);
  }
  return names;
}

}  // namespace

CATCH_REGISTER_LISTENER(NamesKernels)

TEST_CASE("CUDA emulated: every kernel is launched by a test that sanitizers are given", "[slow]") {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = std::string(wish) + "=1 '" + program + "' '[sanitizer]'";
  std::set<std::string> launched;
  FILE* const output = popen(command.c_str(), "r");
  REQUIRE(output != nullptr);
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), output) != nullptr) {
    std::string text = line.data();
    if (!text.starts_with(mark)) continue;
    text.pop_back();
    launched.insert(text.substr(std::string_view(mark).size()));
  }
  CHECK(pclose(output) == 0);
  const std::set<std::string> all = kernels_of_the_sources();
  CHECK(all.size() > 15);
  CHECK(launched == all);
}
