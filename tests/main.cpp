// Catch2's main, compiled once for all test programs.
//
// SPILLWAY_TEST_IO_URING=refused: the program, and all that it starts, is refused io_uring, as in a
// container. Tests of what uses the store then run over threads, unchanged.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "tests/refused_calls.hpp"

int main(int argc, char** argv) {
  const char* const io_uring = std::getenv("SPILLWAY_TEST_IO_URING");
  if (io_uring != nullptr && std::string_view(io_uring) == "refused" &&
      !spillway::test::refuse_io_uring(EPERM)) {
    std::cerr << "this kernel takes no seccomp filter: io_uring cannot be refused\n";
    return EXIT_FAILURE;
  }
  return Catch::Session().run(argc, argv);
}
