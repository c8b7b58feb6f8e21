#include "cli/options/speaker_options.hpp"

#include <thread>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/text/output.hpp"

namespace spillway::cli {

void SpeakerOptions::add_to(CLI::App& command) {
  command
      .add_option(
          "model", request.model,
          "a folder in Hugging Face's layout (or a name in its cache), the folder of a run, which "
          "may be at work, or of a checkpoint in it, or a folder of adapters")
      ->required();
  command.add_option("--step", request.step,
                     "of a run: a step that it has kept, or one of its last two commits; default: "
                     "the newest weights");
  command.add_option("--adapter", request.adapter, "adapters beside the model: a folder of PEFT's");
  command
      .add_option("--tokenizer", request.tokenizer,
                  "auto: the model's own | bytes | a file or folder")
      ->capture_default_str();
  command
      .add_option("--chat-template", request.chat_template,
                  "auto: the model's own, or that of the run | chatml | llama3 | qwen | mistral | "
                  "alpaca | a file or folder")
      ->capture_default_str();
  command.add_flag("--parse-special", request.parse_special,
                   "names of special tokens in what is given are these tokens, not their letters");
  command.add_option("--tokens", generate.tokens, "most tokens of an answer")
      ->capture_default_str();
  command
      .add_option("--temperature", generate.sampling.temperature,
                  "of the softmax; 0: always the likeliest token")
      ->capture_default_str();
  command.add_option("--top-k", generate.sampling.top_k, "only the k likeliest tokens; 0: all")
      ->capture_default_str();
  command
      .add_option("--top-p", generate.sampling.top_p,
                  "only the likeliest tokens that have so much of the probability together")
      ->capture_default_str();
  command
      .add_option("--seed", generate.sampling.seed, "of the choice: the same seed, the same answer")
      ->capture_default_str();
  command.add_option("--host-memory", memory,
                     "for weights, keys and values; what does not fit is read again from the drive "
                     "for every token; default: most of what is free");
  command.add_option("--threads", request.threads, "threads for matrix products; default: all")
      ->check(CLI::Range(1, 1024));
  request.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  io.add_to(command);
}

SpeakerRequest SpeakerOptions::chosen() const {
  SpeakerRequest result = request;
  if (!memory.empty()) result.memory = parse_bytes(memory);
  result.make_ring = io.choose().make_ring;
  result.note = [](const std::string& text) { print_error(text + "\n"); };
  if (generate.tokens < 1)
    throw InputError(Setting{"tokens", std::to_string(generate.tokens)} + ": an answer has tokens",
                     "1 or more");
  generate.sampling.check();
  return result;
}

}  // namespace spillway::cli
