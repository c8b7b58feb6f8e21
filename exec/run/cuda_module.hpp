// The CUDA module, seen from the program: loaded on demand, absent on machines without CUDA.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "exec/ranks/gpu_links.hpp"
#include "exec/run/device.hpp"
#include "exec/run/gpu_bench.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

struct CudaGpu {
  int id = 0;  // as nvidia-smi numbers them
  std::string name;
  std::uint64_t memory_bytes = 0;
  int major = 0, minor = 0;  // compute capability
  std::string pci_bus = {};  // "0000:3b:00.0"
  // bf16 on tensor cores came with 8.0 (Ampere).
  bool usable() const { return major >= 8; }
};

struct CudaDevices {
  bool module_loaded =
      false;  // the program was built with a CUDA toolkit, and its libraries are here
  int count = 0;
  std::string text;           // one line per device; or why there is none
  std::vector<CudaGpu> gpus;  // those that say what they are
};

// Which build this is: the program and its module pass each other C++ objects, so they must agree
// on what these look like.
std::string cuda_module_version();

// Never throws: a machine without a GPU, or a build without CUDA, is normal.
CudaDevices find_cuda_devices();

// Whether there is an NVIDIA driver at all: quickly, without the module and CUDA's libraries.
bool cuda_driver_present();

// GPU memory that is free now, once CUDA itself has taken what it needs. Throws MachineError.
std::uint64_t cuda_free_bytes(int device);

// Which kernels compute attention, by the environment's SPILLWAY_CUDA_ATTENTION: "mma", which is
// also what is taken where it says nothing, or "wgmma" (exec/cuda/attention/attention_choice.hpp).
// Throws InputError when it says something else.
std::string cuda_attention();

struct CudaOptions {
  int device = 0;   // as nvidia-smi numbers them
  int threads = 1;  // of the optimizer on the CPU
  std::string attention = cuda_attention();
  // What computes GELU's backward: "kernel", "dgelu" or "dgelu-bgrad"
  // (exec/cuda/gpt/gelu_choice.hpp).
  std::string gelu_backward = "kernel";
  // Tries several algorithms for every matrix product before training, and takes the fastest of
  // those with equal bits; else the one that cuBLASLt's heuristics put first.
  bool tunes_products = true;
  // Of a training that goes on: Device::algorithms() as it was recorded, which is used again
  // instead. Empty where nothing was: then each start asks the heuristics, as was done before
  // there were records.
  std::optional<std::string> recorded_algorithms = {};
  // Told what takes long while the device is made: "pinning host memory: 12 of 96 GB". May be
  // empty; calls come from any thread, one at a time.
  std::function<void(const std::string&)> say = {};
};

// The algorithms recorded with a training cannot be used on this GPU, or with this cuBLASLt.
class RecordedAlgorithmsRefused : public InputError {
 public:
  explicit RecordedAlgorithmsRefused(const std::string& why)
      : InputError("the training cannot go on bit for bit: " + why,
                   "go on with a GPU and libraries of the kind that it was trained with") {}
};

// Bytes of GPU memory that training takes beside what the schedule plans. Throws MachineError where
// there is no module.
std::uint64_t cuda_reserved_bytes(const Problem& problem);

// A CUDA GPU with memory of these sizes (exec/cuda/device/cuda_device.hpp has the errors).
std::unique_ptr<Device> make_cuda_device(const Problem& problem, std::uint64_t gpu_bytes,
                                         std::uint64_t host_bytes, const CudaOptions& options);

// What a CUDA GPU reaches those of other ranks by: NCCL, as the environment's SPILLWAY_NCCL says:
// nothing, the library that the system's loader finds; a file; or "off". Throws MachineError where
// there is none, or it is off.
std::unique_ptr<GpuLinks> make_gpu_links(int device);

// Measures a CUDA GPU (exec/run/gpu_bench.hpp). Throws MachineError where there is no module or no
// such device.
std::unique_ptr<GpuBench> make_gpu_bench(const GpuBenchOptions& options);

}  // namespace spillway
