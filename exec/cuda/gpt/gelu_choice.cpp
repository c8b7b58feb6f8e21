#include "exec/cuda/gpt/gelu_choice.hpp"

#include <fmt/core.h>

#include "base/errors.hpp"

namespace spillway::cuda {

const char* name_of(GeluBackward how) {
  switch (how) {
    case GeluBackward::kernel:
      return "kernel";
    case GeluBackward::dgelu:
      return "dgelu";
    case GeluBackward::dgelu_bgrad:
      return "dgelu-bgrad";
  }
  SPILLWAY_ASSERT(false);
}

GeluBackward gelu_backward_of(const std::string& name) {
  for (const GeluBackward how :
       {GeluBackward::kernel, GeluBackward::dgelu, GeluBackward::dgelu_bgrad}) {
    if (name == name_of(how)) return how;
  }
  throw InputError(fmt::format("GELU's backward: there is no way {} to compute it", name),
                   "kernel, dgelu or dgelu-bgrad");
}

template <class Element, class Gradient>
void gelu_backward_by(GeluBackward how, Matmul& matmul,
                      const GeluBackwardOperands<Element, Gradient>& o, const Workspace& workspace,
                      cudaStream_t stream) {
  if (how == GeluBackward::kernel) {
    matmul.input_gradient<Element>(o.dy, o.w, o.dfc, o.rows, o.f, o.c, stream);
    return gelu_backward<Element>(o.fc, o.dfc, o.gelu, o.fc_bias, o.overwrites, o.rows, o.f,
                                  workspace, stream);
  }
  const bool fused_sums = how == GeluBackward::dgelu_bgrad && o.fc_bias != nullptr;
  if (o.gelu != nullptr) gelu_forward<Element>(o.fc, o.gelu, o.rows * o.f, stream);
  matmul.gelu_gradient<Element>(o.dy, o.w, o.fc, o.dfc, fused_sums ? o.sums : nullptr, o.rows, o.f,
                                o.c, stream);
  if (o.fc_bias == nullptr) return;
  // The epilogue can only overwrite: what it has summed up is one row to be added.
  column_sums<Element>(fused_sums ? o.sums : o.dfc, o.fc_bias, o.overwrites,
                       fused_sums ? 1 : o.rows, o.f, workspace, stream);
}

#define SPILLWAY_GELU_BACKWARD_BY(Element, Gradient)                                               \
  template void gelu_backward_by(GeluBackward, Matmul&,                                            \
                                 const GeluBackwardOperands<Element, Gradient>&, const Workspace&, \
                                 cudaStream_t);
SPILLWAY_GELU_BACKWARD_BY(float, float)
SPILLWAY_GELU_BACKWARD_BY(bf16, float)
SPILLWAY_GELU_BACKWARD_BY(bf16, bf16)
#undef SPILLWAY_GELU_BACKWARD_BY

}  // namespace spillway::cuda
