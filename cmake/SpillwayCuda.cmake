# SPILLWAY_HAVE_CUDA: whether the CUDA backend can be built. A toolkit without a driver, and no toolkit at
# all, are normal machines; only -DSPILLWAY_CUDA=ON makes a missing toolkit an error.
set(SPILLWAY_HAVE_CUDA OFF)
if(NOT SPILLWAY_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)  # find_package(CUDAToolkit) alone accepts a toolkit without nvcc
  if(CMAKE_CUDA_COMPILER)
    set(SPILLWAY_CUDA_FOR_EVERY_GPU OFF)  # or somebody chose some
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(SPILLWAY_CUDA_FOR_EVERY_GPU ON)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90)
    endif()
    enable_language(CUDA)
    # CMake 3.25 ignores CMAKE_CUDA_STANDARD 20 with this toolkit.
    string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")
    find_package(CUDAToolkit)
    if(CUDAToolkit_FOUND)
      set(SPILLWAY_HAVE_CUDA ON)
    endif()
  endif()
  if(SPILLWAY_CUDA STREQUAL "ON" AND NOT SPILLWAY_HAVE_CUDA)
    message(FATAL_ERROR "SPILLWAY_CUDA=ON, but no CUDA toolkit with nvcc was found. Put nvcc on PATH or set "
                        "CUDACXX, or configure with -DSPILLWAY_CUDA=AUTO.")
  endif()
endif()
message(STATUS "CUDA: ${SPILLWAY_HAVE_CUDA}")
