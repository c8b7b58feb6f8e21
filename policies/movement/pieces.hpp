// Pieces of units, and what is done with several of them at once. A unit is a layer or, after the
// layers, the embedding or an untied head.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policies/movement/step.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

// A contiguous range of a unit's elements that has one home for its parameters and, unless it is
// frozen, one for its optimizer state, and is updated by one update.
struct Piece {
  std::uint64_t first = 0, elements = 0;
  Tier parameters_at = Tier::host, state_at = Tier::host;
  bool frozen = false;
  bool delayed = false;     // its update applies the gradient of the step before
  Slice parameters, state;  // their homes
  Slice waiting;            // if delayed: host memory in which its gradient waits for the next step
  Slice fresh_parameters,
      fresh_state;  // copies in host memory of what rests on the SSD, or invalid
  bool updates_on_gpu = false;
  // Where complete gradients rest on the SSD: their homes there, and the copies in host memory that
  // the update reads.
  Slice gradient_on_ssd, head_on_ssd, fresh_gradient, fresh_head;
  std::uint64_t end() const { return first + elements; }
};
using Pieces = std::vector<Piece>;

// All units, in order: one after the other from element 0 on.
using Units = std::vector<Pieces>;

inline std::size_t unit_index(int unit) { return static_cast<std::size_t>(unit); }
inline std::uint64_t elements_in(const Pieces& pieces) {
  return pieces.empty() ? 0 : pieces.back().end();
}
// The first elements, which are trained.
inline std::uint64_t trained_in(const Pieces& pieces) {
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (!piece->frozen) return piece->end();
  }
  return 0;
}
// A unit's parameters rest on the GPU as a whole or not at all.
inline bool parameters_rest_on_gpu(const Pieces& pieces) {
  return pieces.empty() || pieces.front().parameters_at == Tier::gpu;
}
// The first piece that ends after `element`.
template <class AnyPieces>
auto piece_after(AnyPieces& pieces, std::uint64_t element) {
  return std::partition_point(pieces.begin(), pieces.end(),
                              [&](const Piece& piece) { return piece.end() <= element; });
}

// act(unit, piece) for every piece that an update takes, in its order. A range may have a cell more
// than this rank updates (Shards::most_updated).
template <class Act>
void for_pieces(Units& units, const OrderOfWork& work, const Update& update, const Act& act) {
  for (std::uint32_t r = 0; r < update.range_count; ++r) {
    const UpdateRange& range = work.ranges[update.first_range + r];
    Pieces& pieces = units[unit_index(range.unit)];
    auto piece = piece_after(pieces, range.first);
    for (; piece != pieces.end() && !piece->frozen && piece->first < range.first + range.elements;
         ++piece)
      act(range.unit, *piece);
  }
}

// Reads the pieces for which needed(piece) holds and which have no copy in host memory: from member
// `home`, on the SSD, into memory that becomes member `fresh`. Neighbours on the SSD are one read.
template <class Needed>
void read_pieces(Program& program, int unit, Pieces::iterator from, Pieces::iterator to,
                 Slice Piece::*home, Slice Piece::*fresh, BufferKind kind, const Needed& needed) {
  const auto is_read = [&](const Piece& piece) { return needed(piece) && !(piece.*fresh).valid(); };
  while (from != to) {
    if (!is_read(*from)) {
      ++from;
      continue;
    }
    Slice source = (*from).*home;
    auto end = from + 1;
    for (; end != to && is_read(*end); ++end) {
      const Slice next = (*end).*home;
      if (next.offset != source.offset + source.bytes || next.buffer.id != source.buffer.id) break;
      source.bytes += next.bytes;
    }
    Slice host = program.buffer(Tier::host, source.bytes, kind, unit).part(0, source.bytes);
    program.copy(source, host, unit);
    for (; from != end; ++from) {
      (*from).*fresh = host.part(0, ((*from).*home).bytes);
      host.offset += ((*from).*home).bytes;
    }
  }
}

}  // namespace spillway
