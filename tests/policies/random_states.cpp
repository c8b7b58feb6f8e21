#include "tests/policies/random_states.hpp"

#include <algorithm>
#include <numeric>

#include "base/errors.hpp"
#include "policies/model/gpt_layout.hpp"

namespace spillway::test {

RandomStates::RandomStates(Program& program, Moves& moves)
    : program_(program),
      moves_(moves),
      dice_(moves.dice()),
      gpu_update_(dice_.habit()),
      keep_assembled_(dice_.habit()),
      in_place_(dice_.habit()),
      whole_on_gpu_(dice_.habit() / 2),
      cuts_(dice_.habit()),
      passes_(dice_.habit()),
      write_at_once_(dice_.habit()),
      state_ssd_(dice_.habit()),
      state_gpu_(dice_.habit()),
      parameters_ssd_(dice_.habit()),
      parameters_gpu_(dice_.habit()),
      times_{dice_.habit(), dice_.habit(), dice_.habit(), dice_.habit()} {
  const int count = static_cast<int>(program.problem().model.layers) + 1;
  units_.resize(static_cast<std::size_t>(count));
  for (int unit = 0; unit < count; ++unit) cut(unit);
  std::uint64_t most = 0;
  for (const Unit& unit : units_) {
    for (const Segment& segment : unit.segments)
      most = std::max(most, segment.elements * program_.problem().state_bytes());
  }
  if (dice_.chance(0.3)) moves_.use_slots(1 + dice_.below(4), most);
}

std::uint64_t RandomStates::elements(int unit) const {
  return static_cast<std::uint64_t>(unit_elements(program_.problem().model, unit));
}

Tier RandomStates::random_tier(double ssd, double gpu) {
  if (dice_.chance(ssd)) return Tier::ssd;
  return dice_.chance(gpu) ? Tier::gpu : Tier::host;
}

// Cuts on the element grid. Neighbours whose parameters rest in one tier may share a buffer, and
// are one home part then.
void RandomStates::cut(int unit) {
  constexpr auto grid = static_cast<std::uint64_t>(element_alignment);
  Unit& one = units_[static_cast<std::size_t>(unit)];
  const std::uint64_t cells = elements(unit) / grid;
  const std::uint64_t width = program_.problem().parameter_bytes();
  std::vector<std::uint64_t> cuts{0, cells};
  for (std::uint64_t cell = 1; cell < cells; ++cell) {
    if (dice_.chance(cuts_ / 2)) cuts.push_back(cell);
  }
  std::sort(cuts.begin(), cuts.end());
  for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
    Segment segment;
    segment.first = cuts[k] * grid;
    segment.elements = (cuts[k + 1] - cuts[k]) * grid;
    one.segments.push_back(segment);
  }
  const bool on_gpu = dice_.chance(whole_on_gpu_);
  for (std::size_t k = 0; k < one.segments.size();) {
    const Tier tier = on_gpu ? Tier::gpu : random_tier(parameters_ssd_, parameters_gpu_);
    std::size_t end = k + 1;
    while (end < one.segments.size() && (on_gpu || dice_.chance(0.3))) ++end;
    const std::uint64_t first = one.segments[k].first;
    const std::uint64_t count =
        one.segments[end - 1].first + one.segments[end - 1].elements - first;
    const Slice run = program_.persistent(tier, count * width, BufferKind::parameters, unit)
                          .part(0, count * width);
    program_.home(BufferKind::parameters, unit, first, count, run);
    if (on_gpu) one.resident = run;
    for (; k < end; ++k) {
      Segment& segment = one.segments[k];
      const std::uint64_t bytes = segment.elements * width;
      segment.parameters = {BufferKind::parameters, unit, -1, bytes, {}, {}, true};
      segment.parameters.home = run.part((segment.first - first) * width, bytes);
      segment.parameters.in(tier) = segment.parameters.home;
    }
  }
  for (Segment& segment : one.segments) {
    const Tier tier = random_tier(state_ssd_, state_gpu_);
    const std::uint64_t bytes = segment.elements * program_.problem().state_bytes();
    segment.state = {BufferKind::optimizer_state, unit, -1, bytes, {}, {}, true};
    segment.state.home =
        program_.persistent(tier, bytes, BufferKind::optimizer_state, unit).part(0, bytes);
    segment.state.in(tier) = segment.state.home;
    program_.home(BufferKind::optimizer_state, unit, segment.first, segment.elements,
                  segment.state.home);
  }
}

void RandomStates::assemble(Unit& unit, Segment& segment) {
  if (segment.assembled) return;
  const std::uint64_t width = program_.problem().parameter_bytes();
  const Slice place = unit.assembled.part(segment.first * width, segment.elements * width);
  moves_.copy(moves_.bring(segment.parameters, Tier::host), place, segment.parameters);
  segment.assembled = true;
  if (!segment.parameters.in(Tier::gpu).valid()) segment.parameters.in(Tier::gpu) = place;
}

Slice RandomStates::parameters(int unit) {
  Unit& one = units_[static_cast<std::size_t>(unit)];
  update_waiting(one);
  if (one.resident.valid()) {
    for (Segment& segment : one.segments) moves_.bring_home(segment.parameters);
    return one.resident;
  }
  if (!one.assembled.valid() || !dice_.chance(keep_assembled_)) {
    const std::uint64_t bytes = elements(unit) * program_.problem().parameter_bytes();
    one.assembled = program_.buffer(Tier::gpu, bytes, BufferKind::parameters, unit).part(0, bytes);
    for (Segment& segment : one.segments) segment.assembled = false;
  }
  const std::size_t from = dice_.below(one.segments.size());
  for (std::size_t k = 0; k < one.segments.size(); ++k)
    assemble(one, one.segments[(from + k) % one.segments.size()]);
  return one.assembled;
}

Slice RandomStates::accumulate(int unit, bool first, BufferKind kind) {
  Unit& one = units_[static_cast<std::size_t>(unit)];
  Value& sum = kind == BufferKind::gradient ? one.gradient : one.head_gradient;
  if (first) {
    const std::uint64_t bytes = elements(unit) * program_.problem().gradient_bytes();
    sum = {kind, unit, -1, bytes, {}, {}, false};
    sum.in(Tier::gpu) = moves_.buffer(sum, Tier::gpu);
  }
  return moves_.bring_to_change(sum, Tier::gpu);
}

void RandomStates::complete(int unit, int step) {
  Unit& one = units_[static_cast<std::size_t>(unit)];
  one.applied_gradient = one.gradient;
  one.applied_head_gradient = one.head_gradient;
  one.gradient = one.head_gradient = {};
  one.update = step;
  const double all = std::accumulate(times_.begin(), times_.end(), 0.0);
  for (Segment& segment : one.segments) {
    SPILLWAY_ASSERT(!segment.waits);
    segment.waits = true;
    double at = dice_.fraction() * all;
    std::size_t when = 0;
    while (when + 1 < times_.size() && at >= times_[when]) at -= times_[when++];
    segment.when = static_cast<When>(when);
  }
  if (step != latest_complete_) complete_units_ = 0;
  latest_complete_ = step;
  ++complete_units_;
  take_norm(one);
  for (Unit& each : units_) {
    if (each.update != step || !may_update(each)) continue;
    for (Segment& segment : each.segments)
      if (segment.waits && segment.when == When::at_once) update(each, segment);
  }
}

void RandomStates::take_norm(Unit& unit) {
  if (!program_.problem().workload.needs_norms()) return;
  const Tier where = dice_.chance(0.5) ? Tier::gpu : Tier::host;
  const auto whole = [&](Value& gradient) {
    return gradient.exists() ? moves_.bring(gradient, where).part(0, gradient.bytes) : Slice{};
  };
  const Slice gradient = whole(unit.applied_gradient);
  program_.gradient_complete(unit.applied_gradient.layer, gradient,
                             whole(unit.applied_head_gradient));
}

bool RandomStates::may_update(const Unit& unit) const {
  return !program_.updates_wait() || latest_complete_ > unit.update || complete_units_ == units();
}

// Everything that update k changes is home before anything of update k + 1 is written there.
void RandomStates::begin_updates(int step) {
  if (step == latest_update_) return;
  SPILLWAY_ASSERT(step == latest_update_ + 1);
  latest_update_ = step;
  for (Unit& unit : units_) {
    for (Segment& segment : unit.segments) {
      SPILLWAY_ASSERT(!segment.waits || unit.update == step);
      moves_.bring_home(segment.state);
    }
  }
}

void RandomStates::update(Unit& unit, Segment& segment) {
  begin_updates(unit.update);
  segment.waits = false;
  const Tier where = dice_.chance(gpu_update_) ? Tier::gpu : Tier::host;
  Value& state = segment.state;
  Value& parameters = segment.parameters;
  const std::uint64_t gradient_width = program_.problem().gradient_bytes();
  const auto part_of = [&](Value& gradient) {
    return moves_.bring(gradient, where)
        .part(segment.first * gradient_width, segment.elements * gradient_width);
  };
  const Slice gradient = part_of(unit.applied_gradient);
  const Slice head =
      unit.applied_head_gradient.exists() ? part_of(unit.applied_head_gradient) : Slice{};
  const Slice changed = moves_.bring_to_change(state, where);
  moves_.forget_all(parameters);
  segment.assembled = false;
  Slice result;
  if (program_.tier(parameters.home) == where && dice_.chance(in_place_)) {
    result = parameters.home;
    parameters.home_is_current = true;
  } else if (where == Tier::gpu && unit.assembled.valid() && dice_.chance(in_place_)) {
    const std::uint64_t width = program_.problem().parameter_bytes();
    result = unit.assembled.part(segment.first * width, segment.elements * width);
    segment.assembled = true;
  } else {
    result = moves_.buffer(parameters, where);
  }
  parameters.in(where) = result;
  const auto passes = static_cast<std::uint8_t>(dice_.chance(passes_) ? dice_.below(20) : 0);
  program_.optimizer(parameters.layer, segment.first, segment.elements, gradient, head, changed,
                     result, unit.update, passes);
  if (dice_.chance(write_at_once_)) moves_.bring_home(state);
  if (dice_.chance(write_at_once_)) moves_.bring_home(parameters);
}

void RandomStates::update_waiting(Unit& unit) {
  for (Segment& segment : unit.segments)
    if (segment.waits) update(unit, segment);
}

void RandomStates::shake() {
  Unit& unit = units_[dice_.below(units_.size())];
  Segment& segment = unit.segments[dice_.below(unit.segments.size())];
  switch (dice_.below(7)) {
    case 0:
      if (segment.waits && segment.when != When::at_end && may_update(unit)) update(unit, segment);
      return;
    case 1:
      return moves_.bring_home(segment.state);
    case 2:
      return moves_.bring_home(segment.parameters);
    case 3:
      return moves_.shake(segment.parameters);
    case 4:
      return moves_.shake(segment.state);
    case 5:
      moves_.shake(unit.gradient);
      return moves_.shake(unit.head_gradient);
    default:
      if (segment.waits) moves_.shake(unit.applied_gradient);
      if (!segment.waits && unit.assembled.valid()) assemble(unit, segment);
  }
}

void RandomStates::end_step() {
  for (Unit& unit : units_) {
    for (Segment& segment : unit.segments) {
      if (segment.waits && segment.when != When::delayed) update(unit, segment);
    }
  }
}

void RandomStates::finish() {
  for (Unit& unit : units_) {
    update_waiting(unit);
    for (Segment& segment : unit.segments) {
      moves_.bring_home(segment.state);
      moves_.bring_home(segment.parameters);
    }
  }
}

}  // namespace spillway::test
