// Text for people that names settings without spelling them. A setting has one name ("micro_batch",
// "gpu.memory") and many spellings: a flag on the command line, a key in a file, a keyword in
// Python. Whoever shows the text writes the settings in it as its reader would give them.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace spillway {

struct Setting {
  std::string name;
  std::string value = {};  // that would do, or was given; may be empty
  bool operator==(const Setting&) const = default;
};

using WriteSetting = std::function<std::string(const Setting&)>;

// "name = value", or the name alone where there is no value.
std::string plain_setting(const Setting& setting);

// Put together with +: "lower " + Setting{"gpu.memory"} + ", or end other programs".
class Message {
 public:
  Message() = default;
  Message(const char* text);
  Message(std::string text);
  Message(Setting setting);

  Message& operator+=(const Message& more);

  bool empty() const { return pieces_.empty(); }
  // Each setting written by `write`.
  std::string text(const WriteSetting& write = plain_setting) const;
  // Those that are named, in order.
  std::vector<Setting> settings() const;

 private:
  std::vector<std::variant<std::string, Setting>> pieces_;
};

// Of messages, settings and text, unless both are text.
Message operator+(Message a, const Message& b);

}  // namespace spillway
