// A rank's GPU, and what it reaches those of other ranks by without the host: what a library such
// as NCCL is asked for. The CUDA module has it (exec/cuda/ranks), where there is NCCL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "exec/ranks/carrier.hpp"

namespace spillway {

class GpuLinks {
 public:
  // One that some ranks join together. It takes memory of their GPUs, all that it will ever take.
  struct Link {
    std::string id;  // of new_id(), by one of them
    int own = 0, count = 1;
    bool one_way = false;           // of two: from 0 to 1 alone
    std::uint64_t piece_bytes = 0;  // Carrier::piece_bytes()
    // Called again and again while others are waited for; what it throws comes out.
    std::function<void()> waiting;
  };

  virtual ~GpuLinks() = default;
  virtual std::string library() const = 0;  // "NCCL 2.28.9"
  virtual std::string new_id() = 0;         // any bytes
  // By all that join it at once, while nothing else is under way. It carries something before it
  // returns, and looks at what arrives. Throws MachineError.
  virtual std::unique_ptr<Carrier> join(const Link& link) = 0;
  // Memory of the GPU, all zeros.
  virtual std::shared_ptr<std::byte> memory(std::uint64_t bytes) = 0;
};

}  // namespace spillway
