// Text from files and from the command line, made safe to show and to name files by.
//
// A name in a file can hold anything: characters that move a terminal's cursor, that turn the
// direction of a line round, or that nobody can see. Such text is refused where it is read
// (find_unprintable), and shown with its bytes spelled out where it is only quoted (printable).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spillway {

// The first thing in `text` that a terminal would not show as a character of its own, in words:
// "the control character U+001B", "the invisible character U+200B", "bytes that are not UTF-8".
// Nothing: all of it can be shown. Line breaks and tabs count as control characters.
std::optional<std::string> find_unprintable(std::string_view text);

// The text with everything that find_unprintable would find spelled out: "\u202e" for a character,
// as in JSON, "\xff" for a byte that is none. What can be shown stays as it is.
std::string printable(std::string_view text);
// The same, with line breaks left in.
std::string printable_lines(std::string_view text);

// A name of a file that is made from a name of anything else: letters, digits, "-", "_" and "." of
// it, everything else a "-", never empty, never hidden, at most 80 characters, and no path.
std::string file_name_from(std::string_view name);

// Whether brackets and braces of a JSON text, outside of its strings, are nested deeper than
// `most`: such a text is not given to a parser whose values are copied and destroyed by recursion.
bool nested_deeper(std::string_view json, int most);
// More than anything that Spillway writes.
inline constexpr int most_nesting = 64;

}  // namespace spillway
