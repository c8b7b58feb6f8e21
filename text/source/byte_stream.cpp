#include "text/source/byte_stream.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>

#include "base/errors.hpp"

namespace spillway {

struct ByteStream::Inflater {
  Inflater() {
    constexpr int gzip_window = 15 + 16;
    if (::inflateInit2(&stream, gzip_window) != Z_OK) throw std::bad_alloc();
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { ::inflateEnd(&stream); }

  z_stream stream{};
  std::string compressed;
  bool in_member = false;  // of several that may follow each other
};

ByteStream::ByteStream(const TextFile& file, bool gzip, std::uint64_t from) : file_(&file) {
  std::string why_not;
  descriptor_ = file.open(why_not);
  if (!descriptor_.valid())
    throw InputError(file.path().string() + " is no file to read: " + why_not,
                     "leave the files as they are while they are read");
  if (!gzip) {
    file_position_ = position_ = from;
    return;
  }
  inflater_ = std::make_unique<Inflater>();
  std::string passed;
  while (position_ < from && read(passed, std::min<std::uint64_t>(block_bytes, from - position_)))
    passed.clear();
}

ByteStream::ByteStream(ByteStream&&) noexcept = default;
ByteStream::~ByteStream() = default;

bool ByteStream::read(std::string& text, std::size_t most) {
  const std::size_t before = text.size();
  if (!inflater_) most = std::min<std::uint64_t>(most, left_in_file());
  text.resize(before + most);
  const std::size_t count =
      inflater_ ? inflate(text.data() + before, most) : read_file(text.data() + before, most);
  text.resize(before + count);
  position_ += count;
  return count > 0;
}

// What was added since the file was found is no part of it.
std::uint64_t ByteStream::left_in_file() const {
  return file_->bytes() - std::min(file_->bytes(), file_position_);
}

std::size_t ByteStream::read_file(char* bytes, std::size_t most) {
  most = std::min<std::uint64_t>(most, left_in_file());
  while (most > 0) {
    const ssize_t count =
        ::pread(descriptor_.get(), bytes, most, static_cast<off_t>(file_position_));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_to_read(file_->path(), errno);
    if (count == 0)
      throw InputError(file_->path().string() + " has become shorter while it was read",
                       "leave the files as they are while they are read");
    file_position_ += static_cast<std::uint64_t>(count);
    return static_cast<std::size_t>(count);
  }
  return 0;
}

std::size_t ByteStream::inflate(char* bytes, std::size_t most) {
  z_stream& stream = inflater_->stream;
  const auto refuse = [&](const char* what) {
    throw InputError(
        fmt::format("{} {} ({} bytes came out)", file_->path().string(), what, position_),
        "copy or compress the file again");
  };
  stream.next_out = reinterpret_cast<Bytef*>(bytes);
  stream.avail_out = static_cast<uInt>(most);
  while (stream.avail_out == most) {
    if (stream.avail_in == 0) {
      inflater_->compressed.resize(std::min<std::uint64_t>(block_bytes, left_in_file()));
      const std::size_t count =
          read_file(inflater_->compressed.data(), inflater_->compressed.size());
      if (count == 0) {
        if (inflater_->in_member) refuse("is cut off: its gzip has no end");
        return 0;
      }
      stream.next_in = reinterpret_cast<Bytef*>(inflater_->compressed.data());
      stream.avail_in = static_cast<uInt>(count);
    }
    inflater_->in_member = true;
    const int result = ::inflate(&stream, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      inflater_->in_member = false;
      ::inflateReset(&stream);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      refuse("is damaged: its gzip cannot be read");
    }
  }
  return most - stream.avail_out;
}

}  // namespace spillway
