// Merges adapters that anybody has trained into the model beside which they were: tensor by tensor,
// in a fixed amount of memory but for the adapters of one matrix.
#pragma once

#include <filesystem>
#include <string>

#include "exec/data/model_writer.hpp"
#include "exec/io/io_choice.hpp"

namespace spillway {

struct MergeRequest {
  std::string model;              // a folder with config.json and weights, or its name
  std::filesystem::path adapter;  // a folder of PEFT's
  std::filesystem::path out;      // a new folder
  WeightFiles files;
  RingFactory make_ring = make_usual_ring;
};

struct MergedModel {
  std::size_t files = 0;    // of weights
  std::uint64_t bytes = 0;  // of all weights
};

// The folder takes its name once all of it is written. Throws InputError naming the file and what
// of it is not supported, MachineError.
MergedModel merge_adapter(const MergeRequest& request);

}  // namespace spillway
