// The master weights of a whole model, of which each rank has a shard of every unit, or each stage
// of a pipeline has some units. Units are those of the whole model.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "exec/ranks/rank_team.hpp"
#include "exec/run/model_access.hpp"
#include "exec/store/state_owners.hpp"

namespace spillway {

// Used by the thread that trains, on all ranks at once: rank 0 reads values() as it likes and says
// end(), the others serve() meanwhile.
class WholeState {
 public:
  // `states`: of this rank. Both outlive it.
  WholeState(RankTeam& team, ModelAccess& states);

  StateValues values();
  void end();
  void serve();

 private:
  struct Request {
    std::int64_t unit = -1;  // -1: the end
    std::uint64_t first = 0, count = 0;
  };
  // Who reads may do so in small pieces: the ranks exchange blocks, of which the last is kept.
  static constexpr std::uint64_t block_elements = std::uint64_t{1} << 21;
  int stage_with(std::int64_t unit) const;
  void exchange(const Request& request, float* to);
  void learn_owners();
  const float* block(std::int64_t unit, std::uint64_t first);

  RankTeam& team_;
  ModelAccess& states_;
  ModelSpec model_;                    // the whole
  std::vector<ModelSpec> stages_;      // of a pipeline
  std::optional<StateOwners> owners_;  // of ranks
  Request kept_;
  std::vector<float> kept_values_;
};

}  // namespace spillway
