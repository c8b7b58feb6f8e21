// How a chat becomes one text: by a built-in template, or by the model's own.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/message.hpp"
#include "text/chat/special_names.hpp"
#include "text/source/record.hpp"

namespace spillway {

struct RenderedChat {
  std::string text;
  // Names of special tokens that somebody wrote into a message: letters, not tokens.
  std::vector<TextRange> plain;
  // What the assistant says, with the token that ends a turn.
  std::vector<TextRange> trained;
  // Why this chat has no text, and what to do; empty: it has.
  std::string refused;
  Message hint;
};

enum class RenderFor {
  training,  // all turns, with what is trained on
  text,      // all turns; `trained` stays empty
  answer     // all turns, and the begin of the assistant's next one
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // One for each chat, in order. Not thread-safe. Throws InputError where the template itself fails
  // or exceeds its limits, MachineError.
  virtual std::vector<RenderedChat> render(std::span<const ChatRecord> chats,
                                           RenderFor purpose) = 0;
  // What a user made of an instruction, an input and an output.
  virtual ChatRecord chat_of(const InstructionRecord& record) const;
  // Of everything that decides what a text is.
  virtual std::uint64_t hash() const = 0;
  virtual std::string describe() const = 0;  // "the built-in template chatml"
  // What a user should know of this template with this tokenizer.
  virtual std::vector<std::string> notes() const { return {}; }
};

// What a model's own template may take: it is a program that somebody else wrote.
struct TemplateLimits {
  std::chrono::seconds time{30};  // for a batch of chats
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  std::uint64_t text_characters = std::uint64_t{1} << 24;  // of one chat
};

struct TemplateSettings {
  // "chatml", "llama3", "qwen", "mistral", "alpaca"; or a template: a .jinja file, a
  // tokenizer_config.json, or a model's folder with one of them.
  std::string name;
  // For templates that write the date of the day, so that a text is always the same: YYYY-MM-DD.
  std::string date = "2024-07-26";
  // Names of special tokens in messages are the tokens: RenderedChat::plain stays empty.
  bool parse_special = false;
  TemplateLimits limits = {};
};

// Keeps the reference. Throws InputError: no such template, a file without one. A model's own is
// compiled when it is first needed: render() throws where there is no python3 with jinja2.
std::unique_ptr<ChatTemplate> make_chat_template(const TemplateSettings& settings,
                                                 const SpecialNames& names);
std::vector<std::string> built_in_templates();
// The same template in the language jinja, for a model's folder: of a built-in one what other
// programs write the same texts with. `name`: as above. Throws InputError.
std::string chat_template_text(const std::string& name);
inline constexpr const char* chat_template_file = "chat_template.jinja";  // in a model's folder
// Whether a model's folder has a template of its own.
bool has_chat_template(const std::filesystem::path& folder);

}  // namespace spillway
