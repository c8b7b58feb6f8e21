#include "exec/adam.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

AdamConstants adam_constants(const AdamStep& step) {
  SPILLWAY_ASSERT(step.t >= 1);
  const double rate = step.learning_rate, beta1 = step.beta1, beta2 = step.beta2;
  const double t = static_cast<double>(step.t);
  AdamConstants constants;
  constants.decay_factor = static_cast<float>(1.0 - rate * static_cast<double>(step.weight_decay));
  constants.beta1 = step.beta1;
  constants.one_minus_beta1 = static_cast<float>(1.0 - beta1);
  constants.beta2 = step.beta2;
  constants.one_minus_beta2 = static_cast<float>(1.0 - beta2);
  constants.inverse_root_correction2 =
      static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, t)));
  constants.epsilon = step.epsilon;
  constants.step_size = static_cast<float>(rate / (1.0 - std::pow(beta1, t)));
  constants.gradient_factor = step.gradient_factor;
  return constants;
}

template <class Gradient, class Parameter>
double adamw_update(float* master, float* m, float* v, const Gradient* gradient,
                    const std::type_identity_t<Gradient>* second_gradient,
                    Parameter* parameters_out, std::int64_t n, const AdamStep& step,
                    CpuVariant variant) {
  return cpu_kernels(variant).adam<Gradient, Parameter>()(master, m, v, gradient, second_gradient,
                                                          parameters_out, n, adam_constants(step));
}

template <class Gradient, class Parameter>
double adamw_update_unit(float* master, float* m, float* v, const Gradient* gradient,
                         const std::type_identity_t<Gradient>* second_gradient,
                         Parameter* parameters_out, std::int64_t first_element,
                         std::int64_t elements, const std::vector<TensorLayout>& layout,
                         const AdamStep& step, CpuVariant variant) {
  const AdamKernel<Gradient, Parameter> adamw = cpu_kernels(variant).adam<Gradient, Parameter>();
  const AdamConstants decaying = adam_constants(step);
  AdamConstants plain = decaying;
  plain.decay_factor = 1.0f;

  const auto pad = [&](std::int64_t from, std::int64_t to) {  // offsets from first_element
    for (float* buffer : {master, m, v}) std::fill(buffer + from, buffer + to, 0.0f);
    std::fill(parameters_out + from, parameters_out + to, Parameter{});
  };
  double squares = 0;
  std::int64_t done = 0;
  for (const TensorLayout& tensor : layout) {
    const std::int64_t begin = std::max<std::int64_t>(tensor.offset - first_element, done);
    const std::int64_t end =
        std::min(tensor.offset + tensor.rows * tensor.columns - first_element, elements);
    if (begin >= end) continue;
    pad(done, begin);
    squares += adamw(master + begin, m + begin, v + begin, gradient + begin,
                     second_gradient != nullptr ? second_gradient + begin : nullptr,
                     parameters_out + begin, end - begin, tensor.decay ? decaying : plain);
    done = end;
  }
  pad(done, elements);
  return squares;
}

template <class Gradient, class Parameter>
double adamw_update_unit(Crew& crew, float* master, float* m, float* v, const Gradient* gradient,
                         const std::type_identity_t<Gradient>* second_gradient,
                         Parameter* parameters_out, std::int64_t first_element,
                         std::int64_t elements, const std::vector<TensorLayout>& layout,
                         const AdamStep& step, CpuVariant variant) {
  constexpr std::int64_t most_pieces = 256;
  constexpr std::int64_t smallest_piece = 1 << 16;  // 2 MB of traffic: waking a thread pays
  constexpr std::int64_t page_elements = 1024;
  const std::int64_t share = (elements + most_pieces - 1) / most_pieces;
  const std::int64_t piece_elements =
      std::max(smallest_piece, (share + page_elements - 1) / page_elements * page_elements);
  const std::int64_t pieces = (elements + piece_elements - 1) / piece_elements;
  std::array<double, most_pieces> squares;
  crew.run(pieces, [&](std::int64_t piece) {
    const std::int64_t at = piece * piece_elements;
    squares[static_cast<std::size_t>(piece)] = adamw_update_unit(
        master + at, m + at, v + at, gradient + at,
        second_gradient != nullptr ? second_gradient + at : nullptr, parameters_out + at,
        first_element + at, std::min(piece_elements, elements - at), layout, step, variant);
  });
  double sum = 0;
  for (std::int64_t piece = 0; piece < pieces; ++piece)
    sum += squares[static_cast<std::size_t>(piece)];
  return sum;
}

#define SPILLWAY_INSTANTIATE(Gradient, Parameter)                                                 \
  template double adamw_update(float*, float*, float*, const Gradient*,                           \
                               const std::type_identity_t<Gradient>*, Parameter*, std::int64_t,   \
                               const AdamStep&, CpuVariant);                                      \
  template double adamw_update_unit(                                                              \
      float*, float*, float*, const Gradient*, const std::type_identity_t<Gradient>*, Parameter*, \
      std::int64_t, std::int64_t, const std::vector<TensorLayout>&, const AdamStep&, CpuVariant); \
  template double adamw_update_unit(Crew&, float*, float*, float*, const Gradient*,               \
                                    const std::type_identity_t<Gradient>*, Parameter*,            \
                                    std::int64_t, std::int64_t, const std::vector<TensorLayout>&, \
                                    const AdamStep&, CpuVariant);

SPILLWAY_INSTANTIATE(float, float)
SPILLWAY_INSTANTIATE(float, bf16)
SPILLWAY_INSTANTIATE(bf16, float)
SPILLWAY_INSTANTIATE(bf16, bf16)

}  // namespace spillway
