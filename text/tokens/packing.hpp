// Documents laid out in sequences of T tokens: which tokens each sequence holds.
//
// A document of n tokens has n - 1 places in a sequence: each is an input whose target is the token
// after it, so the last token is a target only, and the first one never is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/mapped_file.hpp"
#include "text/chat/document_reader.hpp"
#include "text/tokens/token_corpus.hpp"

namespace spillway {

enum class Packing : std::uint8_t {
  packed,  // several documents a sequence, with borders between them
  padded,  // one document a sequence, and nothing after it
  stream,  // all tokens as one, cut every T tokens, without borders
};

struct PackSettings {
  Packing packing = Packing::packed;
  std::int64_t sequence = 0;  // T
  // Documents with more than T places. automatic: they are split where all is trained on, and else
  // (chats) cut.
  TooLong too_long = TooLong::automatic;
  std::uint64_t seed = 1;  // of the order in which documents are packed
  // Where what does not fit in memory is kept; empty: the system's folder for temporary files.
  std::filesystem::path scratch = {};
};

// Documents that are held out: which ones depends on their tokens alone, so neither order nor seed
// nor what is added to a corpus moves a document from one side to the other, and equal documents
// are on the same side.
struct HoldOut {
  double fraction = 0;          // of the documents, or
  std::uint64_t documents = 0;  // so many
  bool any() const { return fraction > 0 || documents > 0; }
  bool operator==(const HoldOut&) const = default;
};
enum class Side : std::uint8_t { training, held_out };

struct Segment {
  std::uint64_t first = 0;  // token of the corpus
  std::uint64_t count =
      0;  // inputs: tokens first .. first + count are touched, the last as a target
  bool operator==(const Segment&) const = default;
};

struct PackingCounts {
  std::uint64_t documents = 0;  // of this side
  std::uint64_t sequences = 0;
  std::uint64_t inputs = 0;                       // places that are filled, of sequences * T
  std::uint64_t counted = 0;                      // targets that are trained on
  std::uint64_t cut = 0, dropped = 0, split = 0;  // documents that were too long
  std::uint64_t too_short = 0;                    // documents of one token, which nothing follows
  std::uint64_t untrained = 0;  // pieces without a target that is trained on, left out
  void add(const PackingCounts& more);
};

// All calls are const and thread-safe.
//
// packed: documents in an order drawn from the seed, in windows of most_in_window pieces; in a
// window the longest piece first, each into the sequence with the least room that is enough (best
// fit decreasing). Needs memory for one window; what it settles on is kept in a file without a name
// (16 bytes for each piece and each sequence).
class PackedSequences {
 public:
  static constexpr std::size_t most_in_window = 1 << 16;

  // Keeps `corpus`. Throws InputError: nothing can be packed, a stream that is shorter than T + 1
  // or has tokens that are not trained on, documents that are wanted where none are known.
  PackedSequences(const TokenCorpus& corpus, const PackSettings& settings, const HoldOut& hold_out,
                  Side side);

  std::uint64_t sequences() const { return counts_.sequences; }
  const PackingCounts& counts() const { return counts_; }
  // Filled places of all.
  double fill_rate() const;
  // Whether a sequence may hold more than one document.
  bool has_borders() const { return settings_.packing == Packing::packed; }

  // What sequence `number` holds, one after the other from its first place on.
  std::vector<Segment> segments(std::uint64_t number) const;
  // Targets of it that are trained on: at least 1.
  std::uint64_t counted(std::uint64_t number) const;

 private:
  struct SequenceRecord {
    std::uint64_t first_segment = 0, counted = 0;
  };
  class Builder;
  void stream(const HoldOut& hold_out, Side side);

  const TokenCorpus& corpus_;
  PackSettings settings_;
  PackingCounts counts_;
  std::uint64_t stream_first_ = 0;
  MappedFile segment_file_, sequence_file_;
  std::span<const Segment> segments_;
  std::span<const SequenceRecord> records_;  // and one for the end
};

}  // namespace spillway
