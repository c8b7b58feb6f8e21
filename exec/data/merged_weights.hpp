// The weights of a model whose adapters have become part of its matrices.
#pragma once

#include "exec/data/model_writer.hpp"
#include "policies/model/model.hpp"

namespace spillway {

// Values of the units of `model`, which has adapters: those of `base`, and W + lora_scale() B A for
// each matrix W that has them, summed up over the rank in fp32 in ascending order and added once.
// `adapters` gives A and B. Holds those of one matrix at a time.
WeightValues merged_weights(const ModelSpec& model, WeightValues base, WeightValues adapters);

}  // namespace spillway
