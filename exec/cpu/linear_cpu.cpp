#include "exec/cpu/linear_cpu.hpp"

#include <algorithm>

namespace spillway {

LinearCpu::LinearCpu(std::int64_t matrix, std::int64_t in, std::int64_t out)
    : matrix_(matrix), in_(in), out_(out) {}

LinearCpu::LinearCpu(const ModelSpec& model, std::int64_t matrix, std::int64_t bias,
                     std::int64_t in, std::int64_t out)
    : LinearCpu(matrix, in, out) {
  bias_ = bias;
  if (!model.has_adapters()) return;
  trained_ = false;
  rank_ = model.lora_rank;
  scale_ = static_cast<float>(model.lora_scale());
  if (model.lora_dropout > 0) dropout_ = dropout_of(model.lora_dropout);
  for (const AdaptedMatrix& one : adapted_matrices(model)) {
    if (one.matrix < matrix || one.matrix >= matrix + out * in) continue;
    if (adapters_.empty()) a_ = one.a;
    group_ = one.group;
    adapters_.push_back({one.b, (one.matrix - matrix) / in, one.rows});
  }
  ranks_ = static_cast<std::int64_t>(adapters_.size()) * rank_;
}

void LinearCpu::forward(const CpuKernels& kernels, const float* parameters, const float* x,
                        const float* residual, float* y, std::int64_t rows,
                        const AdapterSpace& space) const {
  const float* const bias = bias_ >= 0 ? parameters + bias_ : nullptr;
  if (residual != nullptr && bias != nullptr) {
    kernels.add_to_rows(residual, bias, y, rows, out_);
  } else if (residual != nullptr) {
    std::copy_n(residual, rows * out_, y);
  } else if (bias != nullptr) {
    kernels.fill_rows(bias, y, rows, out_);
  }
  const float before = residual != nullptr || bias != nullptr ? 1.0f : 0.0f;
  gemm(CblasNoTrans, CblasTrans, rows, out_, in_, 1.0f, {x, in_}, {parameters + matrix_, in_},
       before, {y, out_});
  if (!adapters_.empty()) add_adapters(parameters, x, y, rows, space);
}

void LinearCpu::backward(const CpuKernels& kernels, const float* parameters, const float* x,
                         const float* y_gradient, Strided<float> x_gradient, float* gradient,
                         std::int64_t rows, const AdapterSpace& space) const {
  if (trained_ && gradient != nullptr) weight_gradient(kernels, x, y_gradient, gradient, rows);
  gemm(CblasNoTrans, CblasNoTrans, rows, in_, out_, 1.0f, {y_gradient, out_},
       {parameters + matrix_, in_}, 0.0f, x_gradient);
  if (!adapters_.empty())
    adapters_backward(parameters, x, y_gradient, x_gradient, gradient, rows, space);
}

void LinearCpu::weight_gradient(const CpuKernels& kernels, const float* x, const float* y_gradient,
                                float* gradient, std::int64_t rows) const {
  gemm(CblasTrans, CblasNoTrans, out_, in_, rows, 1.0f, {y_gradient, out_}, {x, in_}, 1.0f,
       {gradient + matrix_, in_});
  if (bias_ >= 0) kernels.add_column_sums(y_gradient, gradient + bias_, rows, out_);
}

NoiseKey LinearCpu::dropout_row(std::int64_t row, const AdapterSpace& space) const {
  const DropoutPlace& place = space.place;
  return spillway::dropout_row(dropout_key(place.step, place.layer, group_, place.sequence), row);
}

const float* LinearCpu::project(const float* parameters, const float* x, std::int64_t rows,
                                const AdapterSpace& space) const {
  if (dropout_ && space.place.drops) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const NoiseKey key = dropout_row(row, space);
      for (std::int64_t i = 0; i < in_; ++i)
        space.input[row * in_ + i] = remaining(*dropout_, key, i, x[row * in_ + i]);
    }
    x = space.input;
  }
  gemm(CblasNoTrans, CblasTrans, rows, ranks_, in_, 1.0f, {x, in_}, {parameters + a_, in_}, 0.0f,
       {space.product, ranks_});
  return x;
}

void LinearCpu::add_adapters(const float* parameters, const float* x, float* y, std::int64_t rows,
                             const AdapterSpace& space) const {
  project(parameters, x, rows, space);
  const float* product = space.product;
  for (const Adapter& one : adapters_) {
    gemm(CblasNoTrans, CblasTrans, rows, one.rows, rank_, scale_, {product, ranks_},
         {parameters + one.b, rank_}, 1.0f, {y + one.first_row, out_});
    product += rank_;
  }
}

void LinearCpu::adapters_backward(const float* parameters, const float* x, const float* y_gradient,
                                  Strided<float> x_gradient, float* gradient, std::int64_t rows,
                                  const AdapterSpace& space) const {
  const float* const input = project(parameters, x, rows, space);
  for (std::size_t i = 0; i < adapters_.size(); ++i) {
    const Adapter& one = adapters_[i];
    const std::int64_t column = static_cast<std::int64_t>(i) * rank_;
    const Strided<const float> dy{y_gradient + one.first_row, out_};
    gemm(CblasTrans, CblasNoTrans, one.rows, rank_, rows, scale_, dy,
         {space.product + column, ranks_}, 1.0f, {gradient + one.b, rank_});
    gemm(CblasNoTrans, CblasNoTrans, rows, rank_, one.rows, scale_, dy, {parameters + one.b, rank_},
         0.0f, {space.gradient + column, ranks_});
  }
  gemm(CblasTrans, CblasNoTrans, ranks_, in_, rows, 1.0f, {space.gradient, ranks_}, {input, in_},
       1.0f, {gradient + a_, in_});
  const auto add_to = [&](float before, Strided<float> to) {
    gemm(CblasNoTrans, CblasNoTrans, rows, in_, ranks_, 1.0f, {space.gradient, ranks_},
         {parameters + a_, in_}, before, to);
  };
  if (!dropout_) return add_to(1.0f, x_gradient);
  add_to(0.0f, {space.input, in_});
  for (std::int64_t row = 0; row < rows; ++row) {
    const NoiseKey key = dropout_row(row, space);
    float* const to = x_gradient.data + row * x_gradient.stride;
    for (std::int64_t i = 0; i < in_; ++i)
      to[i] += remaining(*dropout_, key, i, space.input[row * in_ + i]);
  }
}

}  // namespace spillway
