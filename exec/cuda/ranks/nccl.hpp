// The functions of NCCL that are called: its interface from 2.17 on, declared here, so that a build
// needs nothing of NCCL. Where its header is there, nccl_library.cpp is compiled against it.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <climits>
#include <cstddef>
#include <string>

struct ncclComm;

namespace spillway::cuda {

using NcclComm = ::ncclComm*;

struct NcclId {
  std::array<char, 128> bytes{};
};

// As of 2.17: later versions take what a caller does not know from their defaults, by `size` and
// `version`.
struct NcclConfig {
  static constexpr int undefined = INT_MIN;
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = undefined;
  int cluster_size = undefined;
  int least_blocks = undefined;
  int most_blocks = undefined;  // of a kernel
  const char* network = nullptr;
};

// Results and types of elements are enumerations of C, which are ints.
struct NcclFunctions {
  static constexpr int success = 0, in_progress = 7;
  static constexpr int bytes = 1;  // ncclUint8

  int (*version)(int*) = nullptr;
  const char* (*error_text)(int) = nullptr;
  const char* (*last_error)(NcclComm) = nullptr;
  int (*new_id)(NcclId*) = nullptr;
  int (*join)(NcclComm*, int count, NcclId, int rank, NcclConfig*) = nullptr;
  int (*state)(NcclComm, int*) = nullptr;
  int (*abort)(NcclComm) = nullptr;
  int (*begin_group)() = nullptr;
  int (*end_group)() = nullptr;
  int (*send)(const void*, std::size_t, int type, int peer, NcclComm, cudaStream_t) = nullptr;
  int (*receive)(void*, std::size_t, int type, int peer, NcclComm, cudaStream_t) = nullptr;
};

// Loads a library for good. Throws MachineError where it cannot be loaded, or is too old.
NcclFunctions load_nccl(const std::string& file);

// Of the library in `file`, or, where that is empty, of the one that the system's loader finds.
NcclFunctions nccl(const std::string& file);

}  // namespace spillway::cuda
