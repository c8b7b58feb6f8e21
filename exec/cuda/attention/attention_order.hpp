// Which block of Hopper's attention kernels does what: a block stays on its multiprocessor and
// takes one piece of work after the other, from a list that is known beforehand. What a piece
// computes does not depend on when and where that is.
#pragma once

#include <cstdint>

#include "exec/cuda/attention/attention.hpp"

namespace spillway::cuda {

// The list: `heads` (of all sequences) times `blocks` of rows. Heads whose tensors fit in the L2
// cache together follow each other; among them, the blocks of rows with the most work come first.
// The list is dealt out in rounds, a piece for each block of the grid: always from the first to the
// last, or there and back, so that who got the longest of a round gets the shortest of the next.
struct WorkOrder {
  int heads, blocks, heads_at_once;
  bool there_and_back;
  __host__ __device__ int size() const { return heads * blocks; }
};
struct Work {
  int head, turn;  // of all sequences; 0 is the block of rows with the most work
};
__host__ __device__ inline Work work_at(const WorkOrder& order, int index) {
  const int of_group = order.heads_at_once * order.blocks;
  const int group = index / of_group, place = index % of_group;
  const int first = group * order.heads_at_once;
  const int heads =
      order.heads - first < order.heads_at_once ? order.heads - first : order.heads_at_once;
  return {first + place % heads, place / heads};
}
// What block `block` of `grid` does in a round: its place in the list, which may be beyond the end,
// and then so are those of all later rounds.
__host__ __device__ inline int work_index(const WorkOrder& order, int round, int block, int grid) {
  return round * grid + (order.there_and_back && round % 2 == 1 ? grid - 1 - block : block);
}

// The order, of those that leave heads in the cache together, that keeps `multiprocessors` evenly
// busy. `heads`: of all sequences; `rows`: of a block; `bytes_per_head`: what the pieces of a head
// read in common.
WorkOrder work_order(std::int64_t heads, std::int64_t tokens, int rows, std::int64_t bytes_per_head,
                     int multiprocessors);
// The share of the multiprocessors that is at work until the last one is done. A piece costs the
// tokens it goes through, and as much as a tile for its start.
double work_balance(const WorkOrder& order, std::int64_t tokens, int rows, int multiprocessors);

// Of the current device. Throws MachineError.
int multiprocessor_count();

}  // namespace spillway::cuda
