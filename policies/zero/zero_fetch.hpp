// Fetching parameters as DeepSpeed's ZeRO-3 does (partitioned_param_coordinator.py and the
// parameter swapper, version 0.19.6): tensor by tensor, on one host thread, looking ahead by
// elements.
//
// For each tensor in order of use the host thread
//   1. copies it to the GPU if it is not there; if it is not in host memory either, it reads it
//      and waits; if a read is under way, it waits for all reads;
//   2. waits for the copies to the GPU;
//   3. starts copies of the tensors that follow, up to a bucket of elements, up to the first that
//      is still on the SSD;
//   4. starts reads of the tensors that follow, until the elements looked at exceed twice those on
//      their way to the GPU, or no slot of host memory is free.
// A norm is a module too: its parameters are always there, but steps 3 and 4 run when it is
// reached. After its use a tensor is released, unless it is used again within the reuse distance.
// The order is known from the first micro-step (the trace), which is not part of a schedule; each
// micro-step starts cold. Recomputation and backward of a block share one fetch.
//
// A block's compute is one task over one buffer, where DeepSpeed's is a module: here all tensors of
// the block have arrived before it starts. A tensor that is kept for reuse gives its slot back
// (DeepSpeed's keeps it, and stops when none is left).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policies/common/model_state.hpp"
#include "policies/schedule/program.hpp"
#include "policies/model/tensors.hpp"

namespace spillway {

struct FetchOptions {
  std::uint64_t prefetch_bucket = 50'000'000;        // elements; 0 turns both prefetches off
  std::uint64_t max_live = 1'000'000'000;            // elements on the GPU beyond which no prefetch
  std::uint64_t max_reuse_distance = 1'000'000'000;  // elements
};

// Elements of the trace between the use of tensor `tensor` of `block` in forward and in backward,
// where each tensor counts twice in backward (recomputed, then differentiated).
std::uint64_t reuse_distance(const ModelSpec& model, int block, std::size_t tensor);

class ParameterFetch {
 public:
  // `slots`: persistent host buffers for what is read from the SSD, each as large as the largest
  // tensor; unused where parameters do not rest there.
  ParameterFetch(Program& program, const ModelState& state, const FetchOptions& options,
                 std::vector<Slice> slots);

  void begin_micro_step();
  // All parameters of a block in one GPU slice, and what the host thread does to get them there.
  // In order: forward(0 .. L-1), then backward(L-1 .. 0).
  Slice forward(int block) { return fetch(block, false); }
  Slice backward(int block) { return fetch(block, true); }

 private:
  struct Use {
    int block = 0;
    std::size_t tensor = 0;
    bool backward = false;
  };
  struct Residence {
    Slice host;  // valid once a read into it was started, or always, where it rests there
    std::size_t slot = no_slot;
    bool on_gpu = false;
    bool in_flight = false;  // prefetched to the GPU and not yet used
  };
  static constexpr std::size_t no_slot = ~std::size_t{0};

  Slice fetch(int block, bool backward);
  void copy_to_gpu(const Use& use);
  void make_host_resident(const Use& use);
  void start_read(const Use& use);
  void look_ahead(const Use& current);
  void prefetch_to_gpu(const Use& current);
  void prefetch_from_ssd(const Use& current);
  void release(const Use& use);
  bool ends_look_ahead(const Use& current, const Use& use) const;

  std::uint64_t elements(const Use& use) const;
  Slice at_rest(const Use& use) const;
  bool is_kept(const Use& use) const;
  Residence& residence(const Use& use);
  Slice& gpu_buffer(bool backward, int block);
  std::size_t free_slot() const;

  Program& program_;
  const ModelState& state_;
  FetchOptions options_;
  std::vector<Slice> slots_;
  std::vector<bool> slot_used_;
  std::vector<TensorRun> tensors_;       // of one block: blocks are alike
  std::size_t feed_forward_ = 0;         // the first tensor after the block's second norm
  std::vector<std::vector<bool>> kept_;  // by block and tensor
  std::vector<Use> trace_;               // of one micro-step
  std::size_t next_ = 0;                 // in the trace: the first that was not fetched yet
  std::vector<std::vector<Residence>> residence_;  // by block and tensor
  std::array<std::vector<Slice>, 2> gpu_;          // by direction and block
  std::uint64_t available_ = 0;                    // elements on the GPU
  std::uint64_t in_flight_ = 0;  // elements prefetched to the GPU and not yet used
  bool reads_under_way_ = false;
};

}  // namespace spillway
