// In the place of CUDA's header of this name: what Spillway uses of CUDA C++ and of the runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <tuple>
#include <utility>

#include "tests/emulator/device_language.hpp"
#include "tests/emulator/device_math.hpp"
#include "tests/emulator/launch.hpp"

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute,
                                 int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

// The arguments are copied now, the kernel runs when the stream gets there.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return emulator::launch(
      *config, reinterpret_cast<const void*>(kernel),
      [kernel, copies = std::tuple<std::remove_cv_t<Parameters>...>(
                   std::forward<Arguments>(arguments)...)] { std::apply(kernel, copies); });
}
