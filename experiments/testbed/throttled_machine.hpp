// The machine that a throttled run behaves like: this one, with the rates of the throttle.
#pragma once

#include "exec/throttle/throttle_rates.hpp"
#include "policies/machine/machine.hpp"
#include "traces/trace.hpp"

namespace spillway {

// `base` (measured by calibrate, or from a datasheet) with the rates of `throttle` laid over it
// exactly as given; nothing is fitted. What is not throttled stays as it is. Of what is:
//
//   rates      those of the throttle: kernels take FLOPs / gpu; drives lose their tables by number
//              and queue depth; with ssd.total reads and writes share it (law capped), without it
//              they are independent (duplex)
//   latencies  gpu.launch, the time to wake a lane, and nothing of this machine's links
//   cores      a throttled task sleeps for most of its time: the share that its rate is of the
//              base machine's
//
// Throttling nothing returns `base`.
Machine throttled_machine(const Machine& base, const ThrottleRates& throttle);

// The throttle a trace was recorded with; nothing throttled where it does not say.
ThrottleRates recorded_throttle(const Trace& trace);

}  // namespace spillway
