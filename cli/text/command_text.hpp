// Commands of the program as text, to be typed again.
#pragma once

#include <string>
#include <vector>

namespace spillway::cli {

// The words after `spillway`, those with other characters than names and numbers have in quotes for
// a shell.
std::string command_text(const std::vector<std::string>& words);

// That of this process.
std::string this_command_text();

}  // namespace spillway::cli
