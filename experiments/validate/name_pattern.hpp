// A regular expression (PCRE2) that a whole name has to match.
#pragma once

#include <memory>
#include <string>

namespace spillway {

class NamePattern {
 public:
  // Throws InputError, without a place: the expression is wrong, and at which character.
  explicit NamePattern(const std::string& expression);

  // Whether the whole of `name` matches. Throws InputError where the expression takes too many
  // steps to find out.
  bool matches(const std::string& name) const;
  const std::string& expression() const { return expression_; }

 private:
  std::string expression_;
  std::shared_ptr<const void> code_;  // pcre2_code
};

}  // namespace spillway
