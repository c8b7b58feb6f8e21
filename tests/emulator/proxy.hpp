// Which shared memory was written by copies and not yet fenced for the tensor cores of a warpgroup,
// which read it through the "async proxy" (PTX ISA, "Async Proxy" and "membar/fence": a
// fence.proxy.async stands between the two). Ordinary stores are not seen.
#pragma once

#include <cstddef>

namespace emulator {

// By the calling thread; `bytes` from `to` on have arrived.
void copied_to_shared(const std::byte* to, std::size_t bytes);

}  // namespace emulator
