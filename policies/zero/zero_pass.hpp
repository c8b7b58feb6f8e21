// Forward and backward of one step as DeepSpeed's ZeRO-3 with offloading runs them: micro-batch by
// micro-batch, parameters fetched tensor by tensor (zero_fetch.hpp), gradients handed over in
// buckets, host copies that the host thread waits for.
//
// Gradients (stage3.py): when the bucket is full, each block's goes to a host accumulator; in the
// first micro-batch it is copied straight back (the norm is computed on the GPU), later the old sum
// is copied to the GPU, added to there, and copied out again. At the boundary, in the last
// micro-batch, the policy sends what its optimizer wants from the sum that is on the GPU.
// The embedding's two gradients stay on the GPU until the boundary.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "policies/common/model_state.hpp"
#include "policies/common/options.hpp"
#include "policies/zero/zero_fetch.hpp"

namespace spillway {

enum class ZeroCheckpoints : std::uint8_t {
  gpu,      // they stay
  host,     // pinned, asynchronous, the last one stays (DeepSpeed since August 2026)
  pageable  // all of them, pageable, and the host thread waits for each (DeepSpeed before)
};

struct ZeroPassOptions {
  ZeroCheckpoints checkpoints = ZeroCheckpoints::gpu;
  bool recomputes_output = true;              // recomputation re-runs the whole block
  bool cpu_passes = true;                     // the CPU pays for deepspeed_pass_bytes
  std::uint64_t reduce_bucket = 500'000'000;  // elements of gradient handed over together
  FetchOptions fetch;
};

// What a policy does at the boundary. `leave` sends the complete gradient of a unit, which is in
// GPU memory; `left` is called after the units of one bucket.
struct ZeroBoundary {
  std::function<void(int unit, Slice gradient, Slice head_gradient)> leave;
  std::function<void()> left;
};

class ZeroPass {
 public:
  // Takes persistent memory: host accumulators of all blocks, a bucket on the GPU, and, with
  // `whole_micro_batch`, what autograd needs there beyond this program's own kernels, which work
  // sequence by sequence.
  ZeroPass(Program& program, ModelState& state, const ZeroPassOptions& options,
           std::vector<Slice> slots, bool whole_micro_batch);

  void emit(int step, const ZeroBoundary& boundary);
  Slice host_accumulator(int block) const { return accumulators_[static_cast<std::size_t>(block)]; }

 private:
  void forward(int micro_batch);
  void backward(int micro_batch, const ZeroBoundary& boundary);
  Slice put_away(int block, int micro_batch, Slice gpu);
  Slice bring_back(int block, int micro_batch, Slice from);
  Slice gradient_of(int block, int micro_batch);
  struct Pending {
    int block = 0;
    Slice gradient;
  };
  void hand_over(std::vector<Pending>& bucket, int micro_batch, const ZeroBoundary& boundary);

  Program& program_;
  ModelState& state_;
  ZeroPassOptions options_;
  ParameterFetch fetch_;
  int blocks_;
  std::vector<Slice> accumulators_;  // in host memory, by block
  Slice bucket_;                     // on the GPU
  std::vector<Slice> inputs_;        // of the blocks, in the running micro-batch
  Slice hidden_;                     // activation, then its gradient
  Slice head_gradient_, embed_gradient_;
};

// DRAM bytes per element that DeepSpeed's passes on the CPU cost beside AdamW, in 16 bit: unscaling
// and clipping read and write the fp32 gradient (8); the overflow check reads the 16-bit gradient
// for infinities and for NaNs and writes a byte each time (6), joins the two (3) and takes the most
// (1); the new fp32 parameter is read and written in 16 bit (6). Where the CPU backend stands in
// for the GPU there are none.
std::uint8_t deepspeed_pass_bytes(const Problem& problem);

// The options of ZeroPassOptions, alike in all policies that run this pass.
std::vector<PolicyOption> zero_pass_options(const char* checkpoints_default);
ZeroPassOptions read_zero_pass(const OptionReader& read);
bool read_working_memory(const OptionReader& read);  // whole micro-batch

}  // namespace spillway
