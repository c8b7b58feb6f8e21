// The tensors that a program on PyTorch allocates on the GPU while it runs a schedule: buffers as
// they come and go, and inside a layer what its operators make, one after the other.
#pragma once

#include <vector>

#include "policies/framework/caching_allocator.hpp"
#include "policies/framework/framework.hpp"
#include "policies/schedule/rewriting.hpp"

namespace spillway {

// Of the first steps of a program, in its order; at most some ten thousand tensors.
std::vector<TensorEvent> tensors_of(const Rewriting& program, const Problem& problem,
                                    const Framework& framework);

}  // namespace spillway
