#include "policies/greedysnake/block_states.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "policies/common/model_state.hpp"

namespace spillway {

namespace {

// Calls `use(from, to)` for what two runs have in common, if anything.
template <class Use>
void overlap(std::uint64_t from, std::uint64_t to, std::uint64_t first, std::uint64_t elements,
             const Use& use) {
  const std::uint64_t begin = std::max(from, first), end = std::min(to, first + elements);
  if (begin < end) use(begin, end);
}

}  // namespace

BlockStates::BlockStates(Program& program, const BlockStateOptions& options)
    : program_(program),
      options_(options),
      units_(static_cast<int>(program.problem().model.layers)),
      elements_(static_cast<std::uint64_t>(unit_elements(program.problem().model, 0))),
      parameter_bytes_(program.problem().parameter_bytes()),
      state_bytes_(program.problem().state_bytes()),
      gradient_bytes_(program.problem().gradient_bytes()),
      checkpoint_bytes_(checkpoint_bytes(program.problem())) {
  size_[delayed] = fraction_of(elements_, options.alpha);
  size_[rest] = elements_ - size_[delayed];
  for (const Part part : {delayed, rest}) {
    parameters_ssd_[part] = fraction_of(size_[part], options.parameters_ssd);
    optimizer_ssd_[part] = fraction_of(size_[part], options.optimizer_ssd);
  }
  const std::vector<std::uint64_t> cuts = stash_cuts();
  for (const Part part : {delayed, rest}) {
    for (int chunk = 0; chunk < options.chunks; ++chunk)
      segments_[part].push_back(cut_chunk(part, chunk, cuts));
  }
  if (options.takes_turns) make_turns();
  const auto units = index(units_);
  places_.resize(units);
  outputs_.resize(units);
  stash_.resize(units);
  stash_step_.assign(units, -1);
  rest_gradient_.resize(units);
  rest_step_.assign(units, -1);
  for (int unit = 0; unit < units_; ++unit) make_homes(unit);
  for (int unit = 0; unit < units_; ++unit) make_stash(unit);
  for (Slice& staging : staging_) {
    staging = buffer(Tier::host, options.staging_slots * checkpoint_bytes_, BufferKind::checkpoint,
                     -1, true);
  }
}

std::uint64_t BlockStates::chunk_begin(int chunk) const {
  return fraction_of(elements_, static_cast<double>(chunk) / options_.chunks);
}

Slice BlockStates::buffer(Tier tier, std::uint64_t bytes, BufferKind kind, int unit,
                          bool persistent) {
  if (bytes == 0) return {};
  const Slice whole = persistent ? program_.persistent(tier, bytes, kind, unit)
                                 : program_.buffer(tier, bytes, kind, unit);
  return whole.part(0, bytes);
}

// What takes turns, as many as the authors' program is ever busy with: optimizer states on their
// way in, under AdamW, and on their way out, either part in the same buffers; parameters of two
// blocks on their way in and of two on their way out, of which the delayed part is never so many.
void BlockStates::make_turns() {
  const auto make = [&](BufferKind kind, std::uint64_t bytes, int count) {
    for (int k = 0; k < std::min(count, units_) && bytes > 0; ++k) {
      const Free turn{buffer(Tier::host, bytes, kind, -1, true), kind, -1};
      turns_[turn.where.buffer.id] = turn;
      free_.push_back(turn);
    }
  };
  make(BufferKind::optimizer_state, optimizer_turn_bytes(), 3);
  make(BufferKind::parameters, parameters_ssd_[rest] * parameter_bytes_, 4);
  make(BufferKind::parameters, parameters_ssd_[delayed] * parameter_bytes_, 3);
}

std::uint64_t BlockStates::optimizer_turn_bytes() const {
  return std::max(optimizer_ssd_[delayed], optimizer_ssd_[rest]) * state_bytes_;
}

Slice BlockStates::stage(std::uint64_t bytes, BufferKind kind, int unit) {
  const std::uint64_t all = kind == BufferKind::optimizer_state ? optimizer_turn_bytes() : bytes;
  const auto idle = std::find_if(free_.begin(), free_.end(), [&](const Free& one) {
    return one.kind == kind && one.where.bytes == all && one.since < epoch_;
  });
  if (idle == free_.end()) return buffer(Tier::host, bytes, kind, unit, false);
  const Slice where = idle->where;
  free_.erase(idle);
  return where.part(0, bytes);
}

void BlockStates::unstage(Slice& staged) {
  const auto turn = staged.valid() ? turns_.find(staged.buffer.id) : turns_.end();
  if (turn != turns_.end()) {
    free_.push_back(turn->second);
    free_.back().since = epoch_;
  }
  staged = {};
}

// -- where things are -----------------------------------------------------------------------------

// Elements of the delayed part up to which each of the places of the stash reaches, the last one
// apart.
std::vector<std::uint64_t> BlockStates::stash_cuts() const {
  const auto grid = static_cast<std::uint64_t>(element_alignment);
  const auto holds = [&](std::uint64_t bytes) { return bytes / gradient_bytes_ / grid * grid; };
  const std::uint64_t under_outputs = holds(options_.checkpoint_slots * checkpoint_bytes_);
  const std::uint64_t under_parameters =
      holds((size_[delayed] - parameters_ssd_[delayed]) * parameter_bytes_);
  return {std::min(size_[delayed], under_outputs),
          std::min(size_[delayed], under_outputs + under_parameters)};
}

// The elements of a part of a chunk, cut wherever one of their places ends. Fractions are rounded
// over all chunks so far, so that the sums over a block are exact.
BlockStates::Segments BlockStates::cut_chunk(Part part, int chunk,
                                             const std::vector<std::uint64_t>& stash_cuts) {
  const std::uint64_t begin = chunk_begin(chunk), end = chunk_begin(chunk + 1);
  const auto share = [](std::uint64_t of, std::uint64_t whole, std::uint64_t all) {
    return whole == 0 ? 0 : fraction_of(of, static_cast<double>(all) / static_cast<double>(whole));
  };
  // Elements of the part before this chunk, and with it.
  const auto until = [&](std::uint64_t element) {
    const std::uint64_t late = share(element, elements_, size_[delayed]);
    return part == delayed ? late : element - late;
  };
  const std::uint64_t from = until(begin), to = until(end);
  const std::uint64_t ssd_before = share(from, size_[part], parameters_ssd_[part]);
  const std::uint64_t ssd = share(to, size_[part], parameters_ssd_[part]) - ssd_before;
  const std::uint64_t state_ssd_before = share(from, size_[part], optimizer_ssd_[part]);
  const std::uint64_t state_ssd = share(to, size_[part], optimizer_ssd_[part]) - state_ssd_before;
  const std::uint64_t first = part == delayed ? begin : end - (to - from);
  const std::uint64_t parameters_cut = to - ssd, state_cut = to - state_ssd;

  std::vector<std::uint64_t> cuts = {from, parameters_cut, state_cut, to};
  if (part == delayed) cuts.insert(cuts.end(), stash_cuts.begin(), stash_cuts.end());
  std::sort(cuts.begin(), cuts.end());
  Segments segments;
  for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
    const std::uint64_t low = cuts[k], high = cuts[k + 1];
    if (low < from || high > to || low == high) continue;
    Segment s;
    s.first = first + (low - from);
    s.elements = high - low;
    s.in_part = low;
    s.parameters_on_ssd = low >= parameters_cut;
    s.optimizer_on_ssd = low >= state_cut;
    s.parameters_at = parameter_bytes_ *
                      (s.parameters_on_ssd ? ssd_before + low - parameters_cut : low - ssd_before);
    s.optimizer_at = state_bytes_ * (s.optimizer_on_ssd ? state_ssd_before + low - state_cut
                                                        : low - state_ssd_before);
    segments.push_back(s);
  }
  return segments;
}

void BlockStates::make_homes(int unit) {
  constexpr auto parameters = BufferKind::parameters, state = BufferKind::optimizer_state;
  for (const Part part : {delayed, rest}) {
    Places& places = places_[index(unit)][part];
    const std::uint64_t on_ssd = parameters_ssd_[part], state_on_ssd = optimizer_ssd_[part];
    const std::uint64_t all = size_[part];
    places.parameters_host =
        buffer(Tier::host, (all - on_ssd) * parameter_bytes_, parameters, unit, true);
    places.parameters_ssd = buffer(Tier::ssd, on_ssd * parameter_bytes_, parameters, unit, true);
    places.optimizer_host =
        buffer(Tier::host, (all - state_on_ssd) * state_bytes_, state, unit, true);
    places.optimizer_ssd = buffer(Tier::ssd, state_on_ssd * state_bytes_, state, unit, true);
    for (const Segments& chunk : segments_[part]) {
      for (const Segment& s : chunk) {
        program_.home(parameters, unit, s.first, s.elements,
                      (s.parameters_on_ssd ? places.parameters_ssd : places.parameters_host)
                          .part(s.parameters_at, s.elements * parameter_bytes_));
        program_.home(state, unit, s.first, s.elements,
                      (s.optimizer_on_ssd ? places.optimizer_ssd : places.optimizer_host)
                          .part(s.optimizer_at, s.elements * state_bytes_));
      }
    }
  }
  if (unit + 1 < units_) {
    outputs_[index(unit)] = buffer(Tier::host, options_.checkpoint_slots * checkpoint_bytes_,
                                   BufferKind::checkpoint, unit, true);
  }
}

void BlockStates::make_stash(int unit) {
  std::uint64_t done = 0;  // elements
  const auto add = [&](Slice where, std::uint64_t until) {
    if (until <= done) return;
    const std::uint64_t count = until - done;
    stash_[index(unit)].push_back({done, count, where.part(0, count * gradient_bytes_)});
    done = until;
  };
  const bool last = unit + 1 == units_;
  if (!last) {
    const std::vector<std::uint64_t> cuts = stash_cuts();
    add(outputs_[index(unit)], cuts[0]);
    add(places_[index(unit) + 1][delayed].parameters_host, cuts[1]);
  }
  if (done == size_[delayed]) return;
  const std::uint64_t bytes = (size_[delayed] - done) * gradient_bytes_;
  extra_stash_bytes_ += bytes;
  add(buffer(Tier::host, bytes, BufferKind::gradient, unit, true), size_[delayed]);
}

Slice BlockStates::checkpoint(int unit, int slot) const {
  return outputs_[index(unit)].part(static_cast<std::uint64_t>(slot) * checkpoint_bytes_,
                                    checkpoint_bytes_);
}

Slice BlockStates::staging(int unit, int slot) const {
  return staging_[index(unit % 2)].part(static_cast<std::uint64_t>(slot) * checkpoint_bytes_,
                                        checkpoint_bytes_);
}

// -- moving them ----------------------------------------------------------------------------------

void BlockStates::read_parameters(int unit, Part part) {
  Places& places = places_[index(unit)][part];
  if (!places.parameters_ssd.valid() || places.staged_parameters.valid()) return;
  places.staged_parameters = stage(places.parameters_ssd.bytes, BufferKind::parameters, unit);
  program_.copy(places.parameters_ssd, places.staged_parameters, unit);
}

void BlockStates::read_optimizer(int unit, Part part) {
  Places& places = places_[index(unit)][part];
  if (!places.optimizer_ssd.valid() || places.staged_optimizer.valid()) return;
  places.staged_optimizer = stage(places.optimizer_ssd.bytes, BufferKind::optimizer_state, unit);
  program_.copy(places.optimizer_ssd, places.staged_optimizer, unit);
}

void BlockStates::upload(int unit, std::uint64_t from, std::uint64_t to, Slice gpu) {
  const std::uint64_t width = parameter_bytes_;
  // Neighbours in one buffer go in one copy.
  struct Piece {
    std::uint64_t begin = 0, end = 0;
    Slice source;
  } piece;
  const auto flush = [&] {
    if (piece.begin == piece.end) return;
    program_.copy(piece.source, gpu.part(piece.begin * width, (piece.end - piece.begin) * width),
                  unit);
  };
  for (int chunk = 0; chunk < options_.chunks; ++chunk) {
    if (chunk_begin(chunk + 1) <= from || chunk_begin(chunk) >= to) continue;
    for (const Part part : {delayed, rest}) {
      const Places& places = places_[index(unit)][part];
      for (const Segment& s : segments_[part][static_cast<std::size_t>(chunk)]) {
        const Slice whole = s.parameters_on_ssd ? places.staged_parameters : places.parameters_host;
        overlap(from, to, s.first, s.elements, [&](std::uint64_t begin, std::uint64_t end) {
          SPILLWAY_ASSERT(whole.valid(), "parameters are staged before they are used");
          const Slice source =
              whole.part(s.parameters_at + (begin - s.first) * width, (end - begin) * width);
          if (piece.begin < piece.end && piece.end == begin &&
              piece.source.buffer.id == source.buffer.id &&
              piece.source.offset + piece.source.bytes == source.offset) {
            piece.end = end;
            piece.source.bytes += source.bytes;
            return;
          }
          flush();
          piece = {begin, end, source};
        });
      }
    }
  }
  flush();
}

void BlockStates::forget_parameters(int unit) {
  for (Places& places : places_[index(unit)]) unstage(places.staged_parameters);
}

void BlockStates::leave_gradient(int unit, std::uint64_t from, std::uint64_t to, Slice gpu,
                                 int step) {
  const std::uint64_t width = gradient_bytes_;
  for (int chunk = 0; chunk < options_.chunks; ++chunk) {
    if (chunk_begin(chunk + 1) <= from || chunk_begin(chunk) >= to) continue;
    const auto c = static_cast<std::size_t>(chunk);
    // Both parts of a chunk are runs of its elements: the rest goes in one copy, the delayed part
    // in one for each place of its stash.
    if (const Segments& all = segments_[rest][c]; !all.empty()) {
      Slice& host = rest_gradient_[index(unit)];
      if (rest_step_[index(unit)] != step) {
        host = buffer(Tier::host, size_[rest] * width, BufferKind::gradient, unit, false);
        rest_step_[index(unit)] = step;
      }
      const std::uint64_t first = all.front().first;
      const std::uint64_t count = all.back().first + all.back().elements - first;
      overlap(from, to, first, count, [&](std::uint64_t begin, std::uint64_t end) {
        const std::uint64_t at = all.front().in_part + (begin - first);
        program_.copy(gpu.part(begin * width, (end - begin) * width),
                      host.part(at * width, (end - begin) * width), unit);
      });
    }
    const Segments& late = segments_[delayed][c];
    for (const Stash& stash : stash_[index(unit)]) {
      if (late.empty()) break;
      // Element e of the block is element e - shift of the part.
      const std::uint64_t shift = late.front().first - late.front().in_part;
      const std::uint64_t chunk_end = late.back().first + late.back().elements;
      overlap(std::max(from, late.front().first), std::min(to, chunk_end), stash.in_part + shift,
              stash.elements, [&](std::uint64_t begin, std::uint64_t end) {
                program_.copy(gpu.part(begin * width, (end - begin) * width),
                              stash.where.part((begin - shift - stash.in_part) * width,
                                               (end - begin) * width),
                              unit);
              });
    }
  }
  if (has(delayed)) stash_step_[index(unit)] = step;
}

Slice BlockStates::stash_of(int unit, const Segment& segment) const {
  for (const Stash& stash : stash_[index(unit)]) {
    if (segment.in_part < stash.in_part || segment.in_part >= stash.in_part + stash.elements)
      continue;
    return stash.where.part((segment.in_part - stash.in_part) * gradient_bytes_,
                            segment.elements * gradient_bytes_);
  }
  bug("every delayed element has a stash", __FILE__, __LINE__);
}

void BlockStates::update(int unit, Part part, int chunk) {
  Places& places = places_[index(unit)][part];
  const int step = part == delayed ? stash_step_[index(unit)] : rest_step_[index(unit)];
  SPILLWAY_ASSERT(step >= 0, "an update has a gradient");
  for (const Segment& s : segments_[part][static_cast<std::size_t>(chunk)]) {
    const Slice gradient = part == delayed
                               ? stash_of(unit, s)
                               : rest_gradient_[index(unit)].part(s.in_part * gradient_bytes_,
                                                                  s.elements * gradient_bytes_);
    const Slice state = s.optimizer_on_ssd ? places.staged_optimizer : places.optimizer_host;
    SPILLWAY_ASSERT(state.valid(), "optimizer state is staged before it is updated");
    if (s.parameters_on_ssd && !places.parameters_updated) {
      unstage(places.staged_parameters);
      places.staged_parameters = stage(places.parameters_ssd.bytes, BufferKind::parameters, unit);
      places.parameters_updated = true;
    }
    if (s.optimizer_on_ssd) places.optimizer_updated = true;
    const Slice result = s.parameters_on_ssd ? places.staged_parameters : places.parameters_host;
    program_.optimizer(unit, s.first, s.elements, gradient, {},
                       state.part(s.optimizer_at, s.elements * state_bytes_),
                       result.part(s.parameters_at, s.elements * parameter_bytes_), step);
  }
  if (chunk + 1 < options_.chunks) return;
  (part == delayed ? stash_step_ : rest_step_)[index(unit)] = -1;
}

void BlockStates::update(int unit, Part part) {
  for (int chunk = 0; chunk < options_.chunks; ++chunk) update(unit, part, chunk);
}

void BlockStates::write_parameters(int unit, Part part) {
  Places& places = places_[index(unit)][part];
  if (!places.parameters_updated) return;
  program_.copy(places.staged_parameters, places.parameters_ssd, unit);
  places.parameters_updated = false;
}

void BlockStates::write_optimizer(int unit, Part part) {
  Places& places = places_[index(unit)][part];
  if (!places.optimizer_updated) return;
  program_.copy(places.staged_optimizer, places.optimizer_ssd, unit);
  places.optimizer_updated = false;
  unstage(places.staged_optimizer);
}

}  // namespace spillway
