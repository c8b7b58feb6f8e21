#include "text/source/json_record.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace spillway {

namespace {

using json = nlohmann::ordered_json;

constexpr const char* known_forms =
    "a record has `messages` (a list of {\"role\": ..., \"content\": ...}), `conversations` (a "
    "list of {\"from\": ..., \"value\": ...}), `prompt` and `completion`, `instruction` and "
    "`output`, or `text`";

[[noreturn]] void refuse(const std::string& what, const std::string& hint = known_forms) {
  throw MalformedRecord(what, hint);
}

json parse_object(std::string_view text) {
  if (nested_deeper(text, most_nesting)) refuse("the record is nested too deeply");
  json record;
  try {
    record = json::parse(text);
  } catch (const json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: ..."; the line is that of
    // the record, not of the file.
    std::string why = error.what();
    if (const std::size_t end = why.find("] "); end != std::string::npos) why.erase(0, end + 2);
    constexpr std::string_view at_line = "parse error at line ";
    if (const std::size_t column = why.find("column "); why.starts_with(at_line))
      why.erase(0, column == std::string::npos ? at_line.size() : column);
    constexpr const char* hint = "a record is one JSON object in UTF-8, on one line in JSONL";
    refuse("the record is not JSON: " + printable(why), hint);
  }
  if (!record.is_object())
    refuse(fmt::format("a record is an object, not {} {}", record.is_array() ? "an" : "a",
                       record.type_name()));
  return record;
}

std::string text_of(const json& record, const char* field, const std::string& place = "") {
  const auto found = record.find(field);
  if (found == record.end()) refuse(fmt::format("{}`{}` is missing", place, field));
  if (!found->is_string())
    refuse(fmt::format("{}`{}` is {}, not a text", place, field, found->type_name()));
  return found->get<std::string>();
}

// A message's content: a text, or a list of {"type": "text", "text": ...}. Nothing where it is
// missing, which a call of a tool may be.
std::string content_of(const json& message, const std::string& place) {
  const auto found = message.find("content");
  if (found == message.end()) {
    if (message.contains("tool_calls")) return "";
    refuse(place + "`content` is missing");
  }
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array())
    refuse(fmt::format("{}`content` is {}, not a text", place, found->type_name()));
  std::string text;
  for (const json& piece : *found) {
    if (!piece.is_object() || piece.value("type", json()) != "text")
      refuse(place + "`content` holds something else than text",
             "pictures and sounds cannot be trained on");
    text += text_of(piece, "text", place);
  }
  return text;
}

// The roles that ShareGPT's `from` stands for; others stay as they are.
std::string role_of(const std::string& from) {
  if (from == "human") return "user";
  if (from == "gpt" || from == "chatgpt" || from == "bing" || from == "bard") return "assistant";
  return from;
}

ChatMessage message_of(const json& value, std::size_t index) {
  const std::string place = fmt::format("message {}: ", index + 1);
  if (!value.is_object()) refuse(fmt::format("{}is {}, not an object", place, value.type_name()));
  json message = json::object();
  // What is null is left out, as transformers does it.
  for (const auto& [key, one] : value.items()) {
    if (one.is_null()) continue;
    if (key == "from" && !value.contains("role"))
      message["role"] = role_of(text_of(value, "from", place));
    else if (key == "value" && !value.contains("content"))
      message["content"] = one;
    else
      message[key] = one;
  }
  ChatMessage result{text_of(message, "role", place), content_of(message, place), {}};
  if (result.role.empty()) refuse(place + "`role` is empty");
  result.json = message.dump();
  return result;
}

ChatRecord chat_of(const json& record, const char* field) {
  const json& list = record[field];
  if (!list.is_array()) refuse(fmt::format("`{}` is {}, not a list", field, list.type_name()));
  if (list.empty()) refuse(fmt::format("`{}` is empty", field));
  ChatRecord chat;
  for (const json& value : list) chat.messages.push_back(message_of(value, chat.messages.size()));
  if (const auto system = record.find("system");
      system != record.end() && system->is_string() && chat.messages[0].role != "system") {
    chat.messages.insert(chat.messages.begin(), make_message("system", system->get<std::string>()));
  }
  if (const auto tools = record.find("tools"); tools != record.end()) {
    if (tools->is_array() && !tools->empty()) chat.tools = tools->dump();
    // Some data sets hold the list as a text.
    if (tools->is_string() && !tools->get<std::string>().empty()) {
      const auto text = tools->get<std::string>();
      if (nested_deeper(text, most_nesting)) refuse("`tools` is nested too deeply");
      const json parsed = json::parse(text, nullptr, false);
      if (!parsed.is_array()) refuse("`tools` is not a list");
      if (!parsed.empty()) chat.tools = parsed.dump();
    }
  }
  return chat;
}

}  // namespace

Record parse_json_record(std::string_view text) {
  const json record = parse_object(text);
  const auto has = [&](const char* field) {
    const auto found = record.find(field);
    return found != record.end() && !found->is_null();
  };
  if (has("messages")) return {chat_of(record, "messages"), {}};
  if (has("conversations")) return {chat_of(record, "conversations"), {}};
  if (has("prompt") && has("completion"))
    return {CompletionRecord{text_of(record, "prompt"), text_of(record, "completion")}, {}};
  if (has("instruction") && has("output"))
    return {
        InstructionRecord{text_of(record, "instruction"),
                          has("input") ? text_of(record, "input") : "", text_of(record, "output")},
        {}};
  if (has("text")) return {TextRecord{text_of(record, "text")}, {}};
  std::string fields;
  constexpr std::size_t most_named = 8;
  std::size_t named = 0;
  for (const auto& [key, value] : record.items()) {
    if (named++ == most_named) break;
    fields += (fields.empty() ? "" : ", ") + printable(key);
  }
  refuse(fields.empty() ? "the record is empty"
                        : "the record has no field to train on, only: " + fields);
}

ChatMessage make_message(const std::string& role, const std::string& content) {
  return {role, content, json{{"role", role}, {"content", content}}.dump()};
}

bool is_json_record(std::string_view text) {
  if (nested_deeper(text, most_nesting)) return false;
  const json record = json::parse(text, nullptr, false);
  if (!record.is_object()) return false;
  const auto has = [&](const char* field) { return record.contains(field); };
  return has("messages") || has("conversations") || (has("prompt") && has("completion")) ||
         (has("instruction") && has("output")) || has("text");
}

}  // namespace spillway
