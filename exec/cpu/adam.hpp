// AdamW on the CPU (Loshchilov and Hutter, 2019; the update of torch.optim.AdamW):
//
//   g = (gradient + second_gradient) gradient_factor
//   m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
//   p = p (1 - lr weight_decay) - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//
// Masters are fp32; Gradient, Parameter and Moment are float or bf16 each: what is added up of the
// gradient and the update itself are fp32, and parameters are the masters, rounded. MomentWidth in
// bf16 are widened, the parameter is made of the new ones before they are rounded, and they are
// rounded stochastically, by bits that are a function of seed, step, unit and element
// (exec/cpu/stochastic_rounding.hpp). An element's result depends on that element alone, so a unit
// may be updated in pieces of any size and order, on any variant, with the same bits.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "exec/cpu/kernels_cpu.hpp"
#include "exec/cpu/thread_pool.hpp"
#include "policies/model/units.hpp"

namespace spillway {

struct AdamStep {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  std::int64_t t = 1;         // 1-based number of the update
  float gradient_factor = 1;  // of gradient clipping (exec/run/clipping.hpp)
  // Of the rounding of moments in bf16.
  std::uint64_t seed = 0;
  std::int32_t unit = 0;
};

// What the kernels need; beta^t is worked out in double from t, never step by step.
AdamConstants adam_constants(const AdamStep& step);

// Updates n elements of master, m, v in place and writes master to parameters_out as well.
// second_gradient may be null, else it is added to gradient. Returns the sum of squares of the sum,
// before the factor.
template <class Gradient, class Parameter, class Moment>
double adamw_update(float* master, Moment* m, std::type_identity_t<Moment>* v,
                    const Gradient* gradient, const std::type_identity_t<Gradient>* second_gradient,
                    Parameter* parameters_out, std::int64_t n, const AdamStep& step,
                    CpuVariant variant = best_cpu_variant());

// The same for elements [first_element, first_element + elements) of a unit with this layout; all
// pointers are to the first of these. Weight decay applies to tensors with decay = true only.
// Padding (what no tensor covers) is written as zero everywhere and does not count in the result.
template <class Gradient, class Parameter, class Moment>
double adamw_update_unit(float* master, Moment* m, std::type_identity_t<Moment>* v,
                         const Gradient* gradient,
                         const std::type_identity_t<Gradient>* second_gradient,
                         Parameter* parameters_out, std::int64_t first_element,
                         std::int64_t elements, const std::vector<TensorLayout>& layout,
                         const AdamStep& step, CpuVariant variant = best_cpu_variant());

// The same by all threads of `pool`: one core alone does not use all the bandwidth of memory. Cut
// into pieces whose size depends on `elements` only, so the result, to the last bit of the sum of
// squares, does not depend on the number of threads.
template <class Gradient, class Parameter, class Moment>
double adamw_update_unit(ThreadPool& pool, float* master, Moment* m,
                         std::type_identity_t<Moment>* v, const Gradient* gradient,
                         const std::type_identity_t<Gradient>* second_gradient,
                         Parameter* parameters_out, std::int64_t first_element,
                         std::int64_t elements, const std::vector<TensorLayout>& layout,
                         const AdamStep& step, CpuVariant variant = best_cpu_variant());

}  // namespace spillway
