// One record of a source: a text, a prompt with its completion, or a chat.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/errors.hpp"
#include "text/source/document.hpp"

namespace spillway {

// A document, or a piece of one: of a long text, pieces follow each other in a part and over its
// end into the next one.
struct TextRecord {
  std::string text;
  bool begins = true, ends = true;  // the document
};

struct CompletionRecord {
  std::string prompt, completion;
};

// `instruction`, `input`, `output`: what Alpaca's template is made for, and a chat for the others.
struct InstructionRecord {
  std::string instruction, input, output;
};

struct ChatMessage {
  std::string role, content;  // content: texts of a list put together
  // The message as JSON, for the model's own template: with all that the record says of it. Empty:
  // it says no more than these.
  std::string json;
};

struct ChatRecord {
  std::vector<ChatMessage> messages;
  std::string tools;  // JSON; empty: none
};

struct Record {
  std::variant<TextRecord, CompletionRecord, InstructionRecord, ChatRecord> content;
  RecordPlace place;
};

// A record that cannot be used, without its place: what is wrong and what was expected.
class MalformedRecord : public InputError {
 public:
  using InputError::InputError;
};

}  // namespace spillway
