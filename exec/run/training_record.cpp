#include "exec/run/training_record.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "policies/model/model.hpp"
#include "policies/model/stages.hpp"
#include "policies/workload/json_number.hpp"
#include "policies/workload/workload_fields.hpp"
#include "policies/workload/workload_json.hpp"

namespace spillway {

namespace {

using nlohmann::ordered_json;

// Raised when a key gets another meaning or name. Records of before there were formats have none.
constexpr int format = 2;
constexpr const char* unreadable = "a commit record that cannot be read";
constexpr const char* other_version = "use the version of Spillway that wrote it";

// What decides the numbers, by keys that never change: those of settings, where one decides it.
ordered_json numbers_of(const TrainingRecord& r) {
  const OptimizerSettings& o = r.optimizer;
  ordered_json numbers = {{"device", r.backend},
                          {"attention", r.attention},
                          {"gelu_backward", r.gelu_backward},
                          {"tune_matmul", r.tunes_products ? "on" : "off"},
                          {"model", model_to_toml(r.model)}};
  numbers.update(workload_json(r.workload));
  numbers.update({{"seed", r.seed},
                  {"learning_rate", o.learning_rate},
                  {"beta1", o.beta1},
                  {"beta2", o.beta2},
                  {"epsilon", o.epsilon},
                  {"weight_decay", o.weight_decay},
                  {"warmup", o.warmup_steps},
                  {"learning_rate_schedule", to_string(o.shape)},
                  {"decay_steps", o.decay_steps},
                  {"final_learning_rate", o.final_learning_rate},
                  {"decay_share", o.decay_share},
                  {"data_rules", r.data_rules},
                  {"data_bytes", r.data_bytes},
                  {"data_hash", fmt::format("{:016x}", r.data_hash)},
                  {"initial_weights", fmt::format("{:016x}", r.initial_hash)},
                  {"frozen_weights", fmt::format("{:016x}", r.frozen_hash)},
                  {"initial_data", fmt::format("{:016x}", r.initial_data_hash)}});
  return numbers;
}

// What a key of these stands for, for people: most are the settings that decide them.
Message name_of(const std::string& key) {
  if (key == "attention") return "SPILLWAY_CUDA_ATTENTION";
  if (key == "epsilon") return "epsilon";
  if (key == "data_rules")
    return "what " + Setting{"tokenizer"} + ", " + Setting{"pack"} + ", " +
           Setting{"long_documents"} + " and " + Setting{"validation"} + " come to";
  if (key == "data_bytes") return "the size in bytes of " + Setting{"data"};
  if (key == "data_hash") return "the hash of " + Setting{"data"};
  if (key == "frozen_weights") return "the hash of the frozen weights";
  if (key == "gradient_meshes")
    return "how the policy adds up the gradients of ranks, as " + Setting{key} + " says it,";
  if (key == "initial_weights" || key == "initial_data")
    return "the hash of the weights that it began with";
  return Setting{key};
}

// From 16 hexadecimal digits.
std::uint64_t hash_of(const std::string& key, const std::string& digits) {
  std::uint64_t hash = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, hash, 16);
  if (error == std::errc() && stop == end) return hash;
  throw InputError(fmt::format("{}: {} is not a number", unreadable, key), other_version);
}

std::string shown(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void require_format(const ordered_json& json) {
  const int found = json.contains("format") ? whole_number<int>(json, "format", unreadable) : 1;
  if (found == format) return;
  throw InputError(
      fmt::format("this training was committed by {} version of Spillway: its record is of format "
                  "{}, and this version reads format {}",
                  found < format ? "an earlier" : "a later", found, format),
      "go on with it by the version that began it; its weights (model.safetensors) can be used by "
      "any");
}

}  // namespace

ModelSpec TrainingRecord::own_model() const {
  return workload.pipeline > 1 ? stage_of(model, static_cast<int>(workload.pipeline), rank, chunks)
                               : model;
}

std::string TrainingRecord::to_json() const {
  ordered_json json = {{"format", format}};
  json["numbers"] = numbers_of(*this);
  json["data"] = ordered_json::array();
  for (const std::filesystem::path& path : data) json["data"].push_back(path.string());
  if (!initial_folder.empty()) json["initial_folder"] = initial_folder.string();
  json["policy"] = policy;
  if (policy_origin)
    json["policy_origin"] = {{"kind", policy_origin->kind},
                             {"from", policy_origin->from},
                             {"hash", policy_origin->hash}};
  json["steps"] = steps;
  if (!left_out.empty()) json["left_out"] = left_out;
  if (!algorithms.empty()) json["algorithms"] = algorithms;
  if (workload.processes() > 1) json["rank"] = rank;
  if (chunks > 1) json["chunks"] = chunks;
  return json.dump();
}

TrainingRecord TrainingRecord::parse(const std::string& text) {
  const std::string place = unreadable;
  try {
    if (nested_deeper(text, most_nesting))
      throw InputError("a commit record whose training is nested too deeply",
                       "the file is damaged: restore it from a backup");
    const ordered_json json = ordered_json::parse(text);
    require_format(json);
    const ordered_json& n = json.at("numbers");
    const auto count = [&](const char* key) { return whole_number<std::int64_t>(n, key, place); };
    TrainingRecord r;
    r.model = parse_model(n.at("model"), "commit record (model)");
    r.workload = workload_of_json(n, place, other_version);
    r.backend = n.at("device");
    r.attention = n.at("attention");
    r.gelu_backward = n.at("gelu_backward");
    r.tunes_products = n.at("tune_matmul") == "on";
    r.algorithms = json.value("algorithms", "");
    r.seed = whole_number<std::uint64_t>(n, "seed", place);
    r.optimizer.learning_rate = n.at("learning_rate");
    r.optimizer.beta1 = n.at("beta1");
    r.optimizer.beta2 = n.at("beta2");
    r.optimizer.epsilon = n.at("epsilon");
    r.optimizer.weight_decay = n.at("weight_decay");
    r.optimizer.warmup_steps = count("warmup");
    r.optimizer.decay_steps = count("decay_steps");
    // Records of before there were several schedules: a cosine to a tenth.
    r.optimizer.shape = parse_learning_rate_shape(
        n.value("learning_rate_schedule", r.optimizer.decay_steps > 0 ? "cosine" : "constant"));
    r.optimizer.final_learning_rate = n.value("final_learning_rate", 0.1);
    r.optimizer.decay_share = n.value("decay_share", 0.2);
    r.data_rules = n.value("data_rules", "");  // not in older records
    r.data_bytes = whole_number<std::uint64_t>(n, "data_bytes", place);
    r.data_hash = hash_of("data_hash", n.at("data_hash"));
    // Not in records of before there were such trainings.
    r.initial_hash = hash_of("initial_weights", n.value("initial_weights", "0"));
    r.frozen_hash = hash_of("frozen_weights", n.value("frozen_weights", "0"));
    r.initial_data_hash = hash_of("initial_data", n.value("initial_data", "0"));
    r.initial_folder = json.value("initial_folder", "");
    for (const ordered_json& path : json.at("data")) r.data.emplace_back(path.get<std::string>());
    r.policy = json.at("policy");
    if (json.contains("policy_origin")) {
      const ordered_json& origin = json.at("policy_origin");
      r.policy_origin = PolicyOrigin{origin.at("kind"), origin.at("from"), origin.at("hash")};
    }
    r.steps = whole_number<std::int64_t>(json, "steps", place);
    for (const ordered_json& batch : json.value("left_out", ordered_json::array()))
      r.left_out.push_back(batch.get<std::int64_t>());
    r.rank = json.contains("rank") ? whole_number<int>(json, "rank", place) : 0;
    if (r.rank < 0 || r.rank >= r.workload.processes())
      throw InputError(fmt::format("{}: there is no rank {}", unreadable, r.rank), other_version);
    r.chunks = json.contains("chunks") ? whole_number<int>(json, "chunks", place) : 1;
    r.own_model();  // or there is no such stage
    return r;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: {}", unreadable, error.what()), other_version);
  }
}

void require_same_numbers(const TrainingRecord& committed, const TrainingRecord& now) {
  ordered_json before = numbers_of(committed), after = numbers_of(now);
  // Only in groups of micro-batches, one for each, do ranks show in the numbers.
  for (ordered_json* numbers : {&before, &after}) {
    numbers->erase("ranks");
    if (!numbers->contains("gradient_groups")) (*numbers)["gradient_groups"] = 1;
  }
  // What ranks of before there was the key have done is what `all` says, with their micro-batches.
  for (const auto& [record, numbers] : {std::pair{&committed, &before}, std::pair{&now, &after}}) {
    Workload workload = record->workload;
    workload.group_meshes = canonical_meshes(workload);
    (*numbers)["gradient_meshes"] = workload_texts(workload).at("gradient_meshes");
  }
  for (const auto& [key, value] : before.items()) {
    if (after.at(key) == value) continue;
    const bool of_model = key == "model";
    throw InputError(
        name_of(key) +
            fmt::format(" is {}, but the training to go on with has {}",
                        of_model ? now.model.name : shown(after.at(key)),
                        of_model ? committed.model.name + " of another shape" : shown(value)),
        key == "gradient_meshes" ? Message("a resumed training goes on bit for bit: use policy " +
                                           committed.policy + ", or another one that adds up alike")
        : key == "device"        ? "the backends add up in other orders: go on with " +
                                Setting{"device", committed.backend} + ", or start another run"
                          : Message("a resumed training goes on bit for bit: leave the option out, "
                                    "or start another run"));
  }
}

}  // namespace spillway
