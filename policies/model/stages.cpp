#include "policies/model/stages.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

// Layers of a run.
std::int64_t run_of(const ModelSpec& model) { return model.layers / model.stage.chunks; }

}  // namespace

ModelSpec stage_of(const ModelSpec& whole, int stages, int stage, int chunks) {
  SPILLWAY_ASSERT(!is_stage(whole) && 0 <= stage && stage < stages && chunks >= 1);
  if (whole.has_frozen())
    throw InputError("a pipeline trains all of a model: part of " + whole.name + " is frozen",
                     "train adapters and the last layers alone without " + Setting{"pipeline"});
  const std::int64_t runs = std::int64_t{stages} * chunks;
  if (whole.layers < runs || (chunks > 1 && whole.layers % runs != 0)) {
    throw InputError(
        fmt::format("the {} layers of {} are not cut into {} stages{}", whole.layers, whole.name,
                    stages, chunks == 1 ? "" : fmt::format(" of {} equal runs each", chunks)),
        chunks == 1
            ? "a stage has a layer at least: use fewer stages"
            : "stages times chunks have to divide the layers: try fewer of one of them, or 1f1b, "
              "whose stages have one run each");
  }
  ModelSpec model = whole;
  const std::int64_t even = whole.layers / runs, more = whole.layers % runs;
  model.layers = (even + (stage < more ? 1 : 0)) * chunks;
  model.stage.whole_layers = whole.layers;
  model.stage.first_layer = even * stage + std::min<std::int64_t>(stage, more);
  model.stage.chunks = chunks;
  model.stage.stride = even * stages;
  return model;
}

ModelSpec whole_model(const ModelSpec& model) {
  if (!is_stage(model)) return model;
  ModelSpec whole = model;
  whole.layers = model.stage.whole_layers;
  whole.stage = {};
  return whole;
}

bool has_embedding(const ModelSpec& model) { return model.stage.first_layer == 0; }

bool has_head(const ModelSpec& model) {
  return !is_stage(model) || whole_layer(model, model.layers - 1) + 1 == model.stage.whole_layers;
}

bool shares_embedding(const ModelSpec& model) {
  return model.tied && has_embedding(model) != has_head(model);
}

std::int64_t whole_layer(const ModelSpec& model, std::int64_t layer) {
  if (!is_stage(model)) return layer;
  return model.stage.first_layer + layer / run_of(model) * model.stage.stride +
         layer % run_of(model);
}

std::int64_t whole_unit(const ModelSpec& model, std::int64_t unit) {
  if (!is_stage(model)) return unit;
  return unit < model.layers ? whole_layer(model, unit)
                             : unit - model.layers + model.stage.whole_layers;
}

std::int64_t unit_here(const ModelSpec& model, std::int64_t whole) {
  if (!is_stage(model)) return whole;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    if (whole_unit(model, unit) == whole && unit_elements(model, unit) > 0) return unit;
  }
  return -1;
}

bool receives_input(const ModelSpec& model, std::int64_t layer) {
  return is_stage(model) && layer % run_of(model) == 0 && whole_layer(model, layer) > 0;
}

bool sends_output(const ModelSpec& model, std::int64_t layer) {
  return is_stage(model) && (layer + 1) % run_of(model) == 0 &&
         whole_layer(model, layer) + 1 < model.stage.whole_layers;
}

}  // namespace spillway
