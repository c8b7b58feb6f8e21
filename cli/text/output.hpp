// What the program writes: standard output that is safe to show and fails loudly, and files that
// appear whole or not at all.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/new_file.hpp"

namespace spillway::cli {

// A standard descriptor that is closed would be given to the next file opened, and messages would
// end up in that file. Takes the place of those that are closed; writing to a closed standard
// output still fails.
void reserve_standard_descriptors();

// From here on, whatever is printed to `stdout` by any part of the program is spelled out where a
// terminal would not show it (printable in base/text.hpp; line breaks stay): names and paths can
// hold anything. JSON stays the same JSON. Call it once, before anything is printed.
void guard_standard_output();

// The program that reads standard output has gone, as `head` does once it has enough: no failure,
// and nothing that is left to say would be read.
struct ReaderGone {};

// From here on that matters even less: what nobody reads is dropped, and the program goes on.
void outlive_reader();

// Throws MachineError when something printed to standard output did not get there; ReaderGone when
// nobody reads it any more.
void flush_output();
// The same failure, as thrown by the printing itself.
[[noreturn]] void fail_output(int error_number);

// Prints to standard error, what a terminal would not show spelled out. Never throws: a message
// nobody can read is no reason to stop a run.
void print_error(const std::string& text);
// The same of text that steers the terminal on purpose: a rewritten line, a colour.
void print_error_as_is(const std::string& text);

// The text of JSON for standard output, indented; bytes that are not UTF-8 are replaced.
std::string to_text(const nlohmann::ordered_json& json);

// Before any work is done: throws InputError when `path` cannot become a file: its folder is
// missing, or a folder, a link, a FIFO, or a file that is not `only` lies there. `option` is named
// in the message; an empty path is fine.
void check_output_path(const std::string& option, const std::string& path,
                       const ReplaceOnly* only = nullptr);

// Throws InputError, MachineError; a regular file at `path` is then as it was.
void write_file(const FilePlace& place, const std::string& text, const ReplaceOnly* only = nullptr);

}  // namespace spillway::cli
