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
//   embed_backward  nothing
//
// The CPU backend computes in fp32 whatever the precision. In bf16 a task's scratch holds fp32
// copies, each padded to 4096 bytes, and then what the fp32 task of one sequence has there:
//   all but embed_backward   the unit's parameters; with 16-bit gradients the sum of the unit's
//                            gradient (not in forward)
//   forward, backward        the layer's input of one sequence; its output or the gradient of that;
//                            all tensors that can be saved: those that are, too
//   head                     the hidden state of one sequence
//   embed_backward           with 16-bit gradients alone: the order of the micro-batch's tokens, 4
//                            bytes each, and one row
//
// Of a backward in two passes (weight_operands.hpp) input_gradient has what backward has, in bf16
// on the CPU without a sum, but with fp32 copies of what it keeps of one sequence; weight_gradient
// nothing, but there the sum where gradients have 16 bits, and of one sequence fp32 copies of the
// layer's input and of the activations it takes.
std::uint64_t forward_scratch_bytes(const Problem& problem, SavedMask saves);
std::uint64_t backward_scratch_bytes(const Problem& problem, SavedMask available);
std::uint64_t input_gradient_scratch_bytes(const Problem& problem, SavedMask available);
std::uint64_t weight_gradient_scratch_bytes(const Problem& problem);
std::uint64_t head_scratch_bytes(const Problem& problem);
std::uint64_t embed_backward_scratch_bytes(const Problem& problem);
// Whether the tasks of the problem's backend work on fp32 copies of what is kept in bf16, and the
// problem that they then compute: one sequence at a time, in fp32.
bool works_on_copies(const Problem& problem);
Problem one_sequence_in_fp32(const Problem& problem);
// Tokens per chunk of logits in the head.
std::int64_t head_chunk_tokens(const Problem& problem);

}  // namespace spillway
