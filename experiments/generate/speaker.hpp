// A model that answers: weights of a model's folder or of a run, with adapters, a tokenizer and a
// chat template.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "exec/generate/generator.hpp"
#include "experiments/generate/spoken_model.hpp"
#include "text/chat/chat_template.hpp"
#include "text/chat/encode_chat.hpp"
#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

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
  const std::string& weights() const { return text_; }  // "step 120, committed"
  bool has_template() const { return template_ != nullptr; }

  // As documents of a training begin and go on.
  std::vector<Token> text_tokens(const std::string& text) const;
  // Up to where the assistant answers. Throws InputError: no template is known, or it refuses.
  std::vector<Token> chat_tokens(const ChatRecord& chat) const;
  // Tokens that end an answer to a text, or to a chat.
  std::vector<Token> stops(bool chat) const;

  // Reads what there is memory for. Throws FitError where there is too little of it, InputError
  // where the model has fewer positions. Weights in the store of a run are let go once all of them
  // are in memory: call it once.
  Decoder& open(std::int64_t sequences, std::int64_t positions);
  // With these weights, in so much memory for all.
  Decoder& open(std::int64_t sequences, std::int64_t positions, const StateValues& values,
                std::uint64_t memory);
  // Gives the memory back.
  void close();
  std::int64_t layers_in_memory() const { return weights_->layers_in_memory(); }

 private:
  void open_text();
  std::uint64_t settle_store(std::uint64_t memory, std::uint64_t others);
  void let_go_of_store();

  SpeakerRequest request_;
  ModelSpec model_;
  StateValues values_;
  bool reads_ahead_ = true;
  std::string text_;                          // of the weights
  std::filesystem::path folder_;              // of tokenizer and template
  std::filesystem::path run_;                 // that the weights are of
  std::string run_tokenizer_, run_template_;  // as it was told
  std::optional<StateInStore> in_store_;      // that values_ reads
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
