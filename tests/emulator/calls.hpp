// What every function of the emulated runtime does first and last: counts itself, fails if a test
// asked for it or if the device has failed before, and remembers its error for cudaGetLastError.
#pragma once

#include <string>

#include "tests/emulator/emulator.hpp"

namespace emulator {

const Machine& machine();
// Of this thread (cudaSetDevice).
int current_device();

// cudaSuccess, or what the call is to return without doing anything.
cudaError_t enter(const char* name);
cudaError_t leave(cudaError_t result);

// Calls function(data) as CUDA calls functions of the host: one at a time, whatever their streams,
// so that one that waits for another hangs, as it may there; and what it calls of CUDA is refused.
void run_host_function(void (*function)(void*), void* data);

template <class Body>
cudaError_t call(const char* name, Body&& body) {
  const cudaError_t error = enter(name);
  return leave(error == cudaSuccess ? body() : error);
}

// Whether a RecordLaunches lives; writes a launch down.
bool recording();
void record_launch(LaunchRecord launch);

void count_one(const std::string& name);
// Counts a kernel that is about to run; whether a test asked for it to fail.
bool kernel_ordered_to_fail(const std::string& name, cudaError_t& code);

// The device failed: the first one stays. `text` says how.
void fail_device(cudaError_t code, const std::string& text);
// cudaSuccess as long as it did not.
cudaError_t device_state();

}  // namespace emulator
