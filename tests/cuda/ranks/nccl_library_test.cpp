// NCCL as a library that is loaded, where there is one: this needs no GPU.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/errors.hpp"
#include "exec/cuda/ranks/nccl.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

TEST_CASE("CUDA: NCCL is loaded, and says what it is") {
  const char* const named = std::getenv("SPILLWAY_NCCL");
  std::optional<NcclFunctions> found;
  try {
    found = load_nccl(named != nullptr ? named : "libnccl.so.2");
  } catch (const MachineError& error) {
    WARN("skipped: " << error.what());
    return;
  }
  int version = 0;
  CHECK(found->version(&version) == NcclFunctions::success);
  CHECK(version >= 21700);
  CHECK(std::string(found->error_text(NcclFunctions::success)) == "no error");
}

TEST_CASE("CUDA: what is no NCCL is refused, with what to do") {
  CHECK_THROWS_WITH(load_nccl("/nowhere/libnccl.so.2"),
                    Catch::Contains("NCCL cannot be loaded: /nowhere/libnccl.so.2"));
  CHECK_THROWS_WITH(load_nccl("libm.so.6"), Catch::Contains("libm.so.6 has no ncclGetVersion"));
  try {
    load_nccl("libm.so.6");
  } catch (const MachineError& error) {
    CHECK_THAT(error.hint(), Catch::Contains("SPILLWAY_NCCL=off"));
  }
}

}  // namespace
