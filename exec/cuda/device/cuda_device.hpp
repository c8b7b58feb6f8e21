// A CUDA GPU as a device: the gpu tier is one arena in its memory, taken once; the host tier is
// pinned; gpu.compute and the copy lanes are streams.
//
// What the backend needs beyond the arena (workspaces of kernels and matrix products, staged text)
// is one more allocation, and a little behind the arena; its size is known beforehand:
// reserved_bytes().
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "exec/cpu/host_optimizer.hpp"
#include "exec/cuda/attention/attention_choice.hpp"
#include "exec/cuda/device/cuda_streams.hpp"
#include "exec/cuda/device/pinned_memory.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/matmul/matmul.hpp"
#include "exec/cuda/model/model_cuda.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/device.hpp"
#include "policies/workload/problem.hpp"

namespace spillway::cuda {

struct CudaDeviceOptions {
  int device = 0;                 // as nvidia-smi numbers them (the program sets CUDA_DEVICE_ORDER)
  int threads = 1;                // of the optimizer on the CPU
  std::string attention = "mma";  // or "wgmma": attention_choice.hpp
  // As in CudaOptions (exec/run/cuda_module.hpp).
  std::string gelu_backward = "kernel";
  bool tunes_products = true;
  std::optional<std::string> recorded_algorithms = {};
  std::function<void(const std::string&)> say = {};  // CudaOptions::say
};

using AnyModel = std::variant<std::unique_ptr<ModelCuda<float>>, std::unique_ptr<ModelCuda<bf16>>>;

class CudaDevice : public Device {
 public:
  // Takes memory of both tiers at once. Throws InputError when the problem is not one the backend
  // computes, MachineError when the machine cannot give the memory or the GPU cannot be used.
  CudaDevice(const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes,
             const CudaDeviceOptions& options);
  ~CudaDevice() override;

  // GPU memory used beside the arena.
  static std::uint64_t reserved_bytes(const Problem& problem);

  std::string name() const override;
  std::span<std::byte> gpu_memory() override;
  std::span<std::byte> host_memory() override { return host_.span(); }
  bool host_reaches_gpu_memory() const override { return false; }
  void upload(std::uint64_t offset, std::span<const std::byte> from) override;
  void download(std::uint64_t offset, std::span<std::byte> to) override;
  void compute(const Task& task, const Operands& operands) override;
  void copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  std::string algorithms() const override { return algorithms_; }
  Streams* streams() override { return &streams_; }
  std::optional<HostMemorySetup> host_memory_setup() const override { return host_setup_; }
  std::uint64_t highest_written(Tier tier) const override;

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const { static_cast<void>(cudaFree(memory)); }
  };
  using Memory = std::unique_ptr<std::byte, FreeMemory>;
  struct DestroyStream {
    void operator()(cudaStream_t stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
  };
  // bf16 and fp32 made of it are NaN: what is used before it was written shows.
  static constexpr int poison = 0xff;
  // The parts of the second allocation.
  struct Reserved {
    std::size_t model, text, numbers, bytes;
  };
  static Reserved layout(const Problem& problem);
  static std::uint64_t rehearsal_bytes(const Problem& problem);
  static Memory take(std::uint64_t bytes, const char* what);

  std::int32_t* fetch(const Operands& operands, std::int64_t first, std::int64_t end,
                      std::int64_t to);
  Text stage(const Task& task, const Operands& operands);
  Text stage_positions(const Operands& operands);
  AttentionBorders stage_borders(const Operands& operands);
  template <class Element>
  void compute_with(ModelCuda<Element>& model, const Task& task, const Operands& operands);
  const UnitRanges& ranges(std::int64_t unit) const;
  // The norms of the units that have a gradient, but for rule.left_out within them.
  struct TrainedNorms {
    std::int64_t first = 0, count = 0;
  };
  static TrainedNorms trained_norms(const ModelSpec& model, ClipRule& rule);
  template <class Gradient>
  void optimizer(const Task& task, const Operands& operands);
  template <class Gradient>
  void gradient_norm(const Task& task, const Operands& operands);
  void transfer(std::byte* device, std::byte* host, std::uint64_t bytes, bool down);
  // Settles by which algorithm each matrix product is computed, in memory that training has not
  // begun to use, and says so as text.
  std::string settle_algorithms();

  Problem problem_;
  CudaDeviceOptions options_;
  std::string name_;
  AttentionKernels attention_;  // before anything else is taken on the device
  HostMemorySetup host_setup_;
  Arena host_;
  PinnedMemory host_registration_;
  Memory arena_, reserved_;
  std::uint64_t arena_bytes_;
  Reserved parts_;
  CudaStreams streams_;
  AnyModel model_;
  HostOptimizer host_optimizer_;
  UnitRanges layer_ranges_, embedding_ranges_, head_ranges_;
  ClipRule clip_;
  TrainedNorms trained_norms_;
  Workspace workspace_;  // of the optimizer's kernels, which share it with the model's

  // For upload() and download(), beside the lanes.
  std::mutex transfer_mutex_;
  Arena staging_;
  std::shared_ptr<void> staging_registration_;
  std::unique_ptr<CUstream_st, DestroyStream> transfers_;
  std::string algorithms_;
};

}  // namespace spillway::cuda
