// Settings of the command line inside a TOML file, as comments.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace spillway::fuzz {

// The rest of each line that begins with "#set ", at most eight.
inline std::vector<std::string> settings_of(const std::string& text) {
  const std::string mark = "#set ";
  std::vector<std::string> settings;
  std::istringstream lines(text);
  for (std::string line; settings.size() < 8 && std::getline(lines, line);) {
    if (line.rfind(mark, 0) == 0) settings.push_back(line.substr(mark.size()));
  }
  return settings;
}

}  // namespace spillway::fuzz
