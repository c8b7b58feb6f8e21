#include "exec/blas_threads.hpp"

#include <cblas.h>

#include <mutex>

namespace spillway {

void use_one_blas_thread() {
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
}

}  // namespace spillway
