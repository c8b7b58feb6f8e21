// Files of results: written whole or not at all, and only when they change.
#pragma once

#include <filesystem>
#include <string>

namespace spillway {

// Makes `path` hold `text`; false where it did already. Throws MachineError; the file is then as it
// was.
bool update_file(const std::filesystem::path& path, const std::string& text);

}  // namespace spillway
