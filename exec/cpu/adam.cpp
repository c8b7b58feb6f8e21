#include "exec/cpu/adam.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.hpp"
#include "base/rounding.hpp"

namespace spillway {

namespace {

// Elements of a unit, from a multiple of as many on, that a kernel rounds the moments of by one
// key.
constexpr std::int64_t elements_of_a_key = std::int64_t{1} << 32;

}  // namespace

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
  constants.noise = step_noise_key(step.seed, step.t);
  return constants;
}

template <class Gradient, class Parameter, class Moment>
double adamw_update(float* master, Moment* m, std::type_identity_t<Moment>* v,
                    const Gradient* gradient, const std::type_identity_t<Gradient>* second_gradient,
                    Parameter* parameters_out, std::int64_t n, const AdamStep& step,
                    CpuVariant variant) {
  SPILLWAY_ASSERT(n <= elements_of_a_key);
  return cpu_kernels(variant).adam<Gradient, Parameter, Moment>()(
      master, m, v, gradient, second_gradient, parameters_out, n, adam_constants(step),
      {static_cast<std::uint32_t>(step.unit), 0});
}

template <class Gradient, class Parameter, class Moment>
double adamw_update_unit(float* master, Moment* m, std::type_identity_t<Moment>* v,
                         const Gradient* gradient,
                         const std::type_identity_t<Gradient>* second_gradient,
                         Parameter* parameters_out, std::int64_t first_element,
                         std::int64_t elements, const std::vector<TensorLayout>& layout,
                         const AdamStep& step, CpuVariant variant) {
  const auto adamw = cpu_kernels(variant).adam<Gradient, Parameter, Moment>();
  const AdamConstants decaying = adam_constants(step);
  AdamConstants plain = decaying;
  plain.decay_factor = 1.0f;

  const auto pad = [&](std::int64_t from, std::int64_t to) {  // offsets from first_element
    std::fill(master + from, master + to, 0.0f);
    for (Moment* moment : {m, v}) std::fill(moment + from, moment + to, Moment{});
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
    for (std::int64_t at = begin; at < end; at = done) {
      const std::int64_t element = first_element + at;
      done = std::min(end, at + elements_of_a_key - element % elements_of_a_key);
      squares +=
          adamw(master + at, m + at, v + at, gradient + at,
                second_gradient != nullptr ? second_gradient + at : nullptr, parameters_out + at,
                done - at, tensor.decay ? decaying : plain,
                {static_cast<std::uint32_t>(step.unit), static_cast<std::uint64_t>(element)});
    }
  }
  pad(done, elements);
  return squares;
}

template <class Gradient, class Parameter, class Moment>
double adamw_update_unit(ThreadPool& pool, float* master, Moment* m,
                         std::type_identity_t<Moment>* v, const Gradient* gradient,
                         const std::type_identity_t<Gradient>* second_gradient,
                         Parameter* parameters_out, std::int64_t first_element,
                         std::int64_t elements, const std::vector<TensorLayout>& layout,
                         const AdamStep& step, CpuVariant variant) {
  constexpr std::int64_t most_pieces = 256;
  constexpr std::int64_t smallest_piece = 1 << 16;  // 2 MB of traffic: waking a thread pays
  constexpr std::int64_t page_elements = 1024;
  const std::int64_t share = (elements + most_pieces - 1) / most_pieces;
  const std::int64_t piece_elements = std::max(smallest_piece, round_up(share, page_elements));
  const std::int64_t pieces = (elements + piece_elements - 1) / piece_elements;
  std::array<double, most_pieces> squares;
  pool.run(pieces, [&](std::int64_t piece) {
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

#define SPILLWAY_INSTANTIATE(Gradient, Parameter, Moment)                                       \
  template double adamw_update(float*, Moment*, std::type_identity_t<Moment>*, const Gradient*, \
                               const std::type_identity_t<Gradient>*, Parameter*, std::int64_t, \
                               const AdamStep&, CpuVariant);                                    \
  template double adamw_update_unit(                                                            \
      float*, Moment*, std::type_identity_t<Moment>*, const Gradient*,                          \
      const std::type_identity_t<Gradient>*, Parameter*, std::int64_t, std::int64_t,            \
      const std::vector<TensorLayout>&, const AdamStep&, CpuVariant);                           \
  template double adamw_update_unit(                                                            \
      ThreadPool&, float*, Moment*, std::type_identity_t<Moment>*, const Gradient*,             \
      const std::type_identity_t<Gradient>*, Parameter*, std::int64_t, std::int64_t,            \
      const std::vector<TensorLayout>&, const AdamStep&, CpuVariant);

#define SPILLWAY_INSTANTIATE_BOTH(Gradient, Parameter) \
  SPILLWAY_INSTANTIATE(Gradient, Parameter, float)     \
  SPILLWAY_INSTANTIATE(Gradient, Parameter, bf16)

SPILLWAY_INSTANTIATE_BOTH(float, float)
SPILLWAY_INSTANTIATE_BOTH(float, bf16)
SPILLWAY_INSTANTIATE_BOTH(bf16, float)
SPILLWAY_INSTANTIATE_BOTH(bf16, bf16)

}  // namespace spillway
