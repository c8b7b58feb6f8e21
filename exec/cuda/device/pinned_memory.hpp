// Host memory that the GPU copies from and to without a stop on the way, and that kernels read at
// the address the host uses: page-locked by cudaHostRegister.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "exec/run/memory_pieces.hpp"

namespace spillway::cuda {

struct PinnedMemory {
  std::shared_ptr<void> registration;  // pinned while it lives; null: there was no memory
  std::size_t pieces = 0;
};

// Page-locks `memory` for the calling thread's device until the result is destroyed. Large memory
// is locked in pieces by several threads; where the driver refuses a copy across the border of two
// pieces, in one piece instead. Throws MachineError, with how to raise the limit, where locking is
// refused; nothing is locked then. `progress` may be empty.
PinnedMemory pin_memory(std::span<std::byte> memory, const MemoryProgress& progress = {},
                        std::uint64_t piece_bytes = memory_piece_bytes);

}  // namespace spillway::cuda
