// Bytes of activations between layers, and of the scratch of compute tasks.
//
// Numbers belong to the workload, not to a policy: every compute task of the CPU backend works
// sequence by sequence, so losses do not depend on the micro-batch size either. A compute task of
// the CUDA backend works on one kernel batch (Workload::sequences_at_once) after another, each of
// which is one long matrix.
#pragma once

#include <cstdint>

#include "policies/model/saved.hpp"

namespace spillway {

// Bytes of the activation between two layers, and of its gradient, for one micro-batch: (b, T, C),
// padded to 4096.
std::uint64_t checkpoint_bytes(const Problem& problem);

// Scratch that a compute task may use (exactly this much is planned for it), with S the kernel
// batch, Workload::sequences_at_once:
//   forward         the tensors it does not save, of S sequences
//   backward        the tensors that are not available, of S sequences, plus the gradients of S
//                   sequences (gradient_scratch_bytes(), as the backend needs them)
//   both            where matrices have adapters, also for the widest
//                   group of n matrices with one input of C columns:
//                   A x, (S T, n rank);
//                   in backward its gradient;
//                   with dropout the input that remains, (S T, C)
//   head            for the rows of one chunk, fp32: logits (V), the norm's output and its gradient
//                   (2 C), and two statistics; S times that, at most 8 times. A backend whose rows
//                   are narrower fits more of them
std::uint64_t forward_scratch_bytes(const Problem& problem, SavedMask saves);
std::uint64_t backward_scratch_bytes(const Problem& problem, SavedMask available);
std::uint64_t head_scratch_bytes(const Problem& problem);
// Tokens per chunk of logits in the head.
std::int64_t head_chunk_tokens(const Problem& problem);

}  // namespace spillway
