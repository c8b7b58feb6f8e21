#include "base/message.hpp"

#include <utility>

namespace spillway {

std::string plain_setting(const Setting& setting) {
  return setting.value.empty() ? setting.name : setting.name + " = " + setting.value;
}

Message::Message(const char* text) : Message(std::string(text)) {}

Message::Message(std::string text) {
  if (!text.empty()) pieces_.emplace_back(std::move(text));
}

Message::Message(Setting setting) { pieces_.emplace_back(std::move(setting)); }

Message& Message::operator+=(const Message& more) {
  const std::size_t count = more.pieces_.size();  // `more` may be this message
  for (std::size_t i = 0; i < count; ++i) pieces_.push_back(more.pieces_[i]);
  return *this;
}

Message operator+(Message a, const Message& b) {
  a += b;
  return a;
}

std::string Message::text(const WriteSetting& write) const {
  std::string all;
  for (const auto& piece : pieces_) {
    const auto* setting = std::get_if<Setting>(&piece);
    all += setting != nullptr ? write(*setting) : std::get<std::string>(piece);
  }
  return all;
}

std::vector<Setting> Message::settings() const {
  std::vector<Setting> all;
  for (const auto& piece : pieces_) {
    if (const auto* setting = std::get_if<Setting>(&piece)) all.push_back(*setting);
  }
  return all;
}

}  // namespace spillway
