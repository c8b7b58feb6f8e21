#include "experiments/train/train_weights.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/errors.hpp"
#include "base/new_file.hpp"
#include "base/text.hpp"
#include "exec/run/run_export.hpp"
#include "exec/run/training_record.hpp"
#include "experiments/train/training_data.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/model_folder.hpp"
#include "text/chat/encode_chat.hpp"

namespace spillway {

namespace {

// Where the frozen weights of a run that goes on from a commit are; nothing: drawn from the seed.
std::optional<std::filesystem::path> frozen_folder(const TrainingRecord& record,
                                                   const std::string& frozen_from) {
  if (record.initial_folder.empty()) return std::nullopt;
  if (!frozen_from.empty()) {
    if (const auto found = find_model_folder(frozen_from)) return found->path;
    throw InputError(Setting{"model", frozen_from} + ": there is no such folder",
                     "name the folder where the frozen weights of the run are, or leave it out");
  }
  if (SafetensorsFolder::has_weights(record.initial_folder)) return record.initial_folder;
  throw InputError(
      "the frozen weights of the run are not in " + record.initial_folder.string() + " any more",
      "commits hold what is trained alone: name the folder where they are now: " +
          Setting{"model", "DIR"});
}

// What ends a text, and a turn of chats by a template that is named. None: no tokenizer is known.
std::optional<TextEnds> text_ends(const DataSettings& data, const std::filesystem::path& folder) {
  if (!folder.empty() && data.chat_template == "auto") return std::nullopt;  // the model's own
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(data.tokenizer, folder);
  if (!tokenizer || data.tokenizer == "bytes") return std::nullopt;
  const SpecialNames names(*tokenizer);
  TextEnds ends;
  ends.begin = tokenizer->begin_of_text();
  std::vector<Token> stops = stop_tokens(*tokenizer, names, nullptr);
  try {
    if (data.chat_template != "auto")
      stops = stop_tokens(*tokenizer, names,
                          make_chat_template({.name = data.chat_template}, names).get());
  } catch (const Error&) {
    // A model's own template, and no chats: it may never have been rendered here.
  }
  ends.ends.assign(stops.begin(), stops.end());
  return ends;
}

void write_text_file(const Directory& to, const std::string& name, const std::string& text) {
  to.remove(name);
  NewFile file({to, name});
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

// The tokens by which transformers ends an answer, of a model that came with other ones: it has
// learned to end turns by a template that it did not come with.
void write_ends(const Directory& to, const std::filesystem::path& model, const TextEnds& ends) {
  using nlohmann::ordered_json;
  constexpr std::uint64_t longest = std::uint64_t{16} << 20;
  constexpr const char *file = "generation_config.json", *key = "eos_token_id";
  const auto object = [](const std::string& text) {
    if (nested_deeper(text, most_nesting)) return ordered_json(ordered_json::object());
    const ordered_json json = ordered_json::parse(text, nullptr, false);
    return json.is_object() ? json : ordered_json::object();
  };
  ordered_json config = object(to.read(file, longest).value_or(""));
  const ordered_json known =
      (config.contains(key) ? config : object(read_file(model / hugging_face_config_file, longest)))
          .value(key, ordered_json());
  std::vector<std::int64_t> all;
  for (const ordered_json& one : known.is_array() ? known : ordered_json::array({known}))
    if (one.is_number_integer()) all.push_back(one);
  const std::size_t before = all.size();
  for (const std::int64_t end : ends.ends)
    if (std::find(all.begin(), all.end(), end) == all.end()) all.push_back(end);
  if (all.size() == before) return;
  config[key] = all;
  write_text_file(to, file, config.dump(2) + "\n");
}

}  // namespace

InitialWeights open_initial_weights(const TrainSettings& settings,
                                    const std::optional<ResumePoint>& point, const ModelSpec& model,
                                    const RingFactory& make_ring, const std::string& frozen_from) {
  InitialWeights initial;
  const auto open = [&](const std::filesystem::path& folder, CheckpointPart part) {
    return std::make_shared<Checkpoint>(folder, model, make_ring, part);
  };
  bool from_seed = settings.random_weights;
  if (point) {
    const TrainingRecord record = TrainingRecord::parse(point->record.identity.training);
    // Before the first step a commit has no state: it begins again as it did.
    if (point->record.version > 0) {
      if (!model.has_frozen()) return initial;
      initial.folder = frozen_folder(record, frozen_from);
      if (initial.folder) initial.values = open(*initial.folder, CheckpointPart::model);
      return initial;
    }
    from_seed = record.initial_folder.empty();
    if (!from_seed && model.has_frozen()) initial.folder = frozen_folder(record, frozen_from);
    if (!from_seed && !initial.folder) initial.folder = record.initial_folder;
  } else if (const auto found = find_model_folder(settings.problem.model)) {
    initial.folder = found->path;
  }
  // What cannot go with the run is refused before anything is reserved.
  if (initial.folder) model_files_of(*initial.folder);
  if (initial.folder && !from_seed) initial.values = open(*initial.folder, CheckpointPart::model);
  if (!settings.problem.adapter.empty())
    initial.adapter = open(settings.problem.adapter, CheckpointPart::adapter);
  return initial;
}

void write_files_of_run(const InitialWeights& weights, const TrainSettings& settings,
                        const ModelSpec& model, const std::filesystem::path& base,
                        const Directory& to) {
  const DataSettings& data = settings.data;
  const std::optional<TextEnds> ends = text_ends(data, weights.folder.value_or(""));
  if (model.has_adapters()) {
    write_adapter_files(weights.folder, to, model, base);
  } else if (has_hugging_face_architecture(model)) {
    write_model_files(weights.folder, to, model, ElementType::f32, ends);
  }
  if (data.tokenizer == "bytes") remove_tokenizer_files(to);
  if (data.tokenizer != "auto" && data.tokenizer != "bytes")
    write_tokenizer_files(data.tokenizer, to);
  if (data.chat_template == "auto") return;
  write_text_file(to, chat_template_file, chat_template_text(data.chat_template));
  if (ends && weights.folder) write_ends(to, *weights.folder, *ends);
}

}  // namespace spillway
