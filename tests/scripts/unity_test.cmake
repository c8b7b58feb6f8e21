# What cmake/SpillwayUnity.cmake finds at file level, and which sources it lets share a batch:
# cmake -DFOLDER=SCRATCH -P unity_test.cmake
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/SpillwayUnity.cmake)

file(WRITE ${FOLDER}/source.cpp [[
#define WIDTH 8
namespace fs = std::filesystem;
using Words = std::vector<std::string>;
namespace spillway {
namespace {
constexpr int kibi = 1024, mebi = 1024 * kibi;
enum class State : int { on, off };
struct Options {
  int inside = 0;
};
std::vector<std::string> names_of(const Options& options, int more = 0) {
  const int local = 1;
  return {};
}
const std::array<int, 3> sizes{1, 2, 3};
void
broken_line(int value);
}  // namespace
}  // namespace spillway
]])
spillway_file_level(${FOLDER}/source.cpp definitions aliases)
list(SORT definitions)
set(expected Options State WIDTH broken_line kibi mebi names_of sizes)
if(NOT "${definitions}" STREQUAL "${expected}")
  message(SEND_ERROR "definitions: found ${definitions}, not ${expected}")
endif()
if(NOT "${aliases}" STREQUAL "Words: std::vector<std::string>,")
  message(SEND_ERROR "aliases: found ${aliases}")
endif()

# expect(ON|OFF WHY DEFINITIONS ALIASES), each of both sources.
function(expect answer why definitions aliases)
  spillway_can_share(can "${definitions}" "${aliases}")
  if(NOT can STREQUAL answer)
    message(SEND_ERROR "${why}: ${can}, not ${answer}")
  endif()
endfunction()
expect(ON "different names go together" "run;check" "")
expect(OFF "a name that both define keeps them apart" "run;check;run" "")
expect(ON "an alias may be repeated" "run;check" "Json: nlohmann::json;Json: nlohmann::json")
expect(OFF "two aliases of one name differ" "run" "Json: nlohmann::json;Json: nlohmann::ordered_json")
expect(OFF "an alias here is a class there" "Row" "Row: Machine::Ssd::Row")
