// The files that tokenizers are read from, each as what it says.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizer/bpe_tokenizer.hpp"
#include "text/tokenizer/json_object.hpp"

namespace spillway {

// A tokenizer.json of Hugging Face's tokenizers. `text` is the file; `origin` its name in messages.
// Throws InputError, naming the key, for what is malformed or not supported.
BpeParts read_tokenizer_json(const std::string& text, const std::string& origin);

// GPT-2's vocab.json and merges.txt, also called encoder.json and vocab.bpe.
BpeParts read_gpt2_files(const std::string& vocabulary, const std::string& merges,
                         const std::string& vocabulary_origin, const std::string& merges_origin);

// Two tokens' names make one merge of rank `rank`: both and their merged name are in the
// vocabulary.
class MergeReader {
 public:
  MergeReader(const std::vector<std::pair<std::string, Token>>& vocabulary, std::string origin);
  void add(std::string_view left, std::string_view right);
  // "a b".
  void add_line(std::string_view line);
  std::vector<Merge> take() { return std::move(merges_); }

 private:
  Token number_of(std::string_view name) const;

  std::unordered_map<std::string_view, Token> numbers_;
  std::string origin_;
  std::vector<Merge> merges_;
};

// A vocabulary {"name": number}.
std::vector<std::pair<std::string, Token>> read_vocabulary(const JsonObject& of, const char* key);

// What tokenizer_config.json of `folder`, and for keys that it lacks special_tokens_map.json, say
// about these tokens; what neither says stays as it is. `find`: the number of a token's name.
void read_named_tokens(const std::filesystem::path& folder,
                       const std::function<std::optional<Token>(std::string_view)>& find,
                       NamedTokens& named);

// A tokenizer.model of SentencePiece, BPE or unigram. `model` is the file's bytes. Throws
// InputError for one that is malformed.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model,
                                                        const std::string& origin);

}  // namespace spillway
