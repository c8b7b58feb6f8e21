#include "text/chat/built_in_template.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "text/source/json_record.hpp"

namespace spillway {

namespace {

// Bytes of the blank that `text` begins with; 0: another character. Blanks are Python's.
std::size_t blank_at(std::string_view text) {
  if (text.empty()) return 0;
  if (std::string_view(" \t\n\v\f\r\x1c\x1d\x1e\x1f").find(text[0]) != std::string_view::npos)
    return 1;
  // U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F, U+3000
  for (const std::string_view blank :
       {"\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
        "\xe2\x81\x9f", "\xe3\x80\x80"})
    if (text.starts_with(blank)) return blank.size();
  constexpr std::size_t general_punctuation = 3;
  if (text.size() >= general_punctuation && text.starts_with("\xe2\x80") &&
      static_cast<unsigned char>(text[2]) <= 0x8a)
    return general_punctuation;
  return 0;
}

// As Python's str.strip() and jinja's trim do it.
std::string_view trimmed(std::string_view text) {
  while (const std::size_t blank = blank_at(text)) text.remove_prefix(blank);
  constexpr std::size_t longest_blank = 3;
  for (std::size_t size = 1; size <= longest_blank && size <= text.size(); ++size) {
    if (blank_at(text.substr(text.size() - size)) != size) continue;
    text.remove_suffix(size);
    size = 0;
  }
  return text;
}

// A text in the making.
class ChatText {
 public:
  explicit ChatText(bool answer) : answer_(answer) {}

  void write(std::string_view text) { chat.text += text; }
  // What somebody else wrote.
  void content(std::string_view text) {
    contents.push_back({chat.text.size(), chat.text.size() + text.size()});
    chat.text += text;
  }
  void begin_training() { first_ = chat.text.size(); }
  void end_training() { chat.trained.push_back({first_, chat.text.size()}); }
  void refuse(std::string what) {
    if (chat.refused.empty()) chat.refused = std::move(what);
  }
  // Whether the begin of the assistant's next turn is wanted.
  bool answer() const { return answer_; }

  RenderedChat chat;
  std::vector<TextRange> contents;

 private:
  bool answer_;
  std::size_t first_ = 0;
};

// bos where it is more than another name of eos.
const std::string& begin_of(const SpecialNames& names) {
  static const std::string none;
  return names.begin_of_text() == names.end_of_text() ? none : names.begin_of_text();
}

using Messages = std::vector<ChatMessage>;
using WriteChat = void (*)(const Messages&, const SpecialNames&, ChatText&);

bool is(const ChatMessage& message, const char* role) { return message.role == role; }

// <|im_start|>role, content, <|im_end|>: any roles.
void write_chatml(const Messages& messages, const SpecialNames&, ChatText& text) {
  for (const ChatMessage& message : messages) {
    text.write("<|im_start|>");
    text.content(message.role);
    text.write("\n");
    if (is(message, "assistant")) text.begin_training();
    text.content(message.content);
    text.write("<|im_end|>");
    if (is(message, "assistant")) text.end_training();
    text.write("\n");
  }
  if (text.answer()) text.write("<|im_start|>assistant\n");
}

// ChatML with the system prompt of Qwen2.5 where a chat has none.
void write_qwen(const Messages& messages, const SpecialNames& names, ChatText& text) {
  if (!is(messages[0], "system"))
    text.write(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
        "assistant.<|im_end|>\n");
  write_chatml(messages, names, text);
}

void write_llama3(const Messages& messages, const SpecialNames& names, ChatText& text) {
  text.write(begin_of(names));
  for (const ChatMessage& message : messages) {
    text.write("<|start_header_id|>");
    text.content(message.role);
    text.write("<|end_header_id|>\n\n");
    if (is(message, "assistant")) text.begin_training();
    text.content(trimmed(message.content));
    text.write("<|eot_id|>");
    if (is(message, "assistant")) text.end_training();
  }
  if (text.answer()) text.write("<|start_header_id|>assistant<|end_header_id|>\n\n");
}

// Whether user and assistant take turns, the user first, after at most one system prompt.
bool take_turns(const Messages& messages, ChatText& text) {
  std::size_t place = is(messages[0], "system") ? 1 : 0;
  if (place == messages.size()) text.refuse("the chat has nothing but a system prompt");
  for (bool user = true; place < messages.size(); ++place, user = !user) {
    if (is(messages[place], user ? "user" : "assistant")) continue;
    text.refuse(fmt::format("message {} is the {}'s, where the {}'s turn is", place + 1,
                            messages[place].role, user ? "user" : "assistant"));
  }
  if (text.answer() && is(messages.back(), "assistant"))
    text.refuse("the last message is the assistant's: there is nothing to answer");
  return text.chat.refused.empty();
}

// [INST] user [/INST] assistant; a system prompt is put before what the user says first.
void write_mistral(const Messages& messages, const SpecialNames& names, ChatText& text) {
  if (!take_turns(messages, text)) return;
  text.write(begin_of(names));
  bool first = true;
  for (const ChatMessage& message : messages) {
    if (is(message, "user")) {
      text.write("[INST] ");
      if (first && is(messages[0], "system")) {
        text.content(messages[0].content);
        text.write("\n\n");
      }
      text.content(message.content);
      text.write("[/INST]");
      first = false;
    } else if (is(message, "assistant")) {
      text.begin_training();
      text.write(" ");
      text.content(trimmed(message.content));
      text.write(names.end_of_text());
      text.end_training();
    }
  }
}

// Stanford Alpaca's, and several turns in its manner.
void write_alpaca(const Messages& messages, const SpecialNames& names, ChatText& text) {
  if (!take_turns(messages, text)) return;
  text.write(begin_of(names));
  if (is(messages[0], "system")) {
    text.content(messages[0].content);
  } else {
    text.write(
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.");
  }
  for (const ChatMessage& message : messages) {
    if (is(message, "user")) {
      text.write("\n\n### Instruction:\n");
      text.content(message.content);
      text.write("\n\n### Response:\n");
    } else if (is(message, "assistant")) {
      text.begin_training();
      text.content(message.content);
      text.write(names.end_of_text());
      text.end_training();
    }
  }
}

struct BuiltIn {
  const char* name;
  WriteChat write;
  std::vector<const char*> tokens;  // that a tokenizer should have
};

const std::vector<BuiltIn>& built_ins() {
  static const std::vector<BuiltIn> all = {
      {"chatml", write_chatml, {"<|im_start|>", "<|im_end|>"}},
      {"llama3", write_llama3, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"qwen", write_qwen, {"<|im_start|>", "<|im_end|>"}},
      {"mistral", write_mistral, {}},
      {"alpaca", write_alpaca, {}}};
  return all;
}

class BuiltInTemplate : public ChatTemplate {
 public:
  BuiltInTemplate(const BuiltIn& built_in, const SpecialNames& names, bool parse_special)
      : built_in_(built_in), names_(names), parse_special_(parse_special) {}

  std::vector<RenderedChat> render(std::span<const ChatRecord> chats, RenderFor purpose) override {
    std::vector<RenderedChat> result;
    for (const ChatRecord& chat : chats) result.push_back(render(chat, purpose));
    return result;
  }

  ChatRecord chat_of(const InstructionRecord& record) const override {
    ChatRecord chat = ChatTemplate::chat_of(record);
    if (built_in_.write != write_alpaca || record.input.empty()) return chat;
    chat.messages[0].content = record.instruction + "\n\n### Input:\n" + record.input;
    constexpr const char* with_input =
        "Below is an instruction that describes a task, paired with an input that provides "
        "further context. Write a response that appropriately completes the request.";
    chat.messages.insert(chat.messages.begin(), make_message("system", with_input));
    return chat;
  }

  std::uint64_t hash() const override {
    // The number is raised with every change of what a template writes.
    const std::string text =
        fmt::format("1 {} {} {}", built_in_.name, names_.begin_of_text(), names_.end_of_text());
    return ::XXH3_64bits(text.data(), text.size());
  }

  std::string describe() const override {
    return fmt::format("the built-in template {}", built_in_.name);
  }

  std::vector<std::string> notes() const override {
    std::vector<std::string> notes;
    for (const char* token : built_in_.tokens) {
      if (!names_.has(token))
        notes.push_back(
            fmt::format("the tokenizer has no token {}, which {} writes: the model "
                        "sees its letters",
                        token, describe()));
    }
    if (built_in_.tokens.empty() && names_.end_of_text().empty())
      notes.push_back(
          fmt::format("the tokenizer has no token that ends a text, which {} writes "
                      "after an answer: the model does not learn to stop",
                      describe()));
    return notes;
  }

 private:
  RenderedChat render(const ChatRecord& chat, RenderFor purpose) const {
    constexpr const char* own = "the model's own template may know what to do with this chat";
    ChatText text(purpose == RenderFor::answer);
    if (!chat.tools.empty()) text.refuse("the chat has tools, which " + describe() + " has not");
    for (const ChatMessage& message : chat.messages) {
      if (message.json.find("\"tool_calls\"") != std::string::npos && message.content.empty())
        text.refuse("the chat calls tools, which " + describe() + " has not");
    }
    if (text.chat.refused.empty()) built_in_.write(chat.messages, names_, text);
    if (!text.chat.refused.empty()) return {{}, {}, {}, text.chat.refused, own};
    if (purpose != RenderFor::training) text.chat.trained.clear();
    if (!parse_special_) text.chat.plain = names_in(text.chat.text, text.contents);
    return text.chat;
  }

  // Names of special tokens of which contents have at least a byte.
  std::vector<TextRange> names_in(std::string_view text,
                                  const std::vector<TextRange>& contents) const {
    std::vector<TextRange> found;
    std::size_t content = 0;
    for (auto name = names_.find(text, 0); name; name = names_.find(text, name->end)) {
      while (content < contents.size() && contents[content].end <= name->first) ++content;
      while (content < contents.size() && contents[content].first == contents[content].end)
        ++content;
      if (content < contents.size() && contents[content].first < name->end) found.push_back(*name);
    }
    return found;
  }

  const BuiltIn& built_in_;
  const SpecialNames& names_;
  bool parse_special_;
};

}  // namespace

std::unique_ptr<ChatTemplate> make_built_in_template(const std::string& name,
                                                     const SpecialNames& names,
                                                     bool parse_special) {
  for (const BuiltIn& one : built_ins())
    if (one.name == name) return std::make_unique<BuiltInTemplate>(one, names, parse_special);
  return nullptr;
}

std::vector<std::string> built_in_templates() {
  std::vector<std::string> result;
  for (const BuiltIn& one : built_ins()) result.emplace_back(one.name);
  return result;
}

ChatRecord ChatTemplate::chat_of(const InstructionRecord& record) const {
  const std::string input = record.input.empty() ? "" : "\n\n" + record.input;
  return {
      {make_message("user", record.instruction + input), make_message("assistant", record.output)},
      {}};
}

}  // namespace spillway
