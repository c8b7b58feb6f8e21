#include "exec/ranks/mpi_module.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/errors.hpp"

namespace spillway {

namespace {

// Nothing where the variable is not there or no number.
std::optional<int> number_in_environment(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return {};
  int number = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  if (error != std::errc() || stop != end) return {};
  return number;
}

// Beside the program, with which it was built.
std::filesystem::path mpi_module_path() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path() / "libspillway_mpi.so";
}

}  // namespace

std::optional<LaunchedRank> launched_rank() {
  // Open MPI; MPICH and those made of it.
  for (const auto& [size_name, rank_name] :
       {std::pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        std::pair("PMI_SIZE", "PMI_RANK")}) {
    const auto size = number_in_environment(size_name), rank = number_in_environment(rank_name);
    if (size && rank && *size > 1 && *rank >= 0 && *rank < *size) return LaunchedRank{*rank, *size};
  }
  return {};
}

std::unique_ptr<RankTransport> start_mpi() {
  // Libraries of MPI load parts of their own by name, and want to be seen by them.
  void* const module = dlopen(mpi_module_path().c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (module == nullptr) {
    const char* const reason = dlerror();
    throw MachineError(
        fmt::format("mpirun has started several ranks, but the MPI module cannot be loaded: {}",
                    reason ? reason : "no reason is given"),
        "build where MPI is installed (libopenmpi-dev), or start the program without mpirun");
  }
  const auto version = reinterpret_cast<const char* (*)()>(dlsym(module, "spillway_mpi_version"));
  const auto start = reinterpret_cast<RankTransport* (*)()>(dlsym(module, "spillway_mpi_start"));
  if (version == nullptr || start == nullptr || std::strcmp(version(), SPILLWAY_VERSION) != 0)
    throw MachineError("the MPI module is from another version of spillway",
                       "build and install the program and its module together");
  std::unique_ptr<RankTransport> transport(start());
  if (!transport)
    throw MachineError("this MPI library cannot be called by several threads (MPI_THREAD_MULTIPLE)",
                       "use Debian's Open MPI, and an mpirun of the same library");
  return transport;
}

}  // namespace spillway
