// The GPUs of ranks, and the links between them that their lanes have: made before anything is
// planned, so that what they take of the GPUs' memory is known.
//
// A collective or a message begins on the GPUs once all of its ranks have said to each other, over
// MPI, that they are there (meet()), and no kernel waits for a rank that computes, or is lost.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/ranks/gpu_links.hpp"
#include "exec/ranks/ordered_sums.hpp"
#include "policies/schedule/task.hpp"

namespace spillway {

class RankTeam;

class RankGpus {
 public:
  // By all ranks at once. Those of data parallelism have links for their collectives, stages of a
  // pipeline, of which there are as many as there are ranks, for their messages. Throws
  // MachineError where one cannot be made.
  RankGpus(RankTeam& team, std::unique_ptr<GpuLinks> gpu, bool in_stages);

  std::string library() const { return gpu_->library(); }
  bool in_stages() const { return collectives_.empty(); }
  std::shared_ptr<std::byte> memory(std::uint64_t bytes) { return gpu_->memory(bytes); }
  // Whether the ranks of a task, which are `members`, or this one and `other`, do it for what it
  // results in; false: one of them only takes part, and nothing is to be exchanged.
  bool meet(Lane lane, const std::vector<int>& members, bool for_result);
  bool meet(Lane lane, int other, bool for_result);
  // Of collectives on a lane of ranks. Null: there is none, for those of GPUs are stages.
  OrderedSums* on(Lane lane);
  // Of a message on a lane of stages, in GPU memory.
  void send(Lane lane, int to, const std::byte* message, std::uint64_t bytes);
  void receive(Lane lane, int from, std::byte* message, std::uint64_t bytes);

 private:
  struct OfCollectives {
    std::unique_ptr<Carrier> carrier;
    std::unique_ptr<OrderedSums> sums;
  };
  // A direction of messages between two ranks: on the lanes `out` and its other end.
  struct Way {
    Lane out;
    int from, to;
  };
  static std::vector<Way> ways_of(int stages);
  void join_collectives();
  void join_ways(const std::vector<Way>& ways);
  Carrier& link(Lane lane, int other);

  RankTeam& team_;
  std::unique_ptr<GpuLinks> gpu_;
  std::map<Lane, OfCollectives> collectives_;
  std::map<std::pair<Lane, int>, std::unique_ptr<Carrier>> ways_;
};

}  // namespace spillway
