// What training is fed: sequences of tokens, which of their targets count, and where in a sequence
// its documents begin.
//
// Everything here is a pure function of the step and of the sequence's index in it: it does not
// matter in which micro-batches, in which order or by which run it is asked for, so a resumed run
// sees exactly the sequences it would have.
#pragma once

#include <cstdint>

namespace spillway {

// A target that does not count: no loss, no gradient.
inline constexpr std::int32_t no_target = -1;

// Thread-safe.
class Batches {
 public:
  virtual ~Batches() = default;

  // Throws InputError when there are no sequences of T tokens, or when a token is none of a model
  // with this vocabulary.
  virtual void require(std::int64_t sequence_length, std::int64_t vocabulary) const = 0;

  // Sequences first_sequence .. + sequences - 1 of a step (counted over the whole step, not the
  // micro-batch). tokens, targets, starts: (sequences, T). targets[i]: what follows tokens[i], or
  // no_target. starts[i]: the index in its sequence of the first token of the document that
  // tokens[i] is of, at most the token's own; attention looks no further back, and positions count
  // from there. `starts` may be null where there are no borders.
  virtual void batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
                     std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
                     std::int32_t* starts) const = 0;

  // Whether any sequence may hold more than one document; else no start is needed: all are 0.
  virtual bool has_borders() const { return false; }

  // The targets that count in a step of so many sequences, at least 1: the step's loss is the mean
  // over them.
  virtual std::int64_t counted_tokens(std::int64_t /*step*/, std::int64_t sequences,
                                      std::int64_t sequence_length) const {
    return sequences * sequence_length;
  }

  // For the record of a training, which goes on with the same batches only: how much there is, and
  // a hash of all that decides them but the seed.
  virtual std::uint64_t size() const = 0;
  virtual std::uint64_t hash() const = 0;
};

}  // namespace spillway
