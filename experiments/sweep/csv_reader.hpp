// CSV as to_csv writes it, read back (RFC 4180).
#pragma once

#include <string>

#include "experiments/sweep/sweep_table.hpp"

namespace spillway {

// A header and rows of as many cells; lines end with LF or CR LF. Throws InputError (origin:line):
// quotes that are not closed, a row of another length, a name that two columns have, no header.
SweepTable parse_csv(const std::string& text, const std::string& origin);

}  // namespace spillway
