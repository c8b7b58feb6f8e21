// Which program this is, to the byte.
#pragma once

#include <string>

namespace spillway::cli {

// A result belongs to the program that computed it: another build may compute another.
std::string this_program();

}  // namespace spillway::cli
