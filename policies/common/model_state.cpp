#include "policies/common/model_state.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

std::uint64_t fraction_of(std::uint64_t elements, double fraction) {
  const auto grid = static_cast<std::uint64_t>(element_alignment);
  const double cells = static_cast<double>(elements / grid) * fraction;
  return std::min(elements, static_cast<std::uint64_t>(std::llround(cells)) * grid);
}

namespace {

// The first run that holds something at or after `first`. Runs of a unit are in ascending order and
// apart; there may be as many as there are groups, so none is looked for one by one.
auto run_at(const ModelState::Runs& runs, std::uint64_t first) {
  return std::partition_point(runs.begin(), runs.end(), [&](const ModelState::Run& run) {
    return run.first + run.elements <= first;
  });
}

}  // namespace

ModelState::ModelState(Program& program) : program_(program) {
  const auto count = static_cast<std::size_t>(program.problem().model.layers) + 1;
  parameters_.resize(count);
  optimizer_.resize(count);
}

std::uint64_t ModelState::elements(int unit) const {
  return static_cast<std::uint64_t>(unit_elements(program_.problem().model, unit));
}

std::uint64_t ModelState::element_bytes(BufferKind kind) const {
  const Problem& problem = program_.problem();
  return kind == BufferKind::optimizer_state ? problem.state_bytes() : problem.parameter_bytes();
}

void ModelState::place(BufferKind kind, int unit, std::uint64_t first, std::uint64_t elements,
                       Tier tier) {
  if (elements == 0) return;
  const std::uint64_t bytes = elements * element_bytes(kind);
  const Slice where = program_.persistent(tier, bytes, kind, unit).part(0, bytes);
  program_.home(kind, unit, first, elements, where);
  auto& runs = kind == BufferKind::parameters ? parameters_ : optimizer_;
  Runs& of_unit = runs[static_cast<std::size_t>(unit)];
  SPILLWAY_ASSERT(run_at(of_unit, first) == of_unit.end(), "parts are placed in ascending order");
  of_unit.push_back({first, elements, where});
}

void ModelState::place_parameters(int unit, std::uint64_t first, std::uint64_t elements,
                                  Placement placement) {
  const std::uint64_t gpu = fraction_of(elements, placement.gpu);
  const std::uint64_t ssd = std::min(elements - gpu, fraction_of(elements, placement.ssd));
  place(BufferKind::parameters, unit, first, gpu, Tier::gpu);
  place(BufferKind::parameters, unit, first + gpu, elements - gpu - ssd, Tier::host);
  place(BufferKind::parameters, unit, first + elements - ssd, ssd, Tier::ssd);
}

void ModelState::place_optimizer(int unit, std::uint64_t first, std::uint64_t elements,
                                 Placement placement) {
  const std::uint64_t gpu = fraction_of(elements, placement.gpu);
  const std::uint64_t ssd = std::min(elements - gpu, fraction_of(elements, placement.ssd));
  const auto place_cut = [&](std::uint64_t from, std::uint64_t count, Tier tier) {
    const std::uint64_t to = from + count;
    const Runs& runs = parameters_[static_cast<std::size_t>(unit)];
    for (auto run = run_at(runs, from); run != runs.end() && run->first < to; ++run) {
      const std::uint64_t begin = std::max(from, run->first);
      const std::uint64_t end = std::min(to, run->first + run->elements);
      if (begin < end) place(BufferKind::optimizer_state, unit, begin, end - begin, tier);
    }
  };
  place_cut(first, gpu, Tier::gpu);
  place_cut(first + gpu, elements - gpu - ssd, Tier::host);
  place_cut(first + elements - ssd, ssd, Tier::ssd);
}

ModelState::Runs ModelState::stage_parameters(int unit, std::uint64_t first,
                                              std::uint64_t elements) {
  const std::uint64_t width = element_bytes(BufferKind::parameters);
  Runs staged;
  const Runs& runs = parameters_[static_cast<std::size_t>(unit)];
  for (auto run = run_at(runs, first); run != runs.end() && run->first < first + elements; ++run) {
    const std::uint64_t begin = std::max(first, run->first);
    const std::uint64_t end = std::min(first + elements, run->first + run->elements);
    if (begin >= end) continue;
    Slice where = run->where.part((begin - run->first) * width, (end - begin) * width);
    if (program_.tier(where) == Tier::ssd) {
      const Slice staging = program_.buffer(Tier::host, where.bytes, BufferKind::parameters, unit)
                                .part(0, where.bytes);
      program_.copy(where, staging, unit);
      where = staging;
    }
    staged.push_back({begin, end - begin, where});
  }
  return staged;
}

Slice ModelState::resident_parameters(int unit) const {
  const Runs& runs = parameters_[static_cast<std::size_t>(unit)];
  SPILLWAY_ASSERT(runs.size() == 1 && program_.tier(runs[0].where) == Tier::gpu);
  return runs[0].where;
}

Slice ModelState::upload_parameters(int unit, const Runs& staged) {
  if (staged.size() == 1 && program_.tier(staged[0].where) == Tier::gpu) return staged[0].where;
  const std::uint64_t width = element_bytes(BufferKind::parameters);
  const std::uint64_t bytes = elements(unit) * width;
  const Slice gpu = program_.buffer(Tier::gpu, bytes, BufferKind::parameters, unit).part(0, bytes);
  for (const Run& run : staged) {
    program_.copy(run.where, gpu.part(run.first * width, run.elements * width), unit);
  }
  return gpu;
}

ModelState::Update ModelState::begin_update(int unit, std::uint64_t first, std::uint64_t elements,
                                            Slice slot) {
  Update update{unit, first, elements, {}};
  std::uint64_t used = 0;  // of the slot
  const Runs& runs = optimizer_[static_cast<std::size_t>(unit)];
  for (auto run = run_at(runs, first); run != runs.end() && run->first < first + elements; ++run) {
    SPILLWAY_ASSERT(first <= run->first && run->first + run->elements <= first + elements,
                    "an update takes whole runs");
    Slice where = run->where;
    if (program_.tier(where) == Tier::ssd) {
      const std::uint64_t bytes = run->where.bytes;
      where = slot.valid() ? slot.part(used, bytes)
                           : program_.buffer(Tier::host, bytes, BufferKind::optimizer_state, unit)
                                 .part(0, bytes);
      used += bytes;
      program_.copy(run->where, where, unit);
    }
    update.state.push_back({run->first, run->elements, where});
  }
  return update;
}

ModelState::Runs ModelState::finish_update(const Update& update, Slice gradient,
                                           Slice head_gradient, int step,
                                           const std::function<void()>& updated) {
  Runs fresh;
  for (const Run& state : update.state) {
    const Update one{update.unit, state.first, state.elements, {state}};
    const auto slice_of = [&](Slice whole) {
      return whole.valid() ? gradient_part(whole, state.first - update.first, state.elements)
                           : Slice{};
    };
    const Runs result = apply_update(one, slice_of(gradient), slice_of(head_gradient), step);
    if (updated) updated();
    bring_parameters_home(update.unit, result);
    bring_state_home(one);
    fresh.push_back(result.front());
  }
  return fresh;
}

// Where the parameters of a run rest: in the one run of parameters that holds them.
Slice ModelState::parameters_home(int unit, const Run& run) const {
  const std::uint64_t width = element_bytes(BufferKind::parameters);
  const Runs& runs = parameters_[static_cast<std::size_t>(unit)];
  const auto owner = run_at(runs, run.first);
  SPILLWAY_ASSERT(owner != runs.end() && owner->first <= run.first &&
                  run.first + run.elements <= owner->first + owner->elements);
  return owner->where.part((run.first - owner->first) * width, run.elements * width);
}

ModelState::Runs ModelState::apply_update(const Update& update, Slice gradient, Slice head_gradient,
                                          int step) {
  const int unit = update.unit;
  Runs fresh;
  for (const Run& state : update.state) {
    const Tier where = program_.tier(state.where);
    const Slice home = parameters_home(unit, state);
    const Slice result =
        program_.tier(home) == where
            ? home
            : program_.buffer(where, home.bytes, BufferKind::parameters, unit).part(0, home.bytes);
    const auto slice_of = [&](Slice whole) {
      return whole.valid() ? gradient_part(whole, state.first - update.first, state.elements)
                           : Slice{};
    };
    program_.optimizer(unit, state.first, state.elements, slice_of(gradient),
                       slice_of(head_gradient), state.where, result, step, pass_bytes_);
    fresh.push_back({state.first, state.elements, result});
  }
  return fresh;
}

void ModelState::bring_parameters_home(int unit, const Runs& updated) {
  for (const Run& run : updated) {
    const Slice home = parameters_home(unit, run);
    if (program_.tier(home) != program_.tier(run.where)) program_.copy(run.where, home, unit);
  }
}

void ModelState::bring_state_home(const Update& update) {
  for (const Run& state : update.state) {
    const Runs& runs = optimizer_[static_cast<std::size_t>(update.unit)];
    const auto at_rest = run_at(runs, state.first);
    if (at_rest != runs.end() && at_rest->first == state.first &&
        at_rest->where.buffer.id != state.where.buffer.id) {
      program_.copy(state.where, at_rest->where, update.unit);
    }
  }
}

Slice ModelState::gradient_buffer(Tier tier, int unit, BufferKind kind) {
  const std::uint64_t bytes = elements(unit) * program_.problem().gradient_bytes();
  return program_.buffer(tier, bytes, kind, unit).part(0, bytes);
}

std::vector<Slice> ModelState::host_accumulators() {
  std::vector<Slice> accumulators;
  for (int unit = 0; unit < units(); ++unit) {
    const std::uint64_t bytes = elements(unit) * program_.problem().gradient_bytes();
    accumulators.push_back(
        program_.persistent(Tier::host, bytes, BufferKind::gradient, unit).part(0, bytes));
  }
  return accumulators;
}

Slice ModelState::gradient_part(Slice gradient, std::uint64_t first, std::uint64_t elements) const {
  const std::uint64_t width = program_.problem().gradient_bytes();
  return gradient.part(first * width, elements * width);
}

}  // namespace spillway
