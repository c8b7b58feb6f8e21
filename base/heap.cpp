#include "base/heap.hpp"

#include <malloc.h>

namespace spillway {

void keep_freed_memory() {
  constexpr int largest = 1 << 30;
  (void)::mallopt(M_MMAP_THRESHOLD, largest);
  (void)::mallopt(M_TRIM_THRESHOLD, largest);
  (void)::mallopt(M_TOP_PAD, 1 << 26);
}

}  // namespace spillway
