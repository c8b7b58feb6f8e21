#include "text/tokenizer/json_object.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/text.hpp"

namespace spillway {

namespace {

std::string shown_value(const nlohmann::json& value) {
  constexpr std::size_t longest = 80;
  const std::string text =
      printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return text.size() > longest ? text.substr(0, longest) + " ..." : text;
}

}  // namespace

std::string read_whole_file(const std::string& path, std::size_t most_bytes) {
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const auto fail = [&](const std::string& what) {
    throw InputError(fmt::format("cannot read {}: {}", path, what),
                     "check the path and its permissions");
  };
  const std::unique_ptr<std::FILE, Closer> file(std::fopen(path.c_str(), "rbe"));
  if (!file) fail(std::generic_category().message(errno));
  std::string text;
  std::array<char, 65536> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), file.get())) {
    text.append(part.data(), count);
    if (text.size() > most_bytes) fail(fmt::format("it is longer than {} bytes", most_bytes));
  }
  if (std::ferror(file.get()) != 0) fail(std::generic_category().message(errno));
  return text;
}

nlohmann::json parse_json(const std::string& text, const std::string& origin) {
  if (nested_deeper(text, most_nesting)) throw InputError(origin, 0, "is nested too deeply");
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    const int line = 1 + static_cast<int>(std::count(text.begin(), end, '\n'));
    throw InputError(origin, line, "is not JSON: " + printable(error.what()));
  } catch (const nlohmann::json::exception& error) {
    throw InputError(origin, 0, "is not JSON: " + printable(error.what()));
  }
}

JsonObject::JsonObject(const nlohmann::json& value, std::string origin, std::string place)
    : value_(value), origin_(std::move(origin)), place_(std::move(place)) {
  if (!value_.is_object())
    throw InputError(
        origin_, 0, fmt::format("{} is no object with keys", place_.empty() ? "the file" : place_));
}

std::string JsonObject::path_of(std::string_view key) const {
  return place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
}

void JsonObject::refuse(std::string_view key, const std::string& what,
                        const std::string& hint) const {
  throw InputError(origin_, 0, fmt::format("{}: {}", printable(path_of(key)), what), hint);
}

void JsonObject::only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : value_.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    refuse(key, "this key is not known (" + shown_value(value) + ")",
           unknown_name_hint(key, std::vector<std::string>(keys.begin(), keys.end())));
  }
}

const nlohmann::json& JsonObject::at(const char* key) const {
  if (!value_.contains(key)) refuse(key, "is missing");
  return value_[key];
}

JsonObject JsonObject::object(const char* key) const { return {at(key), origin_, path_of(key)}; }

std::vector<JsonObject> JsonObject::objects(const char* key) const {
  const nlohmann::json& list = at(key);
  if (!list.is_array()) refuse(key, "is no list");
  std::vector<JsonObject> result;
  for (std::size_t i = 0; i < list.size(); ++i)
    result.emplace_back(list[i], origin_, fmt::format("{}[{}]", path_of(key), i));
  return result;
}

const std::string& JsonObject::text(const char* key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_string()) refuse(key, "is no text but " + shown_value(value));
  return value.get_ref<const std::string&>();
}

bool JsonObject::flag(const char* key, bool usual) const {
  if (!given(key)) return usual;
  if (!value_[key].is_boolean()) refuse(key, "is neither true nor false");
  return value_[key].get<bool>();
}

std::int64_t JsonObject::number(const char* key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > 0x7fffffff)
    refuse(key, "is no number of a token but " + shown_value(value));
  return value.get<std::int64_t>();
}

}  // namespace spillway
