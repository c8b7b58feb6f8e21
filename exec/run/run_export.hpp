// A run's weights as a folder that transformers loads: from its committed state, from a step that
// it has kept, or, where its state is gone, from the weights that it wrote at its end. The run may
// be at work (exec/run/export_lock.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/directory.hpp"
#include "exec/data/model_writer.hpp"
#include "exec/io/io_choice.hpp"
#include "exec/run/frozen_origin.hpp"
#include "exec/run/saved_run.hpp"
#include "exec/store/training_store.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/model.hpp"

namespace spillway {

// Files beside config.json that go with a model from Hugging Face: what its tokenizer and its text
// generation need.
const std::vector<std::string>& tokenizer_files();

// Those of them, and config.json, that a folder has. Throws InputError for one that is a link out
// of the folder, other than into Hugging Face's cache, or too long to be one.
std::vector<std::string> model_files_of(const std::filesystem::path& folder);

// Puts those of a tokenizer, a file or folder, into `to`: in the place of all that are there where
// it has a tokenizer, beside them where it has a chat template or the like alone.
void write_tokenizer_files(const std::filesystem::path& from, const Directory& to);
// All but generation_config.json.
void remove_tokenizer_files(const Directory& to);

// Puts config.json, with weights of `type`, and the tokenizer's files of the folder `from` (none:
// there are none) into `to`. The config.json of `from` is taken where it is of this model, else one
// is made, with `ends` of the tokenizer where they are known.
void write_model_files(const std::optional<std::filesystem::path>& from, const Directory& to,
                       const ModelSpec& model, ElementType type,
                       const std::optional<TextEnds>& ends = {});

// Where a folder's files beside the weights are from.
struct ModelFilesFrom {
  std::optional<std::filesystem::path> model;  // as write_model_files() has it
  // Adapters, whose tokenizer and chat template go before the model's; none: there are none.
  std::optional<std::filesystem::path> adapters = {};
};
// Writes the new folder `out`: the weights, with config.json and the tokenizer's files as above.
// Returns the number of files of weights. Throws InputError (the name is taken), MachineError.
std::size_t write_model_folder(const std::filesystem::path& out, const ModelFilesFrom& from,
                               const ModelSpec& model, const WeightValues& values,
                               const WeightFiles& files);
// Of all weights of a model, without adapters, in files of such elements.
std::uint64_t bytes_of_weights(const ModelSpec& model, ElementType type);
// Puts adapter_config.json of a model with adapters, and the tokenizer's files of the folder
// `from`, into `to`. `base`: the folder of the model that they are beside; empty: it was drawn from
// a seed. PEFT is told its name where it is in Hugging Face's cache, else its absolute path.
void write_adapter_files(const std::optional<std::filesystem::path>& from, const Directory& to,
                         const ModelSpec& model, const std::filesystem::path& base);

// The commit of that step of a run, none: the newest one. Throws InputError: nothing is committed
// (any more), or no such step, and which steps there are.
ResumePoint find_committed(const Directory& run, const SavedRun& saved,
                           const std::optional<std::int64_t>& step);

struct RunExport {
  std::string run;  // its folder
  // One that the run has kept, or one of its last two commits; none: the newest commit.
  std::optional<std::int64_t> step;
  std::filesystem::path out;  // a new folder; empty: RUN/model-step-N
  // The folder of the model that is frozen in the run, or its name, where it was moved since.
  std::string base;
  // Of a run that trains adapters: the whole model with these in its matrices, not the adapters as
  // a folder of PEFT's.
  bool merge = false;
  // How they are written. What its progress throws ends the export, and nothing of it is left.
  WeightFiles files;
  RingFactory make_ring = make_usual_ring;
  // Of frozen weights that are read to see whether they are the run's; may be empty, and throw.
  ReadingProgress checking;
  std::function<void(const std::string&)> note;  // what people should know; may be empty
};

struct ExportedRun {
  std::filesystem::path folder;
  std::optional<std::int64_t> step;  // none: the weights of the run's end
  std::size_t files = 0;             // of weights
  std::uint64_t bytes = 0;           // of all weights
};

// The folder takes its name once all of it is written. Throws InputError (no run, nothing
// committed, no such step, the name is taken), MachineError (no room, a chunk does not match its
// checksum).
ExportedRun export_run(const RunExport& request);

}  // namespace spillway
