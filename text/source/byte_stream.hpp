// The bytes of a file of a source, in order, uncompressed where the file is gzip.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file_descriptor.hpp"
#include "text/source/text_files.hpp"

namespace spillway {

class ByteStream {
 public:
  // From byte `from` of the uncompressed bytes on; those of a gzip file before it are read, too.
  // Throws InputError when the file cannot be opened, or is no regular file any more.
  ByteStream(const TextFile& file, bool gzip, std::uint64_t from = 0);
  ByteStream(ByteStream&&) noexcept;
  ~ByteStream();

  // Appends the next bytes, at most `most`, to `text`; false: there are none. Throws InputError:
  // the file ends before it did when it was found, or its gzip is damaged.
  bool read(std::string& text, std::size_t most = block_bytes);
  // Where read() goes on.
  std::uint64_t position() const { return position_; }

  static constexpr std::size_t block_bytes = std::size_t{256} << 10;

 private:
  struct Inflater;
  std::uint64_t left_in_file() const;
  std::size_t read_file(char* bytes, std::size_t most);
  std::size_t inflate(char* bytes, std::size_t most);

  const TextFile* file_;
  FileDescriptor descriptor_;
  std::uint64_t file_position_ = 0, position_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

}  // namespace spillway
