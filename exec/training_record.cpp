#include "exec/training_record.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "policies/model.hpp"

namespace spillway {

namespace {

using nlohmann::ordered_json;

constexpr const char* sequences_at_once = "--sequences-at-once";
constexpr const char* attention_kernels = "SPILLWAY_CUDA_ATTENTION";

// By the option that sets it, for messages.
ordered_json numbers_of(const TrainingRecord& r) {
  const OptimizerSettings& o = r.optimizer;
  return {{"--device", r.backend},
          {attention_kernels, r.attention},
          {"--model", model_to_toml(r.model)},
          {"--batch", r.workload.batch},
          {"--micro-batch", r.workload.micro_batch},
          {"--sequence", r.workload.sequence},
          {sequences_at_once, r.workload.sequences_at_once},
          {"--precision", static_cast<int>(r.workload.precision)},
          {"--gradient-bits", static_cast<int>(r.workload.gradient)},
          {"--gradient-clip", to_string(r.workload.clip)},
          {"--on-nonfinite", to_string(r.workload.on_nonfinite)},
          {"--seed", r.seed},
          {"--learning-rate", o.learning_rate},
          {"--beta1", o.beta1},
          {"--beta2", o.beta2},
          {"epsilon", o.epsilon},
          {"--weight-decay", o.weight_decay},
          {"--warmup", o.warmup_steps},
          {"--decay-steps", o.decay_steps},
          {"the size of --data in bytes", r.data_bytes},
          {"the hash of --data", fmt::format("{:016x}", r.data_hash)}};
}

// As it is given on the command line.
std::string shown(const std::string& name, const ordered_json& value) {
  if (name == "--precision") return value == static_cast<int>(Precision::bf16) ? "bf16" : "fp32";
  if (name == "--gradient-bits") {
    const auto width = static_cast<GradientWidth>(value.get<int>());
    return width == GradientWidth::automatic ? "auto"
           : width == GradientWidth::bits16  ? "16"
                                             : "32";
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::string TrainingRecord::to_json() const {
  ordered_json json;
  json["numbers"] = numbers_of(*this);
  json["data"] = ordered_json::array();
  for (const std::filesystem::path& path : data) json["data"].push_back(path.string());
  json["policy"] = policy;
  json["steps"] = steps;
  return json.dump();
}

TrainingRecord TrainingRecord::parse(const std::string& text) {
  try {
    const ordered_json json = ordered_json::parse(text);
    const ordered_json& n = json.at("numbers");
    TrainingRecord r;
    r.model = parse_model(n.at("--model"), "commit record (model)");
    r.workload.batch = n.at("--batch");
    r.workload.micro_batch = n.at("--micro-batch");
    r.workload.sequence = n.at("--sequence");
    r.workload.sequences_at_once = n.value(sequences_at_once, std::int64_t{1});
    r.backend = n.value("--device", cpu_backend);
    r.attention = n.value(attention_kernels, usual_attention);
    r.workload.precision = static_cast<Precision>(n.at("--precision").get<int>());
    r.workload.gradient = static_cast<GradientWidth>(n.at("--gradient-bits").get<int>());
    r.workload.clip = parse_gradient_clip("--gradient-clip", n.at("--gradient-clip"));
    r.workload.on_nonfinite = parse_on_nonfinite("--on-nonfinite", n.at("--on-nonfinite"));
    r.seed = n.at("--seed");
    r.optimizer.learning_rate = n.at("--learning-rate");
    r.optimizer.beta1 = n.at("--beta1");
    r.optimizer.beta2 = n.at("--beta2");
    r.optimizer.epsilon = n.at("epsilon");
    r.optimizer.weight_decay = n.at("--weight-decay");
    r.optimizer.warmup_steps = n.at("--warmup");
    r.optimizer.decay_steps = n.at("--decay-steps");
    r.data_bytes = n.at("the size of --data in bytes");
    r.data_hash = std::stoull(n.at("the hash of --data").get<std::string>(), nullptr, 16);
    for (const ordered_json& path : json.at("data")) r.data.emplace_back(path.get<std::string>());
    r.policy = json.at("policy");
    r.steps = json.at("steps");
    return r;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("a commit record that cannot be read: {}", error.what()),
                     "use the version of Spillway that wrote it");
  }
}

void require_same_numbers(const TrainingRecord& committed, const TrainingRecord& now) {
  const ordered_json before = numbers_of(committed), after = numbers_of(now);
  for (const auto& [name, value] : before.items()) {
    if (after.at(name) == value) continue;
    const bool of_model = name == "--model";
    throw InputError(
        fmt::format("{} is {}, but the training to go on with has {}", name,
                    of_model ? now.model.name : shown(name, after.at(name)),
                    of_model ? committed.model.name + " of another shape" : shown(name, value)),
        name == "--device" ? "the backends add up in other orders: go on with --device " +
                                 committed.backend + ", or start another run"
                           : "a resumed training goes on bit for bit: leave the option out, or "
                             "start another run");
  }
}

bool same_training(const std::string& a, const std::string& b) {
  try {
    return numbers_of(TrainingRecord::parse(a)) == numbers_of(TrainingRecord::parse(b));
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace spillway
