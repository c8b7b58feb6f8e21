#include "experiments/train/train_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/run/cuda_module.hpp"
#include "exec/run/kept_checkpoints.hpp"
#include "experiments/plan/candidates.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

void check_optimizer(const OptimizerSettings& o) {
  const auto require = [](bool holds, const char* setting, auto value, const Message& range) {
    if (!holds)
      throw InputError(Setting{setting, fmt::format("{}", value)} + ": " + range,
                       "leave it out for the default");
  };
  // Written so that a NaN does not pass.
  require(o.learning_rate >= 0 && std::isfinite(o.learning_rate), "learning_rate", o.learning_rate,
          "not a number of at least 0");
  require(o.weight_decay >= 0 && std::isfinite(o.weight_decay), "weight_decay", o.weight_decay,
          "not a number of at least 0");
  require(o.beta1 >= 0 && o.beta1 < 1, "beta1", o.beta1, "not at least 0 and below 1");
  require(o.beta2 >= 0 && o.beta2 < 1, "beta2", o.beta2, "not at least 0 and below 1");
  require(o.warmup_steps >= 0, "warmup", o.warmup_steps, "not a number of steps");
  require(o.decay_steps >= 0, "decay_steps", o.decay_steps, "not a number of steps");
  require(o.decay_steps == 0 || o.shape != LearningRateShape::constant, "decay_steps",
          o.decay_steps, "the learning rate is constant");
  require(o.final_learning_rate >= 0 && o.final_learning_rate <= 1, "final_learning_rate",
          o.final_learning_rate, "not a share from 0 to 1 of the learning rate");
  require(o.decay_share > 0 && o.decay_share <= 1, "decay_share", o.decay_share,
          "not above 0 and at most 1");
  require(o.decay_steps == 0 || o.decay_steps > o.warmup_steps, "decay_steps", o.decay_steps,
          "not after the end of " + Setting{"warmup"} + ", so there is nothing to decay");
}

std::string text_of(std::int64_t number) { return std::to_string(number); }

void check_keep(const TrainSettings& settings) {
  if (settings.keep < 0)
    throw InputError(Setting{"keep", text_of(settings.keep)} + ": not a number of checkpoints");
  if (settings.keep_every < 1)
    throw InputError(Setting{"keep_every", text_of(settings.keep_every)} +
                     ": not a number of steps");
  if (settings.keep == 0) return;
  if (!parse_durability(settings.durability).on())
    throw InputError(
        Setting{"keep"} + " writes what is committed, and without durability nothing is",
        "leave " + Setting{"durability"} + " or " + Setting{"keep"} + " out");
  if (settings.keep_every > settings.steps)
    throw InputError(
        Setting{"keep_every", text_of(settings.keep_every)} +
            fmt::format(": the training has {} steps, so that none would be kept", settings.steps),
        "keep every tenth of it: " +
            Setting{"keep_every", text_of(std::max<std::int64_t>(1, settings.steps / 10))});
}

void check_watches(const TrainSettings& settings) {
  const bool evaluates = !settings.data.validation.empty();
  const auto needs = [&](bool given, const char* key) {
    if (!given) return;
    if (!evaluates)
      throw InputError(Setting{key} + " goes by evaluations, and there are none",
                       "hold data out: " + Setting{"validation", "1%"});
  };
  needs(settings.keep_best, "keep_best");
  needs(settings.early_stop != 0, "early_stop");
  if (settings.early_stop < 0)
    throw InputError(Setting{"early_stop", std::to_string(settings.early_stop)} +
                     ": not a number of evaluations");
  if (settings.early_stop > 0 && settings.evaluate_every == 0)
    throw InputError(Setting{"early_stop"} + " needs evaluations while it trains",
                     "say how often: " + Setting{"evaluate_every", text_of(std::max<std::int64_t>(
                                                                       1, settings.steps / 10))});
  if (!(settings.early_stop_margin >= 0))
    throw InputError(Setting{"early_stop_margin", fmt::format("{}", settings.early_stop_margin)} +
                     ": not a loss of at least 0");
  if (!(settings.spike_guard >= 0))
    throw InputError(Setting{"spike_guard", fmt::format("{}", settings.spike_guard)} +
                         ": not a number of standard deviations",
                     "e.g. " + Setting{"spike_guard", "6"});
  if (settings.spike_guard > 0 && !parse_durability(settings.durability).on())
    throw InputError(Setting{"spike_guard"} +
                         " goes back to the last commit, and without durability there is none",
                     "leave " + Setting{"durability"} + " out");
}

void check_samples(const SampleSettings& samples) {
  const auto require = [](bool holds, const char* key, auto value, const char* range) {
    if (!holds) throw InputError(Setting{key, fmt::format("{}", value)} + ": " + range);
  };
  require(samples.every >= 0, "sample_every", samples.every, "not a number of steps");
  constexpr std::int64_t most = 65536;
  require(samples.tokens >= 1 && samples.tokens <= most, "sample_tokens", samples.tokens,
          "not from 1 to 65536");
  const Sampling& s = samples.sampling;
  require(s.temperature >= 0 && std::isfinite(s.temperature), "sample_temperature", s.temperature,
          "not a number of at least 0");
  require(s.top_k >= 0, "sample_top_k", s.top_k, "not a number of at least 0");
  require(s.top_p > 0 && s.top_p <= 1, "sample_top_p", s.top_p, "not above 0 and at most 1");
  for (const auto& [key, texts] :
       {std::pair{"sample_prompt", samples.prompts}, std::pair{"sample_chat", samples.chats}}) {
    constexpr std::size_t longest = 65536;
    for (const std::string& text : texts)
      require(!text.empty() && text.size() <= longest, key, text.substr(0, 40),
              "not a text of 1 to 65536 bytes");
  }
}

}  // namespace

void check_settings(const TrainSettings& settings) {
  for (const auto& [key, number] : {std::pair{"evaluate_every", settings.evaluate_every},
                                    std::pair{"evaluate_batches", settings.evaluate_batches}}) {
    if (number < 0)
      throw InputError(Setting{key, std::to_string(number)} + ": not a number of at least 0");
    if (number > 0 && settings.data.validation.empty())
      throw InputError(Setting{key} + " needs data that is held out of training",
                       "add " + Setting{"validation", "1%"});
  }
  if (settings.steps < 1)
    throw InputError(Setting{"steps", std::to_string(settings.steps)} + ": not a positive number",
                     "optimizer steps, e.g. " + Setting{"steps", "100"});
  check_optimizer(settings.optimizer);
  if (const std::int64_t warmup = settings.optimizer.warmup_steps; warmup > settings.steps)
    throw InputError(
        Setting{"warmup", std::to_string(warmup)} +
            fmt::format(": the training has {} step{}, and would never get to ", settings.steps,
                        settings.steps == 1 ? "" : "s") +
            Setting{"learning_rate"},
        "give a share of all steps, " + Setting{"warmup", "3%"} + ", or more " + Setting{"steps"});
  check_keep(settings);
  check_watches(settings);
  check_samples(settings.samples);
}

void refuse_idle_settings(const GivenSettings& given, const TrainSettings& settings,
                          const ModelSpec& model) {
  const auto named = [&](const char* key) { return Setting{key, given.at(key).back()}; };
  if (given.contains("keep_every") && settings.keep == 0)
    throw InputError(named("keep_every") + ": no checkpoint is kept",
                     "say how many: " + Setting{"keep", "3"});
  if (given.contains("early_stop_margin") && settings.early_stop == 0)
    throw InputError(named("early_stop_margin") + ": nothing ends the training early",
                     "say after how many evaluations: " + Setting{"early_stop", "3"});
  for (const char* key : {"sample_every", "sample_tokens", "sample_temperature", "sample_top_k",
                          "sample_top_p", "sample_memory", "sample_seed"}) {
    if (given.contains(key) && !settings.samples.any())
      throw InputError(named(key) + ": there is no prompt to answer",
                       "give one: " + Setting{"sample_prompt", "Once upon a time"} + " or " +
                           Setting{"sample_chat", "Hello!"});
  }
  const OptimizerSettings& o = settings.optimizer;
  if (given.contains("decay_share") && o.shape != LearningRateShape::wsd)
    throw InputError(named("decay_share") + ": the learning rate does not fall that way",
                     "add " + Setting{"learning_rate_schedule", "wsd"} + ", or leave it out");
  const bool decays = o.shape != LearningRateShape::constant || o.decay_steps > 0;
  if (given.contains("final_learning_rate") && !decays)
    throw InputError(named("final_learning_rate") + ": the learning rate does not fall",
                     "add " + Setting{"learning_rate_schedule", "cosine"} + ", or leave it out");
  if (given.contains("frozen_weights") && !model.has_frozen())
    throw InputError(named("frozen_weights") + ": all of the model is trained",
                     "leave it out, or freeze a part: " + Setting{"lora", "rank=16"} + " or " +
                         Setting{"train_layers", "4"});
}

DriveFolders ssd_directories(const SsdTexts& texts) {
  DriveFolders drives;
  std::vector<fs::path>& directories = drives.all;
  for (int set = 0; set < most_drive_sets; ++set) {
    const std::string& text = texts[static_cast<std::size_t>(set)];
    if (text.empty()) continue;
    const Setting setting{drive_set_name(set), text};
    const std::size_t before = directories.size();
    std::istringstream stream(text);
    for (std::string item; std::getline(stream, item, ',');) {
      if (!item.empty()) directories.emplace_back(item);
    }
    if (directories.size() == before)
      throw InputError(setting + ": names no directory", Setting{drive_set_name(set), "DIR[,DIR]"});
    if (static_cast<int>(drives.sets.size()) < set)
      throw InputError(setting + ": names a set of drives after one that has no directories",
                       "name those of " + Setting{drive_set_name(set - 1), "DIR[,DIR]"} + ", too");
    drives.sets.push_back(static_cast<std::uint32_t>(directories.size() - before));
  }
  if (drives.sets.size() == 1) drives.sets.clear();
  for (const fs::path& directory : directories) {
    std::error_code ignored;
    const auto same = [&](const fs::path& other) {
      return fs::equivalent(directory, other, ignored);
    };
    if (std::count_if(directories.begin(), directories.end(), same) > 1) {
      throw InputError(Setting{"ssd", directory.string()} + ": the directory is named twice",
                       "name each drive's directory once");
    }
    if (fs::is_directory(directory, ignored)) continue;
    throw InputError(Setting{"ssd", directory.string()} + ": there is no such directory",
                     "create it, or check that the drive is mounted");
  }
  return drives;
}

void take_drive_sets(Machine& machine, const DriveFolders& drives,
                     const std::function<void(const Message&)>& note) {
  const auto named = static_cast<int>(drives.set_count());
  const int known = std::max(1, machine.drive_sets());
  if (named > known)
    throw InputError(
        ssd_settings(drives) + Message(fmt::format(": {} sets of drives, and machine {} has {}",
                                                   named, machine.name, known)),
        "measure them all (`spillway calibrate` with the same), or describe them: ssd2.count, "
        "ssd2.capacity, ssd2.read and ssd2.write");
  if (named < known && note)
    note(Message(fmt::format(
        "note: machine {} has {} sets of drives, of which {} is named: the others are left out",
        machine.name, known, named)));
  for (int set = named; set < known; ++set) machine.drives(set) = {};
}

SsdTexts ssd_texts(const DriveFolders& drives) {
  SsdTexts texts;
  for (std::size_t set = 0; set < drives.set_count(); ++set) {
    std::vector<std::string> names;
    for (const fs::path& one : drives.of_set(set)) names.push_back(one.string());
    texts[set] = fmt::format("{}", fmt::join(names, ","));
  }
  return texts;
}

Message ssd_settings(const DriveFolders& drives) {
  Message text;
  const SsdTexts texts = ssd_texts(drives);
  for (std::size_t set = 0; set < drives.set_count(); ++set) {
    if (set > 0) text += " ";
    text += Setting{drive_set_name(static_cast<int>(set)), texts[set]};
  }
  return text;
}

void check_backend(const Problem& problem, bool cuda) {
  const std::int64_t groups = problem.workload.gradient_groups;
  if (cuda && groups > 1 && problem.workload.ranks == 1)
    throw InputError(Setting{"gradient_groups", std::to_string(groups)} +
                         ": only the CPU backend sums gradients in groups",
                     "leave it out, or use " + Setting{"device", "cpu"});
  if (cuda) return;
  if (problem.workload.sequences_at_once != 1) {
    throw InputError(
        Setting{"sequences_at_once", std::to_string(problem.workload.sequences_at_once)} +
            ": the CPU backend computes one at a time",
        "leave it out");
  }
}

std::string attention_to_train_with(const std::optional<ResumePoint>& point) {
  const std::string wanted = cuda_attention();
  if (!point || std::getenv("SPILLWAY_CUDA_ATTENTION") != nullptr) return wanted;
  return TrainingRecord::parse(point->record.identity.training).attention;
}

void require_room(const ModelSpec& model, const fs::path& folder, const TrainSettings& settings) {
  // One more than are kept, for the oldest goes last; what is there already is not written anew.
  const auto there = static_cast<std::int64_t>(kept_steps(folder).size());
  const std::int64_t kept =
      settings.keep == 0 ? 0 : std::max<std::int64_t>(1, settings.keep + 1 - there);
  // The best is replaced once another is written.
  const std::int64_t best = settings.keep_best ? 2 : 0;
  const std::int64_t copies = kept + best + (settings.no_export ? 0 : 1);
  std::error_code error;
  const std::uintmax_t available = fs::space(folder, error).available;
  const auto each = static_cast<std::uintmax_t>(model.has_adapters() ? model.trained_parameters()
                                                                     : model.parameters()) *
                    sizeof(float);
  if (error ||
      static_cast<double>(copies) * static_cast<double>(each) <= static_cast<double>(available))
    return;
  const auto text = [](double bytes) { return format_bytes(bytes); };
  throw MachineError(
      fmt::format("the trained weights need {}{}, there is {} in {}",
                  text(static_cast<double>(each) * static_cast<double>(copies)),
                  kept == 0 ? ""
                            : fmt::format(", {} with each checkpoint and one to spare",
                                          text(static_cast<double>(each))),
                  text(static_cast<double>(available)), folder.string()),
      "free space there, name another " + Setting{"run"} +
          (kept == 0 ? ", or add " + Setting{"no_export"}
                     : ", or give a smaller " + Setting{"keep"}));
}

}  // namespace spillway
