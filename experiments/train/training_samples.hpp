// What the model says while it trains: answers to the same prompts, again and again, by the weights
// that it has at that step.
//
// They are computed on the CPU in fp32, one training after another to the same bits
// (exec/generate), in memory that is set aside from the limit of host memory before the training is
// planned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/run/model_access.hpp"
#include "experiments/generate/speaker.hpp"

namespace spillway {

struct SampleSettings {
  std::vector<std::string> prompts;  // texts to go on from
  std::vector<std::string> chats;    // messages to answer by the chat template
  std::int64_t every = 0;            // steps; 0: before the first step and after the last only
  std::int64_t tokens = 64;          // of an answer at most
  Sampling sampling;
  std::string memory;  // that writing them may take, "200MB"; empty: chosen

  bool any() const { return !prompts.empty() || !chats.empty(); }
};

struct TrainingSample {
  bool is_chat = false;
  std::string prompt, text;
  std::int64_t tokens = 0;  // of the text
};

class TrainingSamples {
 public:
  // `tokenizer`, `chat_template`: as SpeakerRequest has them; `folder`: of the model, which may
  // have both, or empty. Throws InputError: there is no tokenizer or no template, a prompt is too
  // long.
  TrainingSamples(SampleSettings settings, const ModelSpec& model,
                  const std::filesystem::path& folder, const std::string& tokenizer,
                  const std::string& chat_template, int threads);

  // Bytes of host memory that write() takes: what the settings say or all that it has a use for, up
  // to usual_memory; never less than it can do with.
  std::uint64_t memory() const { return memory_; }

  // The prompts' answers, in the order of the settings, texts first. `stops`: asked for every
  // token, ends it; the answers are then none. Leaves no memory behind.
  std::vector<TrainingSample> write(const StateValues& weights, const std::function<bool()>& stops);

 private:
  static constexpr std::uint64_t usual_memory = std::uint64_t{1} << 30;
  std::int64_t positions() const;
  std::uint64_t chosen_memory() const;
  std::int64_t count() const { return static_cast<std::int64_t>(prompts_.size()); }

  SampleSettings settings_;
  ModelSpec model_;
  Speaker speaker_;
  std::vector<std::vector<Token>> prompts_;
  std::uint64_t memory_ = 0;
};

}  // namespace spillway
