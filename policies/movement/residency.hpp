// Residency: from the order of work and the places of rest to every copy and its time.
//
// Every operand of a visit has to be in GPU memory, every operand of an update in the memory where
// it runs. Walking the program once, with every next use known (timetable.hpp), this pass does four
// things.
//
// It fetches what is not there, along ssd - host - gpu: parameters in pieces, one under each visit
// of the turn before, so that small urgent copies never queue behind a whole layer; activations one
// visit ahead; from the SSD further ahead.
//
// It keeps on the GPU what the next visit uses, and drops everything else after its use.
//
// It copies out what is used again later and is nowhere else: one visit late, so that the next
// result does not take memory that is still leaving; a gradient in pieces under the next turn.
//
// It emits every update when its gradient is there, its optimizer state read ahead, and writes back
// what it changed.
//
// Sources of the rules: Belady 1966; Cao, Felten, Karlin, Li, SIGMETRICS 1995.
#pragma once

#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

// Emits the tasks of `work`, whose steps a policy has said under `plan`. Returns the most bytes of
// GPU memory that hold something only because it is used again. `trained`: for an evaluation, the
// order of work of the training whose state it takes where that rests; else null.
std::uint64_t emit_work(Program& program, const Plan& plan, const OrderOfWork& work,
                        const OrderOfWork* trained = nullptr);

}  // namespace spillway
