#include "exec/cpu/blas_threads.hpp"

#include <cblas.h>

#include <mutex>

namespace spillway {

void use_blas_threads(int threads) {
  static std::mutex mutex;
  static int current = 0;
  const std::lock_guard lock(mutex);
  if (threads == current) return;
  openblas_set_num_threads(threads);
  current = threads;
}

}  // namespace spillway
