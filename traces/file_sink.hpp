// A file that appears whole or not at all.
//
// Bytes go to `path`.partial-PID; commit() syncs that file, renames it to `path` and syncs the
// directory. Without commit() the destructor removes it. A path that is no regular file (a device,
// a pipe) is written in place, since a rename would replace it. One thread at a time.
#pragma once

#include <zlib.h>

#include <string>
#include <string_view>

namespace spillway {

class FileSink {
 public:
  enum class Compression { none, gzip };

  // Throws MachineError when the file cannot be created.
  FileSink(const std::string& path, Compression compression);
  ~FileSink();
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  // Throws MachineError when the bytes cannot be written.
  void write(std::string_view bytes);
  // Throws MachineError when the bytes cannot be made durable; `path` is then as it was.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& what, int error_number) const;
  void finish_compression();
  void sync_and_close();

  std::string path_;       // as the user named it, for messages
  std::string target_;     // with symbolic links resolved
  std::string temporary_;  // equals target_ when written in place
  bool in_place_ = false;
  int file_ = -1;
  gzFile compressor_ = nullptr;
};

}  // namespace spillway
