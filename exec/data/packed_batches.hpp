// Batches of packed documents (text/tokens/packing.hpp), of one source or of several with weights.
//
// The sequences of all steps have one number each: step * sequences of a step + index. An epoch is
// as many of them as the sources' sequences, each source's times its weight; in an epoch their
// order is a permutation of its own, and so is the order in each pass over a source. Nothing is
// kept but the packing: any step's batch is computed from its number and the seed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/data/batches.hpp"
#include "text/tokens/packing.hpp"

namespace spillway {

class PackedBatches : public Batches {
 public:
  struct Source {
    std::shared_ptr<const TokenCorpus> corpus;
    std::shared_ptr<const PackedSequences> sequences;  // of this corpus, with T places each
    double weight = 1;  // times that each sequence is seen in an epoch; 0.5: in every other one
  };
  struct Order {
    std::uint64_t seed = 1;
    std::int64_t sequences_per_step = 1;
    // Else for evaluation: the sequences as they are packed, each once; after the last one come
    // sequences in which no target counts.
    bool shuffled = true;
  };

  // At least one source, each with a weight above 0 and below 1e6.
  PackedBatches(std::vector<Source> sources, const PackSettings& settings, const Order& order,
                const HoldOut& hold_out = {});

  void require(std::int64_t sequence_length, std::int64_t vocabulary) const override;
  void batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
             std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
             std::int32_t* starts) const override;
  bool has_borders() const override { return has_borders_; }
  std::int64_t counted_tokens(std::int64_t step, std::int64_t sequences,
                              std::int64_t sequence_length) const override;
  std::uint64_t size() const override;  // tokens of all sources
  std::uint64_t hash() const override;

  std::uint64_t epoch_sequences() const { return first_in_epoch_.back(); }
  // Of so many epochs; the last step may take some sequences of the next one.
  std::int64_t steps_in(double epochs) const;

  // Steps until each sequence was there once, where they are not shuffled.
  std::int64_t batches() const { return steps_in(1); }

  // Which sequence of which source sequence `index` of a step is.
  struct Place {
    std::size_t source = 0;
    std::uint64_t sequence = 0;
    bool operator==(const Place&) const = default;
  };
  Place place(std::int64_t step, std::int64_t index) const;
  // Whether there is such a sequence: always, but for evaluation.
  bool is_there(std::int64_t step, std::int64_t index) const;
  const std::vector<Source>& sources() const { return sources_; }

 private:
  std::uint64_t number_of(std::int64_t step, std::int64_t index) const;
  void fill(const Place& place, std::int32_t* tokens, std::int32_t* targets,
            std::int32_t* starts) const;

  std::vector<Source> sources_;
  PackSettings settings_;
  Order order_;
  HoldOut hold_out_;
  std::vector<std::uint64_t> first_in_epoch_;  // of each source; then how many in all
  bool has_borders_ = false;
};

}  // namespace spillway
