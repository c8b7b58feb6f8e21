// Which library NCCL is: not part of the emulator, which has another.
#include "exec/cuda/ranks/nccl.hpp"

namespace spillway::cuda {

NcclFunctions nccl(const std::string& file) {
  return load_nccl(file.empty() ? "libnccl.so.2" : file);
}

}  // namespace spillway::cuda
