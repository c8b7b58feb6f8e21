// The rings that tests of the store run over: io_uring where it is to be had, and threads.
#pragma once

#include <vector>

#include "exec/io/io_choice.hpp"

namespace spillway::test {

// For GENERATE(from_range(rings())).
inline std::vector<IoMethod> rings() {
  if (usual_io().method == IoMethod::threads) return {IoMethod::threads};
  return {IoMethod::uring, IoMethod::threads};
}

inline const char* to_string(IoMethod ring) {
  return ring == IoMethod::uring ? "io_uring" : "threads";
}

inline RingFactory factory_of(IoMethod ring) {
  return ring == IoMethod::uring ? usual_io().make_ring : choose_io(IoMethod::threads).make_ring;
}

}  // namespace spillway::test
