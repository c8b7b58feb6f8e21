// Runs a schedule with names instead of numbers, and finds the first task that does not read what
// it must.
#pragma once

#include <string>

#include "policies/schedule/schedule.hpp"

namespace spillway::test {

// Executes the tasks in program order on shadow memory. In step s
//   embed_forward(m)    reads the embedding after s updates
//   forward(l, m)       reads the parameters of l after s updates, all of them, and the output of
//   l-1 head(m)             reads the embedding after s updates and the output of block L-1
//   backward(l, m)      reads the same parameters, the input forward read, the activation gradient
//   of l+1,
//                       and adds micro-batch m to the gradient, which starts empty
//   optimizer           applies update k to elements whose state has seen exactly k updates, with
//   the
//                       gradient of step k summed over all micro-batches (for the embedding, both
//                       of them)
//   gradient_norm       where the workload asks for it, once per unit and step: reads the same
//                       gradient, all of it; then every update knows the norms it has to
// and each of them runs once per step, layer and micro-batch (embed_forward once or twice; with
// `forward_again` both forwards as often as the policy likes). After the last task every home holds
// the state after `steps` updates. Copies move what is there, which must be something. Returns the
// first violation in words; empty when there is none. Of an evaluation the same is asked of
// forwards and losses, all with the state of its begin, which every home holds at its end; and
// there is nothing else.
//
// Together with find_race this means: whatever order the lanes run in, the numbers are those of
// training with everything in one memory.
std::string find_dataflow_error(const Schedule& schedule, bool forward_again = false);

// Homes cover every unit's parameters and optimizer state exactly once. Empty, or what is wrong.
std::string find_home_error(const Schedule& schedule);

// Every home of optimizer state is written once per update, and in all homes update k is written
// before update k + 1 is in any: at each point of the program the homes hold two updates at most,
// one of them whole. What makes a step recoverable. Empty, or the first write that breaks it.
std::string find_state_write_error(const Schedule& schedule);

// Every transient buffer's last access is a read: nothing is computed or moved that nobody uses.
// Empty, or the buffer that is written in vain.
std::string find_vain_write(const Schedule& schedule);

}  // namespace spillway::test
