#include "policies/movement/places.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>

#include "base/errors.hpp"

namespace spillway {

namespace {

struct Range {
  std::uint64_t first = 0, elements = 0;
  bool delayed = false;
  bool frozen = false;
};

// The parts of all units whose updates are delayed.
class DelayedParts {
 public:
  DelayedParts(std::size_t units, const OrderOfWork& work) : by_unit_(units) {
    for (const OrderOfWork::Delayed& one : work.delayed)
      by_unit_[static_cast<std::size_t>(one.part.unit)].push_back(
          {one.part.first, one.part.first + one.part.elements});
    for (std::vector<Part>& parts : by_unit_) {
      std::sort(parts.begin(), parts.end(),
                [](const Part& a, const Part& b) { return a.first < b.first; });
      for (std::size_t p = 1; p < parts.size(); ++p)
        parts[p].end = std::max(parts[p].end, parts[p - 1].end);
    }
  }

  // Whether one of them holds all of `range`.
  bool hold(const UpdateRange& range) const {
    const std::vector<Part>& parts = by_unit_[static_cast<std::size_t>(range.unit)];
    const auto after = std::partition_point(
        parts.begin(), parts.end(), [&](const Part& part) { return part.first <= range.first; });
    return after != parts.begin() && std::prev(after)->end >= range.first + range.elements;
  }

 private:
  struct Part {
    std::uint64_t first = 0;
    std::uint64_t end = 0;  // the furthest of this part and those before it
  };
  std::vector<std::vector<Part>> by_unit_;  // ascending
};

// What a unit's ranges have beyond the elements that this rank updates.
void leave_out_last_cells(std::uint64_t updated, std::vector<Range>& ranges) {
  std::erase_if(ranges, [&](const Range& range) { return range.first >= updated; });
  if (ranges.empty()) return;
  ranges.back().elements = std::min(ranges.back().elements, updated - ranges.back().first);
}

// The updates of each unit, ascending, and what is frozen after them; together they are the unit,
// or this rank's shards of both parts.
std::vector<std::vector<Range>> ranges_by_unit(const Problem& problem, const Shards& shards,
                                               const OrderOfWork& work) {
  std::vector<std::vector<Range>> all(static_cast<std::size_t>(unit_count(problem.model)));
  const DelayedParts delayed(all.size(), work);
  for (const UpdateRange& range : work.ranges)
    all[static_cast<std::size_t>(range.unit)].push_back(
        {range.first, range.elements, delayed.hold(range)});
  for (int unit = 0; unit < static_cast<int>(all.size()); ++unit) {
    std::vector<Range>& ranges = all[unit_index(unit)];
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
      return std::tuple(a.first, a.elements) < std::tuple(b.first, b.elements);
    });
    const auto alike = [](const Range& a, const Range& b) {
      return a.first == b.first && a.elements == b.elements;
    };
    ranges.erase(std::unique(ranges.begin(), ranges.end(), alike), ranges.end());
    for (std::size_t r = 1; r < ranges.size(); ++r) {
      SPILLWAY_ASSERT(ranges[r].first == ranges[r - 1].first + ranges[r - 1].elements,
                      "a policy cuts a unit the same way in every step");
    }
    const std::uint64_t updated = shards.updated(unit).elements;
    if (shards.any()) leave_out_last_cells(updated, ranges);
    if (const std::uint64_t frozen = shards.kept_frozen(unit).elements; frozen > 0)
      ranges.push_back({updated, frozen, false, true});
  }
  return all;
}

// Ends of the shares of `elements` in each memory, by tier.
using Ends = std::array<std::uint64_t, tier_count>;

Ends cuts(std::uint64_t elements, const Share& share, const DriveShares& drives) {
  const std::uint64_t gpu = on_grid(elements, share.gpu);
  const std::uint64_t ssd = std::min(elements - gpu, on_grid(elements, share.ssd));
  Ends ends{gpu, elements - ssd};
  const auto sets = drives.ends(ssd, element_alignment);
  for (int set = 0; set < drives.sets(); ++set)
    ends[static_cast<std::size_t>(drives_tier(set))] =
        elements - ssd + sets[static_cast<std::size_t>(set)];
  return ends;
}

Tier memory_of(const Ends& ends, std::uint64_t at) {
  return static_cast<Tier>(
      std::find_if(ends.begin(), ends.end(), [at](std::uint64_t end) { return at < end; }) -
      ends.begin());
}

// Appends a range in pieces.
void cut(const Range& range, const Ends& of_parameters, const Ends& of_state, Pieces& pieces) {
  std::vector<std::uint64_t> ends(of_parameters.begin(), of_parameters.end());
  if (!range.frozen) ends.insert(ends.end(), of_state.begin(), of_state.end());
  std::sort(ends.begin(), ends.end());
  std::uint64_t done = 0;
  for (const std::uint64_t end : ends) {
    if (end <= done) continue;
    Piece piece;
    piece.first = range.first + done;
    piece.elements = end - done;
    piece.parameters_at = memory_of(of_parameters, done);
    piece.state_at = memory_of(of_state, done);
    piece.delayed = range.delayed;
    piece.frozen = range.frozen;
    pieces.push_back(piece);
    done = end;
  }
}

// Gives each of a row of tensors a memory as a whole: of any first ones, host memory has as many
// elements as whole tensors of its share hold.
class WholeTensors {
 public:
  Share place(std::uint64_t elements, const Share& share) {
    if (share.gpu > 0 || share.ssd == 0) return share;
    all_ += static_cast<double>(elements);
    if (in_host_ + static_cast<double>(elements) > share.host * all_) return {.ssd = 1};
    in_host_ += static_cast<double>(elements);
    return {.host = 1};
  }

 private:
  double all_ = 0, in_host_ = 0;  // elements
};

// Cuts the delayed pieces again where `elements` of them, counted from the first, end.
void cut_delayed(Pieces& pieces, std::uint64_t elements) {
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    if (!pieces[p].delayed) continue;
    if (elements == 0) return;
    if (elements < pieces[p].elements) {
      Piece after = pieces[p];
      after.first += elements;
      after.elements -= elements;
      pieces[p].elements = elements;
      pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(p) + 1, after);
      return;
    }
    elements -= pieces[p].elements;
  }
}

template <class Counted>
std::uint64_t delayed_elements(const Pieces& pieces, const Counted& counted) {
  std::uint64_t elements = 0;
  for (const Piece& piece : pieces) {
    if (piece.delayed && counted(piece)) elements += piece.elements;
  }
  return elements;
}

// Whether every step delays part of every layer, the updates of each layer right before those of
// the layer above.
bool ascends(const OrderOfWork& work, int layers) {
  int last = layers - 1, step = -1;
  for (const OrderOfWork::Delayed& one : work.delayed) {
    if (one.step != step) {
      if (last != layers - 1) return false;
      last = -1;
    }
    if (one.part.unit != last && one.part.unit != last + 1) return false;
    last = one.part.unit;
    step = one.step;
  }
  return step >= 0 && last == layers - 1;
}

std::uint64_t whole_cells(std::uint64_t elements) {
  constexpr auto grid = static_cast<std::uint64_t>(element_alignment);
  return elements / grid * grid;
}

// Where the delayed gradients of a layer wait, in this order: elements by lender.
struct Lenders {
  Slice inputs;  // of the layer above
  std::uint64_t in_inputs = 0, in_parameters = 0, alone = 0;
};

Lenders lenders_of(const Problem& problem, const Pieces& pieces, const Pieces* above,
                   std::uint64_t input_bytes) {
  const std::uint64_t width = problem.gradient_bytes();
  const std::uint64_t all = delayed_elements(pieces, [](const Piece&) { return true; });
  Lenders lenders;
  lenders.in_inputs = std::min(all, whole_cells(input_bytes / width));
  if (above) {
    const std::uint64_t parameters = delayed_elements(
        *above, [](const Piece& piece) { return piece.parameters_at == Tier::host; });
    lenders.in_parameters = std::min(all - lenders.in_inputs,
                                     whole_cells(parameters * problem.parameter_bytes() / width));
  }
  lenders.alone = all - lenders.in_inputs - lenders.in_parameters;
  return lenders;
}

// One buffer in each memory for each kind and, unless that is the GPU's, one for what is frozen.
void take_homes(Program& program, const Shards& shards, int unit, Pieces& pieces) {
  const ElementRange updated = shards.updated(unit), kept = shards.kept(unit),
                     frozen = shards.kept_frozen(unit);
  const bool keeps_more = kept.elements > updated.elements;
  const std::uint64_t parameter_bytes = program.problem().parameter_bytes();
  const std::uint64_t state_bytes = program.problem().state_bytes();
  struct InTier {
    std::uint64_t parameters = 0, frozen = 0, states = 0;  // bytes
    Slice parameters_in, frozen_in, states_in;
  };
  std::array<InTier, tier_count> tiers;
  const auto is_apart = [](const Piece& piece) {
    return piece.frozen && piece.parameters_at != Tier::gpu;
  };
  for (const Piece& piece : pieces) {
    InTier& at = tiers[static_cast<std::size_t>(piece.parameters_at)];
    (is_apart(piece) ? at.frozen : at.parameters) += piece.elements * parameter_bytes;
    if (!piece.frozen)
      tiers[static_cast<std::size_t>(piece.state_at)].states += piece.elements * state_bytes;
  }
  if (keeps_more)
    tiers[static_cast<std::size_t>(Tier::gpu)].parameters =
        (kept.elements + frozen.elements) * parameter_bytes;
  for (std::size_t tier = 0; tier < tier_count; ++tier) {
    const auto take = [&](std::uint64_t bytes, BufferKind kind) {
      return bytes == 0 ? Slice{} : program.persistent(static_cast<Tier>(tier), bytes, kind, unit);
    };
    tiers[tier].parameters_in = take(tiers[tier].parameters, BufferKind::parameters);
    tiers[tier].frozen_in = take(tiers[tier].frozen, BufferKind::parameters);
    tiers[tier].states_in = take(tiers[tier].states, BufferKind::optimizer_state);
  }
  Slice& on_gpu = tiers[static_cast<std::size_t>(Tier::gpu)].parameters_in;
  if (keeps_more) {
    SPILLWAY_ASSERT(parameters_rest_on_gpu(pieces), "what rests elsewhere is updated here");
    program.home(BufferKind::parameters, unit, kept.first, kept.elements,
                 on_gpu.part(0, kept.elements * parameter_bytes));
    on_gpu.offset += (updated.first - kept.first) * parameter_bytes;
  }
  const auto next = [](Slice& from, std::uint64_t bytes) {
    const Slice part = from.part(0, bytes);
    from.offset += bytes;
    return part;
  };
  for (Piece& piece : pieces) {
    InTier& at = tiers[static_cast<std::size_t>(piece.parameters_at)];
    if (keeps_more && piece.frozen) on_gpu.offset = kept.elements * parameter_bytes;
    piece.parameters =
        next(is_apart(piece) ? at.frozen_in : at.parameters_in, piece.elements * parameter_bytes);
    const std::uint64_t first =
        piece.frozen ? frozen.first + piece.first - updated.elements : updated.first + piece.first;
    if (!keeps_more || piece.frozen)
      program.home(BufferKind::parameters, unit, first, piece.elements, piece.parameters);
    if (piece.frozen) continue;
    piece.state = next(tiers[static_cast<std::size_t>(piece.state_at)].states_in,
                       piece.elements * state_bytes);
    program.home(BufferKind::optimizer_state, unit, first, piece.elements, piece.state);
  }
}

void place_waiting(Program& program, int unit, Pieces& pieces, const Pieces* above,
                   const Lenders& lenders) {
  const std::uint64_t width = program.problem().gradient_bytes();
  Slice parameters, alone;
  if (above) {
    for (const Piece& piece : *above) {
      if (piece.delayed && piece.parameters_at == Tier::host && !parameters.valid())
        parameters = piece.parameters;
    }
  }
  if (lenders.alone > 0)
    alone = program.persistent(Tier::host, lenders.alone * width, BufferKind::gradient, unit);
  std::uint64_t done = 0;
  for (Piece& piece : pieces) {
    if (!piece.delayed) continue;
    const std::uint64_t in_lent = lenders.in_inputs + lenders.in_parameters;
    const std::uint64_t bytes = piece.elements * width;
    piece.waiting = done < lenders.in_inputs ? lenders.inputs.part(done * width, bytes)
                    : done < in_lent ? parameters.part((done - lenders.in_inputs) * width, bytes)
                                     : alone.part((done - in_lent) * width, bytes);
    done += piece.elements;
  }
}

}  // namespace

std::vector<Pieces> place_model_states(Program& program, const Plan& plan, const Shards& shards,
                                       const OrderOfWork& work, const DriveShares& drives,
                                       Activations& activations) {
  const Problem& problem = program.problem();
  const int layers = static_cast<int>(problem.model.layers);
  const auto ranges = ranges_by_unit(problem, shards, work);
  // The layer above is over when a layer's backward begins, and updated after it: the last layer,
  // whose one visit is a backward, too, is not fetched before the layer below it.
  const int ahead = plan.parameters.gpu_ahead;
  const bool lends = ascends(work, layers) && activations.has_whole_rows() &&
                     plan.parameters.backward_gpu_ahead.value_or(ahead) <= ahead;
  std::vector<Pieces> all;
  std::uint64_t in_host = 0;
  std::vector<Lenders> lenders(static_cast<std::size_t>(layers));
  WholeTensors tensors;
  const auto units = static_cast<int>(unit_count(problem.model));
  for (int unit = 0; unit < units; ++unit) {
    const bool is_outer = unit >= layers;
    const int layer = std::min(unit, layers - 1);
    Share state = plan.optimizer_state.rest.at(layer, layers);
    if (is_outer) state = plan.optimizer_state.embedding.value_or(state);
    const Share& rest = plan.parameters.rest.at(layer, layers);
    all.emplace_back();
    for (const Range& range : ranges[static_cast<std::size_t>(unit)]) {
      // What is trained of a unit beside frozen tensors is little, and changes in every step.
      const bool is_little = range.frozen != ranges[static_cast<std::size_t>(unit)].back().frozen;
      const Share parameters = is_outer                     ? Share{.gpu = 1}
                               : is_little && rest.gpu == 0 ? Share{.host = 1}
                               : plan.parameters.by_tensor  ? tensors.place(range.elements, rest)
                                                            : rest;
      Ends of_parameters = cuts(range.elements, parameters, drives);
      // The checkpoint's own files are on one set of drives.
      if (range.frozen && problem.frozen_in_place) {
        const auto first = of_parameters.begin() + static_cast<std::ptrdiff_t>(Tier::ssd);
        std::fill(first, of_parameters.end(), range.elements);
      }
      cut(range, of_parameters, cuts(range.elements, state, drives), all.back());
    }
    // The GPU's updates take gradients where they are.
    if (state_rests_on_gpu(plan, unit, layers)) {
      for (Piece& piece : all.back()) piece.delayed = false;
    }
    for (Piece& piece : all.back()) {
      if (is_outer || !is_drives(piece.parameters_at)) continue;
      if (in_host + piece.elements <= plan.parameters.first_in_host)
        piece.parameters_at = Tier::host;
      in_host += piece.elements;
    }
  }
  for (int unit = 0; unit < layers; ++unit) {
    const bool is_last = unit + 1 == layers;
    Pieces& pieces = all[static_cast<std::size_t>(unit)];
    Lenders& mine = lenders[static_cast<std::size_t>(unit)];
    mine = lends && !is_last ? lenders_of(problem, pieces, &all[static_cast<std::size_t>(unit) + 1],
                                          activations.resting_bytes(unit + 1))
                             : lenders_of(problem, pieces, nullptr, 0);
    cut_delayed(pieces, mine.in_inputs);
    cut_delayed(pieces, mine.in_inputs + mine.in_parameters);
  }
  for (int unit = 0; unit < units; ++unit)
    take_homes(program, shards, unit, all[static_cast<std::size_t>(unit)]);
  activations.take_resting_places();
  for (int unit = 0; unit < layers; ++unit) {
    const auto at = static_cast<std::size_t>(unit);
    if (lenders[at].in_inputs > 0) lenders[at].inputs = activations.resting_place(unit + 1);
    place_waiting(program, unit, all[at], unit + 1 < layers ? &all[at + 1] : nullptr, lenders[at]);
  }
  return all;
}

}  // namespace spillway
