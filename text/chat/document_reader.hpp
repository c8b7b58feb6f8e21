// From the records of a source to documents: rendered by a chat template where they are chats, as
// tokens, with what is trained on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "text/chat/chat_template.hpp"
#include "text/source/document.hpp"
#include "text/source/source.hpp"
#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

struct DocumentSettings {
  // TemplateSettings::name; "": chats are refused, and instructions are written as Alpaca's.
  std::string chat_template = {};
  std::string template_date = TemplateSettings().date;
  // Of chats, only what the assistant says; of completions, only the completion. Else all.
  bool assistant_only = true;
  // Names of special tokens in what people wrote are the tokens, not letters. Who trusts the data
  // may ask for it.
  bool parse_special = false;
  bool operator==(const DocumentSettings&) const = default;
};

struct DocumentCounts {
  SourceCounts source;
  std::uint64_t documents = 0, tokens = 0, trained_tokens = 0;
  std::uint64_t untrained = 0;  // left out: nothing of them is trained on
  void add(const DocumentCounts& more);
};

// Not thread-safe: a thread has one of its own (and, with a model's own template, a child process).
class DocumentReader {
 public:
  // Keeps the references. Throws InputError where the template cannot be had.
  DocumentReader(const Source& source, const Tokenizer& tokenizer,
                 const DocumentSettings& settings);
  ~DocumentReader();

  // The documents of a part of the source, in order: always the same ones.
  void read(const SourcePart& part, const std::function<void(Document&&)>& take);
  const DocumentCounts& counts() const;  // of all parts read
  // What a user should know of the template with this tokenizer, and of what was left out.
  std::vector<std::string> notes() const;
  // Of all that, beside the records and the tokenizer, decides what the documents are.
  std::uint64_t hash() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
