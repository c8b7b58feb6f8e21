// Stages of a pipeline as models: some layers of a whole model, which follow what other stages have
// computed.
//
// A stage of a pipeline of P stages in c chunks has c runs of consecutive layers, of which stage
// s has the s-th of each chunk; its layers are numbered from 0 on. The first run of the first stage
// begins with the embedding, the last run of the last stage ends with the head. A tied embedding is
// a unit of both of them. All other stages have these units, too, without elements.
#pragma once

#include <cstdint>

#include "policies/model/model.hpp"

namespace spillway {

// Stage `stage` of `stages`. With one chunk the first stages have a layer more where the layers do
// not go into the stages. Throws InputError where there are too few layers, chunks that are not
// equal, or frozen parts.
ModelSpec stage_of(const ModelSpec& whole, int stages, int stage, int chunks = 1);

// The model that a stage is of; a whole model as it is.
ModelSpec whole_model(const ModelSpec& model);

inline bool is_stage(const ModelSpec& model) { return model.stage.whole_layers > 0; }
bool has_embedding(const ModelSpec& model);
bool has_head(const ModelSpec& model);
// Whether both gradients of a tied embedding are summed in different stages.
bool shares_embedding(const ModelSpec& model);

// The place of a layer, or of any unit, in the whole model.
std::int64_t whole_layer(const ModelSpec& model, std::int64_t layer);
std::int64_t whole_unit(const ModelSpec& model, std::int64_t unit);
// The unit here that unit `whole` of the whole model is; -1 where it is not here.
std::int64_t unit_here(const ModelSpec& model, std::int64_t whole);

// Whether a layer's input comes from another stage; whether its output goes to one.
bool receives_input(const ModelSpec& model, std::int64_t layer);
bool sends_output(const ModelSpec& model, std::int64_t layer);

}  // namespace spillway
