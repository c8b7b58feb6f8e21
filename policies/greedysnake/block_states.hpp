// The model states of the blocks of a vertical schedule, in two parts, and where the gradient of
// the delayed part waits for the next step.
//
// A block's elements are cut into chunks, each chunk into a delayed part (its first elements) and
// the rest; the optimizer updates one part of one chunk at a time. Each part rests in host memory
// and, its last elements, on the SSD. What rests on the SSD is staged in host memory: one read or
// write per block and part.
//
// The gradient of the delayed part is stashed where host memory is dead between a block's backward
// and its next forward: first under the block's own outputs, which its successor's backward read
// last, then under the delayed parameters of the block after it, which AdamW will overwrite. Only
// what neither holds has memory of its own. (GreedySnake, arXiv 2512.17570, and its first author's
// public code.)
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "policies/schedule/program.hpp"

namespace spillway {

struct BlockStateOptions {
  int chunks = 1;
  double alpha = 0;  // delayed fraction of each block
  double parameters_ssd = 0, optimizer_ssd = 0;
  std::uint64_t checkpoint_slots = 0;  // outputs of a block that rest in host memory, each of
                                       // checkpoint_bytes(problem)
  std::uint64_t staging_slots = 0;     // outputs of a block on their way to and from the SSD
  // Staged model states take turns in buffers that last, and one that was given back is not used
  // again before the next barrier(): nothing that starts after it waits for the SSD. Otherwise
  // each has a buffer of its own for the occasion.
  bool takes_turns = false;
};

class BlockStates {
 public:
  enum Part : std::uint8_t { delayed, rest };
  static constexpr int parts = 2;

  // Declares the homes of all blocks.
  BlockStates(Program& program, const BlockStateOptions& options);

  std::uint64_t elements() const { return elements_; }  // of a block
  // First element of a chunk; of the one after the last: elements().
  std::uint64_t chunk_begin(int chunk) const;
  bool has(Part part) const { return size_[part] > 0; }

  // Host memory for output `slot` of block `unit`; every block but the last has them.
  Slice checkpoint(int unit, int slot) const;

  // Host memory for outputs that do not rest there, by turns for even and odd blocks.
  Slice staging(int unit, int slot) const;

  // With takes_turns: what was issued so far is done before anything that follows starts.
  void barrier() { ++epoch_; }

  // -- reading ahead: from the SSD to host memory; nothing where nothing rests there, or where it
  // is staged already
  void read_parameters(int unit, Part part);
  void read_optimizer(int unit, Part part);

  // -- use: everything of [from, to) that is in the part to the GPU. `gpu` is the whole block's.
  void upload(int unit, std::uint64_t from, std::uint64_t to, Slice gpu);
  // The staged parameters are not needed again.
  void forget_parameters(int unit);

  // -- gradients: [from, to) of the block's complete gradient leaves the GPU, the delayed part to
  // its stash, the rest to a buffer for update().
  void leave_gradient(int unit, std::uint64_t from, std::uint64_t to, Slice gpu, int step);
  // Whether the delayed part of a step before waits for its update.
  bool stashed(int unit) const { return stash_step_[index(unit)] >= 0; }
  // Whether the rest's gradient does.
  bool rest_waits(int unit) const { return rest_step_[index(unit)] >= 0; }

  // -- AdamW on one part of one chunk, or of all of them, with the gradient that left last.
  void update(int unit, Part part, int chunk);
  void update(int unit, Part part);

  // -- writing behind: what update() left in staging, and nothing where it left nothing
  void write_parameters(int unit, Part part);
  void write_optimizer(int unit, Part part);

  // Host memory that the stash has to itself, bytes.
  std::uint64_t extra_stash_bytes() const { return extra_stash_bytes_; }

 private:
  // A run of elements of one part of one chunk that rests in one place in every respect.
  struct Segment {
    std::uint64_t first = 0, elements = 0;  // in the block
    std::uint64_t in_part = 0;              // elements of the part before it
    std::uint64_t parameters_at = 0;        // bytes, in the part's host or SSD buffer
    std::uint64_t optimizer_at = 0;
    bool parameters_on_ssd = false, optimizer_on_ssd = false;
  };
  // A run of the delayed part's elements, in the order of the part, and where its gradient waits.
  struct Stash {
    std::uint64_t in_part = 0, elements = 0;
    Slice where;
  };
  // Buffers of one part of one block.
  struct Places {
    Slice parameters_host, parameters_ssd, optimizer_host, optimizer_ssd;
    Slice staged_parameters, staged_optimizer;  // host, of what rests on the SSD
    bool parameters_updated = false, optimizer_updated = false;
  };
  using Segments = std::vector<Segment>;

  static std::size_t index(int unit) { return static_cast<std::size_t>(unit); }
  void make_homes(int unit);
  void make_stash(int unit);
  std::vector<std::uint64_t> stash_cuts() const;
  Segments cut_chunk(Part part, int chunk, const std::vector<std::uint64_t>& stash_cuts);
  Slice stash_of(int unit, const Segment& segment) const;
  Slice buffer(Tier tier, std::uint64_t bytes, BufferKind kind, int unit, bool persistent);
  void make_turns();
  std::uint64_t optimizer_turn_bytes() const;
  Slice stage(std::uint64_t bytes, BufferKind kind, int unit);
  void unstage(Slice& staged);  // leaves it invalid

  Program& program_;
  BlockStateOptions options_;
  int units_ = 0;
  std::uint64_t elements_ = 0;
  std::uint64_t parameter_bytes_ = 0, state_bytes_ = 0, gradient_bytes_ = 0, checkpoint_bytes_ = 0;
  std::array<std::uint64_t, parts> size_{}, parameters_ssd_{}, optimizer_ssd_{};  // elements
  std::array<std::vector<Segments>, parts> segments_;  // by chunk; alike for all blocks
  std::vector<std::array<Places, parts>> places_;      // by unit
  std::vector<Slice> outputs_;                         // by unit: checkpoint_slots of them
  std::array<Slice, 2> staging_;
  std::vector<std::vector<Stash>> stash_;  // by unit
  std::vector<int> stash_step_;            // by unit: whose gradient it is, or -1
  std::vector<Slice> rest_gradient_;       // by unit
  std::vector<int> rest_step_;
  std::uint64_t extra_stash_bytes_ = 0;
  struct Free {
    Slice where;
    BufferKind kind = BufferKind::parameters;
    int since = 0;  // epoch
  };
  std::map<BufferId, Free> turns_;  // the buffers that last, whole
  std::vector<Free> free_;          // given back, oldest first
  int epoch_ = 0;
};

}  // namespace spillway
