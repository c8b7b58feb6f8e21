// The CUDA module, seen from the program: loaded on demand, absent on machines without CUDA.
#pragma once

#include <string>

namespace spillway {

struct CudaDevices {
  bool module_loaded =
      false;  // the program was built with a CUDA toolkit, and its libraries are here
  int count = 0;
  std::string text;  // one line per device; or why there is none
};

// Never throws: a machine without a GPU, or a build without CUDA, is normal.
CudaDevices find_cuda_devices();

}  // namespace spillway
