#include "exec/cpu/host_optimizer.hpp"

#include <algorithm>
#include <cstring>

#include "base/errors.hpp"
#include "exec/cpu/adam.hpp"
#include "exec/run/clipping.hpp"
#include "policies/model/stages.hpp"
#include "policies/movement/shards.hpp"

namespace spillway {

namespace {

void write_parameters(const CpuKernels&, const float* master, float* parameters, std::int64_t n) {
  std::memcpy(parameters, master, static_cast<std::size_t>(n) * sizeof(float));
}
void write_parameters(const CpuKernels& kernels, const float* master, bf16* parameters,
                      std::int64_t n) {
  kernels.round_to_bf16(master, parameters, n);
}

}  // namespace

HostOptimizer::HostOptimizer(const Problem& problem, int threads, CpuVariant variant)
    : workload_(problem.workload),
      wide_gradient_(problem.gradient_bytes() == sizeof(float)),
      wide_parameters_(problem.parameter_bytes() == sizeof(float)),
      layers_(problem.model.layers),
      variant_(variant),
      pool_(threads),
      sums_(static_cast<std::size_t>(square_sums(largest_trained_elements(problem.model)))) {
  for (std::int64_t unit = layers_ - 1; unit < unit_count(problem.model); ++unit) {
    layouts_.push_back(unit_layout(problem.model, unit));
  }
  for (std::int64_t unit = 0; unit < unit_count(problem.model); ++unit)
    whole_units_.push_back(static_cast<std::int32_t>(whole_unit(problem.model, unit)));
  // By unit of the whole model, as norms are.
  const ModelSpec whole = whole_model(problem.model);
  for (std::int64_t unit = 0; unit < unit_count(whole); ++unit)
    frozen_.push_back(trained_elements(whole, unit) == 0);
  cpu_kernels(variant);  // whether there is such a variant
}

template <class Gradient, class Parameter, class Moment>
void HostOptimizer::update_as(const Task& task, const Operands& o) const {
  const auto elements = static_cast<std::int64_t>(task.params);
  float* const master = reinterpret_cast<float*>(o.optimizer_state);
  Moment* const moments = reinterpret_cast<Moment*>(master + elements);
  Parameter* const parameters = reinterpret_cast<Parameter*>(o.parameters);
  const GradientUse use =
      gradient_use(workload_, o.norms, whole_units_[static_cast<std::size_t>(task.layer)], frozen_);
  if (use.skip) {
    write_parameters(cpu_kernels(variant_), master, parameters, elements);
    *o.gradient_square_sum = 0;
    return;
  }
  AdamStep adam = o.adam;
  adam.gradient_factor = use.factor;
  adam.unit = whole_units_[static_cast<std::size_t>(task.layer)];
  // Some policies update on two lanes at a time. The threads are for one of them; the result does
  // not depend on which.
  const std::unique_lock lock(pool_mutex_, std::try_to_lock);
  *o.gradient_square_sum = adamw_update_unit(
      lock ? pool_ : alone_, master, moments, moments + elements,
      reinterpret_cast<const Gradient*>(o.gradient),
      reinterpret_cast<const Gradient*>(o.head_gradient), parameters,
      static_cast<std::int64_t>(task.first_element), elements, layout(task), adam, variant_);
}

template <class Gradient, class Parameter>
void HostOptimizer::update_parameters(const Task& task, const Operands& operands) const {
  workload_.moments == MomentWidth::fp32 ? update_as<Gradient, Parameter, float>(task, operands)
                                         : update_as<Gradient, Parameter, bf16>(task, operands);
}

void HostOptimizer::update(const Task& task, const Operands& operands) const {
  if (wide_gradient_) {
    wide_parameters_ ? update_parameters<float, float>(task, operands)
                     : update_parameters<float, bf16>(task, operands);
  } else {
    wide_parameters_ ? update_parameters<bf16, float>(task, operands)
                     : update_parameters<bf16, bf16>(task, operands);
  }
}

template <class Gradient>
void HostOptimizer::gradient_norm_as(const Task& task, const Operands& o) const {
  const auto* const gradient = reinterpret_cast<const Gradient*>(o.gradient);
  const auto* const second = reinterpret_cast<const Gradient*>(o.head_gradient);
  const std::uint64_t elements = task.bytes / sizeof(Gradient) / (second != nullptr ? 2 : 1);
  const std::unique_lock lock(pool_mutex_, std::try_to_lock);
  const auto squares_of = [&](const ElementRange& range) {
    const auto* const own = second != nullptr ? second + range.first : nullptr;
    const auto count = static_cast<std::int64_t>(range.elements);
    return lock ? sum_of_squares(pool_, sums_, gradient + range.first, own, count, variant_)
                : cpu_kernels(variant_).sum_squares(gradient + range.first, own, count);
  };
  const int shards = workload_.ranks > 1 ? 1 : workload_.state_shards();
  double squares = 0;
  for (int rank = 0; rank < shards; ++rank) {
    const double own = squares_of(
        updated_by_rank(workload_.group_meshes, shards, task.layer < layers_, elements, rank));
    squares = rank == 0 ? own : squares + own;
  }
  o.norms.front() = squares;
  *o.gradient_square_sum = squares;
}

void HostOptimizer::gradient_add(const Task& task, const Operands& o) const {
  SPILLWAY_ASSERT(wide_gradient_, "sums are fp32");
  auto* const sum = reinterpret_cast<float*>(o.gradient);
  const auto bytes_of_one = 3 * sizeof(float);  // Program::gradient_add
  cpu_kernels(variant_).add(sum, reinterpret_cast<const float*>(o.input), sum,
                            static_cast<std::int64_t>(task.bytes / bytes_of_one));
}

void HostOptimizer::gradient_norm(const Task& task, const Operands& operands) const {
  wide_gradient_ ? gradient_norm_as<float>(task, operands) : gradient_norm_as<bf16>(task, operands);
}

}  // namespace spillway
