// NCCL between the GPUs of ranks (exec/ranks/gpu_links.hpp).
//
// A link is a communicator with a stream of its own. Several are under way at once, and ranks do
// not start their kernels in one order, against which NCCL warns: kernels of two links that wait
// for each other on two GPUs must fit on both at the same time. They do: of a GPU's
// multiprocessors all links together take half at most (NcclConfig::most_blocks), every stream has
// a hardware queue of its own (CUDA_DEVICE_MAX_CONNECTIONS, exec/run/cuda_module.cpp), all code is
// loaded at the start (CUDA_MODULE_LOADING, the same place), no memory is taken or given back while
// links work, and a link begins only when all of its ranks are there (exec/ranks/rank_gpus.hpp), so
// that nobody's kernel waits for what another's has not yet computed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/cuda/ranks/nccl.hpp"
#include "exec/ranks/gpu_links.hpp"

namespace spillway::cuda {

class NcclLinks : public GpuLinks {
 public:
  // Of device `device`, by the library in `file` (nccl()).
  NcclLinks(int device, const std::string& file);

  std::string library() const override;
  std::string new_id() override;
  std::unique_ptr<Carrier> join(const Link& link) override;
  std::shared_ptr<std::byte> memory(std::uint64_t bytes) override;

 private:
  int device_;
  NcclFunctions nccl_;
};

}  // namespace spillway::cuda
