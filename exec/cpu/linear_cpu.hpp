// One matrix product on the CPU, with its bias and its low-rank adapters, forward and backward:
//
//   y = [residual +] [bias +] W x + scale B (A drop(x))
//
// W may be several matrices of one input, one under the other (queries, keys and values; gate and
// up); some or all of these have adapters. All arrays are row-major and dense unless said
// otherwise; a row is a token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "exec/cpu/dropout.hpp"
#include "exec/cpu/kernels_cpu.hpp"
#include "exec/cpu/kernels_gemm.hpp"
#include "policies/model/units.hpp"

namespace spillway {

// Which values dropout takes from the first sequence of a micro-batch; read only where the model
// has dropout.
struct DropoutPlace {
  NoiseKey step;  // step_noise_key() of the step
  int layer = 0;
  std::int64_t sequence = 0;  // its number in the step's batch
  bool drops = true;          // else all remains, as in an evaluation
};

// What the adapters of a layer work in, for one sequence: scratch.hpp has the sizes.
struct AdapterSpace {
  float* product = nullptr;   // A x
  float* gradient = nullptr;  // that of A x, in backward
  float* input = nullptr;     // with dropout: what remains of x; in backward then its gradient
  DropoutPlace place;
};

class LinearCpu {
 public:
  // Of a unit without adapters: a matrix (out, in) at element `matrix` of the unit.
  LinearCpu(std::int64_t matrix, std::int64_t in, std::int64_t out);
  // Of a layer, with the adapters that the model has for it. A bias at -1: there is none.
  LinearCpu(const ModelSpec& model, std::int64_t matrix, std::int64_t bias, std::int64_t in,
            std::int64_t out);

  // x (rows, in), residual (rows, out) or null -> y (rows, out).
  void forward(const CpuKernels& kernels, const float* parameters, const float* x,
               const float* residual, float* y, std::int64_t rows, const AdapterSpace& space) const;

  // x_gradient (rows, in) is overwritten; the gradients of what is trained are added to `gradient`,
  // which is the unit's, or null where the unit is frozen.
  void backward(const CpuKernels& kernels, const float* parameters, const float* x,
                const float* y_gradient, Strided<float> x_gradient, float* gradient,
                std::int64_t rows, const AdapterSpace& space) const;
  // The part of backward() that adds to the gradients of W and of the bias.
  void weight_gradient(const CpuKernels& kernels, const float* x, const float* y_gradient,
                       float* gradient, std::int64_t rows) const;

 private:
  struct Adapter {
    std::int64_t b;                // first element of B
    std::int64_t first_row, rows;  // of W: its matrix
  };
  // A x of all adapters, to space.product; returns x or what dropout leaves of it.
  const float* project(const float* parameters, const float* x, std::int64_t rows,
                       const AdapterSpace& space) const;
  void add_adapters(const float* parameters, const float* x, float* y, std::int64_t rows,
                    const AdapterSpace& space) const;
  void adapters_backward(const float* parameters, const float* x, const float* y_gradient,
                         Strided<float> x_gradient, float* gradient, std::int64_t rows,
                         const AdapterSpace& space) const;
  NoiseKey dropout_row(std::int64_t row, const AdapterSpace& space) const;

  std::int64_t matrix_, bias_ = -1, in_, out_;
  bool trained_ = true;  // W and bias; else the adapters alone
  std::vector<Adapter> adapters_;
  std::int64_t a_ = 0, rank_ = 0, ranks_ = 0;  // first element of their A; of one; of all
  float scale_ = 0;
  int group_ = 0;
  std::optional<Dropout> dropout_;
};

}  // namespace spillway
