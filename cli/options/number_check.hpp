// Numbers on the command line, checked before the parser turns them into values: it takes what is
// too large for the largest value there is, a number in octal for what it looks like, and infinity
// for a number.
#pragma once

#include <CLI/CLI.hpp>

namespace spillway::cli {

// Adds the check to an option that takes whole numbers or numbers; others stay as they are.
void check_numbers(CLI::Option& option);

}  // namespace spillway::cli
