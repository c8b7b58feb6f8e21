// A model that answers: weights of a model's folder or of a run, with adapters, a tokenizer and a
// chat template.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "exec/generate/generator.hpp"
#include "exec/io/io_choice.hpp"
#include "text/chat/chat_template.hpp"
#include "text/chat/encode_chat.hpp"
#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

struct SpeakerRequest {
  std::string model;  // a folder in Hugging Face's layout, a name in its cache, a run, or adapters
  std::string adapter;             // a folder of PEFT's; empty: none but those of `model`
  std::string tokenizer = "auto";  // auto: of the model or run; bytes; a file or folder
  std::string chat_template =
      "auto";                // auto: of the model or run; a built-in name; a file or folder
  std::uint64_t memory = 0;  // for weights, keys and values; 0: most of what is free
  int threads = 1;
  RingFactory make_ring = make_usual_ring;
};

class Speaker {
 public:
  // Reads no weights yet. Throws InputError.
  explicit Speaker(const SpeakerRequest& request);
  // Of a model whose weights are given to open(): of the request tokenizer, template and threads
  // count. `folder`: of the model, which may have the first two; or empty.
  Speaker(const SpeakerRequest& request, const ModelSpec& model,
          const std::filesystem::path& folder);
  ~Speaker();

  const ModelSpec& model() const { return model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // "llama-tiny: 3.2 MB as F32 in 1 file, with adapters from runs/a; byte-level BPE, 512 tokens".
  std::string describe() const;
  bool has_template() const { return template_ != nullptr; }

  // As documents of a training begin and go on.
  std::vector<Token> text_tokens(const std::string& text) const;
  // Up to where the assistant answers. Throws InputError: no template is known, or it refuses.
  std::vector<Token> chat_tokens(const ChatRecord& chat) const;
  // Tokens that end an answer to a text, or to a chat.
  std::vector<Token> stops(bool chat) const;

  // Reads what there is memory for. Throws InputError where there is too little of it, or where the
  // model has fewer positions.
  Decoder& open(std::int64_t sequences, std::int64_t positions);
  // With these weights, in so much memory for all.
  Decoder& open(std::int64_t sequences, std::int64_t positions, const StateValues& values,
                std::uint64_t memory);
  // Gives the memory back.
  void close();
  std::int64_t layers_in_memory() const { return weights_->layers_in_memory(); }

 private:
  void open_run(const std::filesystem::path& run);
  void open_folder(const std::string& model, const std::string& adapter);
  void open_text();

  SpeakerRequest request_;
  ModelSpec model_;
  StateValues values_;
  std::string text_;                          // of the weights
  std::filesystem::path folder_;              // of tokenizer and template
  std::string run_tokenizer_, run_template_;  // as a run was told
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<SpecialNames> names_;
  std::unique_ptr<ChatTemplate> template_;
  std::unique_ptr<ChatEncoder> encoder_;
  std::unique_ptr<UnitWeights> weights_;
  std::unique_ptr<Decoder> decoder_;
};

// The longest beginning of `text` that ends with a whole character of UTF-8, or with bytes that
// cannot become one: what can be shown of an answer that goes on.
std::size_t whole_characters(const std::string& text);

}  // namespace spillway
