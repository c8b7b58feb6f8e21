// When the stages of a pipeline say something to each other: the place of every message in the
// order of work of the stage that sends it and of the one that receives it.
//
// A message is received as early as it may be there, so that it crosses while the receiver works,
// and holds up nothing. Of all stages' programs, memory that is used again orders tasks as the
// program does, so that stages could wait for each other for ever: messages have places in both
// programs that one order of all visits of all stages has. That order is the one in which they
// would run if a layer's forward took one unit of time, its backward two (one for the gradient of
// its input, one for that of its weights), and messages none.
#pragma once

#include <vector>

#include "policies/model/model.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

struct StageWork {
  ModelSpec model;  // of the stage
  OrderOfWork work;
};

// Of stage `stage`, in order. Throws InputError where stages wait for each other for ever: where
// one needs what another makes only after it.
std::vector<Meeting> meetings(const std::vector<StageWork>& stages, int stage);

}  // namespace spillway
