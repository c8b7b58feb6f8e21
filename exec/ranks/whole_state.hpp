// The master weights of a whole model, of which each rank has a shard of every unit.
#pragma once

#include "exec/ranks/rank_team.hpp"
#include "exec/run/model_access.hpp"

namespace spillway {

// Used by the thread that trains, on all ranks at once: rank 0 reads values() as it likes and says
// end(), the others serve() meanwhile.
class WholeState {
 public:
  // `own`: writes those of a range that this rank has. All outlive it.
  WholeState(RankTeam& team, const ModelSpec& model, StateValues own);

  StateValues values();
  void end();
  void serve();

 private:
  struct Request {
    std::int64_t unit = -1;  // -1: the end
    std::uint64_t first = 0, count = 0;
  };
  void exchange(const Request& request, float* to);

  RankTeam& team_;
  const ModelSpec& model_;
  StateValues own_;
};

}  // namespace spillway
