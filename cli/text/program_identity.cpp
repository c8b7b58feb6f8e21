#include "cli/text/program_identity.hpp"

#include <fstream>
#include <sstream>

#include "experiments/sweep/sweep_settings.hpp"

namespace spillway::cli {

std::string this_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return "spillway " SPILLWAY_VERSION " " + hash_of(bytes.str());
}

}  // namespace spillway::cli
