#include "traces/trace.hpp"

#include <nlohmann/json.hpp>

#include "base/errors.hpp"

namespace spillway {

const std::string* Trace::find_metadata(const std::string& key) const {
  for (const auto& [name, json_text] : metadata) {
    if (name == key) return &json_text;
  }
  return nullptr;
}

void Trace::set_metadata(const std::string& key, const std::string& json_text) {
  // Kept in the compact form in which it is written, so that a trace read back equals the one
  // written.
  const auto value = nlohmann::ordered_json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  SPILLWAY_ASSERT(!value.is_discarded(), "metadata '" + key + "' is not JSON: " + json_text);
  std::string canonical = value.dump();
  for (auto& [name, text] : metadata) {
    if (name == key) {
      text = std::move(canonical);
      return;
    }
  }
  metadata.emplace_back(key, std::move(canonical));
}

}  // namespace spillway
