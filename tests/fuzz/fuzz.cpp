#include "tests/fuzz/fuzz.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace spillway::fuzz {

void fail(std::string_view property) {
  std::fprintf(stderr, "does not hold: %.*s\n", static_cast<int>(property.size()), property.data());
  std::abort();
}

ScratchFolder::ScratchFolder() {
  std::error_code none;
  const bool shared = std::filesystem::is_directory("/dev/shm", none);
  std::string name =
      (shared ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) /
      "spillway-fuzz-XXXXXX";
  require(::mkdtemp(name.data()) != nullptr, "a folder for scratch files can be made");
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path ScratchFolder::write(const std::string& name, Bytes bytes) const {
  const std::filesystem::path file = path_ / name;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  out.close();
  require(out.good(), "a scratch file can be written");
  return file;
}

std::uint64_t Choices::below(std::uint64_t count) {
  std::uint64_t value = 0;
  for (std::uint64_t most = count - 1; most > 0 && !rest_.empty(); most >>= 8) {
    value = value << 8 | rest_.front();
    rest_ = rest_.subspan(1);
  }
  return value % count;
}

}  // namespace spillway::fuzz
