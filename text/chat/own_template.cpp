#include "text/chat/own_template.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <chrono>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/text.hpp"
#include "text/chat/built_in_template.hpp"
#include "text/chat/template_process.hpp"
#include "text/source/json_record.hpp"

namespace spillway {

namespace {

using json = nlohmann::ordered_json;

[[noreturn]] void refuse_reply() {
  throw InputError("the process of the chat template answers what is no answer",
                   "is another program in the place of python3?");
}

// Ranges of a text of `size` bytes, ascending and apart.
std::vector<TextRange> ranges_of(const json& list, std::size_t size) {
  if (!list.is_array()) refuse_reply();
  std::vector<TextRange> ranges;
  for (const json& one : list) {
    if (!one.is_array() || one.size() != 2 || !one[0].is_number_unsigned() ||
        !one[1].is_number_unsigned())
      refuse_reply();
    const TextRange range{one[0].get<std::size_t>(), one[1].get<std::size_t>()};
    if (range.first > range.end || range.end > size) refuse_reply();
    if (range.first == range.end) continue;
    if (!ranges.empty() && range.first < ranges.back().end) refuse_reply();
    ranges.push_back(range);
  }
  return ranges;
}

void require_date(const std::string& text) {
  int year = 0;
  unsigned month = 0, day = 0;
  char end = 0;
  const int fields = std::sscanf(text.c_str(), "%4d-%2u-%2u%c", &year, &month, &day, &end);
  constexpr int all_fields = 3;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  if (fields != all_fields || !date.ok() || year < 1)
    throw InputError(printable(text) + " is no date",
                     "write it as year, month and day: " + Setting{"template_date", "2024-07-26"});
}

class OwnTemplate : public ChatTemplate {
 public:
  OwnTemplate(TemplateFile file, TemplateSettings settings, const SpecialNames& names)
      : file_(std::move(file)), settings_(std::move(settings)) {
    add_variable("bos_token", names.begin_of_text());
    add_variable("eos_token", names.end_of_text());
    json limits = {{"memory_bytes", settings_.limits.memory_bytes},
                   {"text_characters", settings_.limits.text_characters},
                   {"seconds", settings_.limits.time.count() + 5}};  // this program is there first
    first_ = json{
        {"template", file_.text},
        {"variables", file_.variables},
        {"names", names.names()},
        {"date", settings_.date},
        {"parse_special", settings_.parse_special},
        {"limits",
         limits}}.dump(-1, ' ', false, json::error_handler_t::replace);
    start();
  }

  std::vector<RenderedChat> render(std::span<const ChatRecord> chats, RenderFor purpose) override {
    if (!process_) start();
    std::string message = fmt::format(R"({{"prompt":{},"trained":{},"chats":[)",
                                      purpose == RenderFor::answer, purpose == RenderFor::training);
    for (const ChatRecord& chat : chats) {
      message += &chat == chats.data() ? "" : ",";
      message += R"({"messages":[)";
      for (const ChatMessage& one : chat.messages)
        message += (&one == chat.messages.data() ? "" : ",") +
                   (one.json.empty() ? make_message(one.role, one.content).json : one.json);
      message += "],\"tools\":" + (chat.tools.empty() ? "null" : chat.tools) + "}";
    }
    message += "]}";
    constexpr std::uint64_t bytes_per_character = 16;  // as JSON, and what is said beside it
    const std::uint64_t most =
        chats.size() * settings_.limits.text_characters * bytes_per_character + (1 << 16);
    try {
      return parse_template_reply(process_->ask(message, most), chats.size());
    } catch (...) {
      process_.reset();
      throw;
    }
  }

  std::uint64_t hash() const override { return ::XXH3_64bits(first_.data(), first_.size()); }
  std::string describe() const override { return "the chat template of " + settings_.name; }

 private:
  void add_variable(const std::string& name, const std::string& value) {
    if (!value.empty()) file_.variables.emplace(name, value);
  }

  void start() {
    auto process = std::make_unique<TemplateProcess>(first_, settings_.limits.time);
    const json reply = json::parse(process->reply(), nullptr, false);
    if (!reply.is_object()) refuse_reply();
    if (const auto error = reply.find("error"); error != reply.end())
      throw InputError(settings_.name, 0,
                       "is no chat template: " +
                           (error->is_string() ? printable(error->get<std::string>()) : ""),
                       "a template is written in jinja, as transformers takes it");
    process_ = std::move(process);
  }

  TemplateFile file_;
  TemplateSettings settings_;
  std::string first_;
  std::unique_ptr<TemplateProcess> process_;
};

}  // namespace

std::vector<RenderedChat> parse_template_reply(const std::string& text, std::size_t chats) {
  if (nested_deeper(text, most_nesting)) refuse_reply();
  const json reply = json::parse(text, nullptr, false);
  if (!reply.is_object() || !reply.contains("chats") || !reply["chats"].is_array() ||
      reply["chats"].size() != chats)
    refuse_reply();
  std::vector<RenderedChat> result;
  for (const json& one : reply["chats"]) {
    RenderedChat chat;
    if (!one.is_object()) refuse_reply();
    if (const auto error = one.find("error"); error != one.end()) {
      if (!error->is_string()) refuse_reply();
      const bool unmarked = one.value("unmarked", json(false)) == true;
      chat.refused = (unmarked ? "what is trained on cannot be told: " : "the template says: ") +
                     printable(error->get<std::string>());
      chat.hint = unmarked
                      ? "take a built-in template, write {% generation %} into the model's, or " +
                            Setting{"train_on", "all"}
                      : Message("look at the chat; a built-in template may take it");
    } else {
      if (!one.contains("text") || !one["text"].is_string() || !one.contains("plain") ||
          !one.contains("trained"))
        refuse_reply();
      chat.text = one["text"].get<std::string>();
      chat.plain = ranges_of(one["plain"], chat.text.size());
      chat.trained = ranges_of(one["trained"], chat.text.size());
    }
    result.push_back(std::move(chat));
  }
  return result;
}

std::unique_ptr<ChatTemplate> make_own_template(const TemplateFile& file,
                                                const TemplateSettings& settings,
                                                const SpecialNames& names) {
  return std::make_unique<OwnTemplate>(file, settings, names);
}

std::unique_ptr<ChatTemplate> make_chat_template(const TemplateSettings& settings,
                                                 const SpecialNames& names) {
  if (auto built_in = make_built_in_template(settings.name, names, settings.parse_special))
    return built_in;
  std::error_code error;
  if (!std::filesystem::exists(settings.name, error))
    throw InputError(fmt::format("there is no chat template {}", printable(settings.name)),
                     unknown_name_hint(printable(settings.name), built_in_templates()) +
                         "; or a .jinja file, a tokenizer_config.json, a model's folder");
  require_date(settings.date);
  const TemplateFile file = read_template_file(settings.name);
  // What a run has written of a built-in one is that one, and needs no other program.
  for (const std::string& name : built_in_templates())
    if (chat_template_text(name) == file.text)
      return make_built_in_template(name, names, settings.parse_special);
  return make_own_template(file, settings, names);
}

}  // namespace spillway
