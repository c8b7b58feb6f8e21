// An object of a JSON file, read key by key: what is not known is refused by its name.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

// The text of a file; `most_bytes`: longer ones are refused. Throws InputError.
std::string read_whole_file(const std::string& path, std::size_t most_bytes);

// Parses JSON; throws InputError with the file and the line.
nlohmann::json parse_json(const std::string& text, const std::string& origin);

class JsonObject {
 public:
  // `place`: the keys that lead here, "model"; empty: the file's own object.
  JsonObject(const nlohmann::json& value, std::string origin, std::string place);

  const std::string& origin() const { return origin_; }
  std::string path_of(std::string_view key) const;
  // "tokenizer.json: model.dropout: ...".
  [[noreturn]] void refuse(std::string_view key, const std::string& what,
                           const std::string& hint = "") const;
  // Refuses all other keys.
  void only(std::initializer_list<std::string_view> keys) const;

  bool has(const char* key) const { return value_.contains(key); }
  // There, and not null.
  bool given(const char* key) const { return value_.contains(key) && !value_[key].is_null(); }
  const nlohmann::json& at(const char* key) const;
  JsonObject object(const char* key) const;
  // Each object of a list.
  std::vector<JsonObject> objects(const char* key) const;
  const std::string& text(const char* key) const;
  bool flag(const char* key, bool usual) const;
  std::int64_t number(const char* key) const;

 private:
  const nlohmann::json& value_;
  std::string origin_, place_;
};

}  // namespace spillway
