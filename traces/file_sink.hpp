// Text that appears under its name whole or not at all (base/new_file.hpp), compressed if asked.
// Without commit() nothing is changed. One thread at a time.
#pragma once

#include <zlib.h>

#include <string>
#include <string_view>

#include "base/new_file.hpp"

namespace spillway {

class FileSink {
 public:
  enum class Compression { none, gzip };

  // Throws InputError when there must be no such file (a link, a file that is not `only`),
  // MachineError when it cannot be created.
  FileSink(const FilePlace& place, Compression compression, const ReplaceOnly* only = nullptr);
  ~FileSink();
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  // Throws MachineError when the bytes cannot be written.
  void write(std::string_view bytes);
  // Throws MachineError when the bytes cannot be made durable; `path` is then as it was.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& what, int error_number) const;

  std::string path_;  // as the user named it, for messages
  NewFile file_;
  gzFile compressor_ = nullptr;
};

}  // namespace spillway
