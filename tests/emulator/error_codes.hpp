// The errors of the CUDA runtime: name, number, and what cudaGetErrorString says of it.
#pragma once

// clang-format off
#define EMULATOR_ERRORS(X)                                                                        \
  X(cudaSuccess, 0, "no error")                                                                   \
  X(cudaErrorInvalidValue, 1, "invalid argument")                                                 \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                                                \
  X(cudaErrorInitializationError, 3, "initialization error")                                      \
  X(cudaErrorCudartUnloading, 4, "driver shutting down")                                          \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                           \
  X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                     \
  X(cudaErrorStubLibrary, 34, "CUDA driver is a stub library")                                    \
  X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version") \
  X(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")         \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                 \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                        \
  X(cudaErrorInvalidKernelImage, 200, "device kernel image is invalid")                           \
  X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device") \
  X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                        \
  X(cudaErrorUnsupportedPtxVersion, 222, "the provided PTX was compiled with an unsupported toolchain.") \
  X(cudaErrorOperatingSystem, 304, "OS call failed or operation not supported on this OS")        \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                               \
  X(cudaErrorIllegalState, 401, "the operation cannot be performed in the present state")         \
  X(cudaErrorSymbolNotFound, 500, "named symbol not found")                                       \
  X(cudaErrorNotReady, 600, "device not ready")                                                   \
  X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                     \
  X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                \
  X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                       \
  X(cudaErrorAssert, 710, "device-side assert triggered")                                         \
  X(cudaErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped") \
  X(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region") \
  X(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered")                   \
  X(cudaErrorMisalignedAddress, 716, "misaligned address")                                        \
  X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                    \
  X(cudaErrorNotPermitted, 800, "operation not permitted")                                        \
  X(cudaErrorNotSupported, 801, "operation not supported")                                        \
  X(cudaErrorSystemNotReady, 802, "system not yet initialized")                                   \
  X(cudaErrorSystemDriverMismatch, 803, "system has unsupported display driver / cuda driver combination") \
  X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")   \
  X(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture") \
  X(cudaErrorStreamCaptureMerge, 902, "operation would result in a merge of separate capture sequences") \
  X(cudaErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it began") \
  X(cudaErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work")                    \
  X(cudaErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream") \
  X(cudaErrorStreamCaptureImplicit, 906, "operation would make the legacy stream depend on a capturing blocking stream") \
  X(cudaErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a capturing stream") \
  X(cudaErrorStreamCaptureWrongThread, 908, "attempt to terminate a thread-local capture sequence from another thread") \
  X(cudaErrorUnknown, 999, "unknown error")
// clang-format on
