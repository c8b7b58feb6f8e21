#include "experiments/sweep/result_file.hpp"

#include <fstream>
#include <sstream>

#include "traces/file_sink.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

bool holds(const fs::path& path, const std::string& text) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error || size != text.size()) return false;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream contents;
  contents << file.rdbuf();
  return file && contents.str() == text;
}

}  // namespace

bool update_file(const fs::path& path, const std::string& text) {
  if (holds(path, text)) return false;
  FileSink sink(path.string(), FileSink::Compression::none);
  sink.write(text);
  sink.commit();
  return true;
}

}  // namespace spillway
