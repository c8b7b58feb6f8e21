// What the program writes: standard output that fails loudly, and files that appear whole or not at
// all.
#pragma once

#include <string>

namespace spillway::cli {

// A standard descriptor that is closed would be given to the next file opened, and messages would
// end up in that file. Takes the place of those that are closed; writing to a closed standard
// output still fails.
void reserve_standard_descriptors();

// Throws MachineError when something printed to standard output did not get there.
void flush_output();
// The same failure, as thrown by the printing itself.
[[noreturn]] void fail_output(int error_number);

// Prints to standard error. Never throws: a message nobody can read is no reason to stop a run.
void print_error(const std::string& text);

// Before any work is done: throws InputError when `path` cannot become a file, because its folder
// is missing or because it is a folder itself. `option` is named in the message; an empty path is
// fine.
void check_output_path(const std::string& option, const std::string& path);

// Throws MachineError; a regular file at `path` is then as it was.
void write_file(const std::string& path, const std::string& text);

}  // namespace spillway::cli
