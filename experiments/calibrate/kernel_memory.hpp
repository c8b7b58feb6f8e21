// The memory that the kernels of one micro-batch are timed on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rounding.hpp"
#include "exec/run/executor.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/weight_operands.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Takes ranges of bytes from a tier's memory, or only counts them.
class MemoryCarver {
 public:
  explicit MemoryCarver(std::byte* memory) : memory_(memory) {}
  std::byte* take(std::uint64_t bytes) {
    std::byte* const taken = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += round_up(bytes, buffer_alignment);
    return taken;
  }
  std::uint64_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::uint64_t used_ = 0;
};

// What a layer has for itself. Layers take turns as in training: what one works on has left the
// caches when its turn comes again, and what all of them use has not.
struct LayerMemory {
  std::byte *parameters = nullptr, *gradient = nullptr, *saved = nullptr;
  std::byte* weight_operands = nullptr;
};

// What the kernels of one micro-batch work on.
struct KernelMemory {
  std::vector<LayerMemory> layers;
  std::byte *embedding, *head, *input, *output, *hidden, *scratch;
  std::byte *host_input, *host_upstream, *host_text, *host_losses, *host_squares, *host_noise;

  KernelMemory(const Problem& problem, std::uint64_t text_bytes, std::size_t layer_count,
               MemoryCarver& gpu, MemoryCarver& host)
      : layers(layer_count) {
    const std::uint64_t activations = checkpoint_bytes(problem);
    for (LayerMemory& layer : layers) {
      layer.parameters = gpu.take(parameter_bytes(problem, 0));
      layer.gradient = gpu.take(gradient_bytes(problem));
      layer.saved = gpu.take(saved_bytes(problem, saved_all(problem.model)));
      if (splits_backward(problem))
        layer.weight_operands = gpu.take(weight_operand_bytes(problem, saved_none));
    }
    const ModelSpec& model = problem.model;
    embedding = gpu.take(parameter_bytes(problem, embedding_unit(model)));
    head = model.tied ? embedding : gpu.take(parameter_bytes(problem, head_unit(model)));
    for (std::byte** buffer : {&input, &output, &hidden}) *buffer = gpu.take(activations);
    scratch = gpu.take(scratch_bytes(problem));
    for (std::byte** buffer : {&host_input, &host_upstream}) *buffer = host.take(activations);
    host_text = host.take(text_bytes);
    host_losses = host.take(static_cast<std::uint64_t>(problem.workload.micro_batch) * 8);
    host_squares = host.take(8);
    host_noise = host.take(sizeof(NoiseKey));
  }

  // Whether a backward in two passes is timed, too: the backend has it, and the model.
  static bool splits_backward(const Problem& problem) {
    return problem.backend() == Backend::cpu && !problem.model.has_adapters();
  }
  static std::uint64_t parameter_bytes(const Problem& problem, std::int64_t unit) {
    return static_cast<std::uint64_t>(unit_elements(problem.model, unit)) *
           problem.parameter_bytes();
  }
  static std::uint64_t gradient_bytes(const Problem& problem) {
    return static_cast<std::uint64_t>(largest_trained_elements(problem.model)) *
           problem.gradient_bytes();
  }
  static std::uint64_t scratch_bytes(const Problem& problem) {
    return std::max({forward_scratch_bytes(problem, saved_none),
                     forward_scratch_bytes(problem, saved_all(problem.model)),
                     backward_scratch_bytes(problem, saved_none),
                     backward_scratch_bytes(problem, saved_all(problem.model)),
                     input_gradient_scratch_bytes(problem, saved_none),
                     input_gradient_scratch_bytes(problem, saved_all(problem.model)),
                     weight_gradient_scratch_bytes(problem), head_scratch_bytes(problem),
                     embed_backward_scratch_bytes(problem)});
  }
};

}  // namespace spillway
