// The model that is to speak, by its name: a folder in Hugging Face's layout, a run with what it
// has written or committed, or adapters beside their model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "exec/io/io_choice.hpp"
#include "exec/run/export_lock.hpp"
#include "exec/run/model_access.hpp"
#include "exec/store/committed_state.hpp"
#include "policies/model/model.hpp"

namespace spillway {

struct SpeakerRequest {
  // A folder in Hugging Face's layout, a name in its cache, a run or one of the folders of weights
  // in it, or adapters.
  std::string model;
  std::optional<std::int64_t> step;  // of a run; none: the newest weights
  std::string adapter;               // a folder of PEFT's; empty: none but those of `model`
  std::string tokenizer = "auto";    // auto: of the model or run; bytes; a file or folder
  // auto: of the model or run; a built-in name; a file or folder
  std::string chat_template = "auto";
  bool parse_special = false;  // names of special tokens in prompts and messages are the tokens
  std::uint64_t memory = 0;    // for weights, keys and values; 0: most of what is free
  int threads = 1;
  // It speaks for as long as somebody likes: no run at work may have to wait for its end.
  bool talks = false;
  RingFactory make_ring = make_usual_ring;
  std::function<void(const std::string&)> note = {};  // what people should know; may be empty
};

// Weights that lie in the store of a run. A run at work does not overwrite them before it is told
// that they are read (exec/run/export_lock.hpp).
struct StateInStore {
  std::shared_ptr<CommittedState> state;
  std::optional<ExportLock> lock;
};

struct SpokenModel {
  ModelSpec model;
  StateValues values;
  std::string text;                         // of the weights: "step 120, committed"
  std::filesystem::path folder;             // of tokenizer and template
  std::filesystem::path run;                // that the weights are of; empty: of none
  std::string run_tokenizer, run_template;  // as the run was told; empty: it was not
  std::optional<StateInStore> in_store;     // none: the weights are in files
};

// Reads no weights yet. Throws InputError, MachineError.
SpokenModel open_spoken_model(const SpeakerRequest& request);

}  // namespace spillway
