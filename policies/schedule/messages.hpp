// The two ends of messages between stages of a pipeline.
#pragma once

#include "base/errors.hpp"
#include "policies/schedule/task.hpp"

namespace spillway {

// The lane of the other stage that receives what is sent on a lane, or sends what it receives.
inline Lane other_end(Lane lane) {
  switch (lane) {
    case Lane::stage_in:
      return Lane::stage_out;
    case Lane::stage_out:
      return Lane::stage_in;
    case Lane::stage_gradient_in:
      return Lane::stage_gradient_out;
    default:
      SPILLWAY_ASSERT(lane == Lane::stage_gradient_out);
      return Lane::stage_gradient_in;
  }
}

// Whether a lane sends.
inline bool is_out(Lane lane) {
  return lane == Lane::stage_out || lane == Lane::stage_gradient_out;
}

}  // namespace spillway
