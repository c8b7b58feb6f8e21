#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/safetensors.hpp"

namespace spillway {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::uint64_t data_alignment = 4096;
constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;

// A file that is removed again unless it reaches its final name.
class PartialFile {
 public:
  explicit PartialFile(const std::filesystem::path& target)
      : target_(target),
        partial_(target.string() + ".partial"),
        file_(::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (file_.valid()) return;
    const int error_number = errno;
    if (error_number == ENOENT || error_number == ENOTDIR) {
      throw InputError("cannot write " + target_.string() + ": there is no folder of that name",
                       "create the folder, or check the spelling of the path");
    }
    throw MachineError::from_errno("cannot write " + target_.string(), error_number);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile() {
    if (!done_ && file_.valid()) ::unlink(partial_.c_str());
  }

  // Takes the disk space, so that a full disk shows before hours of data are copied.
  void reserve(std::uint64_t bytes) {
    int error_number = EINTR;
    while (error_number == EINTR) {
      error_number = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(bytes));
    }
    if (error_number == 0) return;
    throw MachineError::from_errno(
        fmt::format("cannot reserve {} for {}", format_bytes(static_cast<double>(bytes)),
                    target_.string()),
        error_number);
  }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw MachineError::from_errno("cannot write " + target_.string(), errno);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  void finish() {
    if (::fsync(file_.get()) != 0 || ::rename(partial_.c_str(), target_.c_str()) != 0) {
      throw MachineError::from_errno("cannot finish " + target_.string(), errno);
    }
    done_ = true;
    // The new name is durable once the folder is; some file systems cannot sync one (EINVAL).
    const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
    const FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened.valid() && ::fsync(opened.get()) != 0 && errno != EINVAL) {
      throw MachineError::from_errno("cannot sync the folder of " + target_.string(), errno);
    }
  }

 private:
  std::filesystem::path target_;
  std::filesystem::path partial_;
  FileDescriptor file_;
  bool done_ = false;
};

std::uint64_t bytes_of(const SafetensorsTensor& tensor) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : tensor.shape) {
    SPILLWAY_ASSERT(size >= 0, tensor.name);
    elements *= static_cast<std::uint64_t>(size);
  }
  return elements * sizeof(float);
}

// The length and the JSON, padded to data_alignment.
std::string make_header(const std::vector<SafetensorsTensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::set<std::string> names = {"__metadata__"};
  std::uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    SPILLWAY_ASSERT(names.insert(tensor.name).second, "two tensors are called " + tensor.name);
    const std::uint64_t end = offset + bytes_of(tensor);
    json[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = json.dump();
  const std::uint64_t start =
      (sizeof(std::uint64_t) + text.size() + data_alignment - 1) / data_alignment * data_alignment;
  const std::uint64_t length = start - sizeof(std::uint64_t);
  text.resize(length, ' ');
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<SafetensorsTensor>& tensors,
                       const SafetensorsSource& source,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = make_header(tensors, metadata);
  std::uint64_t total = header.size();
  for (const SafetensorsTensor& tensor : tensors) total += bytes_of(tensor);

  PartialFile file(path);
  file.reserve(total);
  file.append(std::as_bytes(std::span(header)));
  std::vector<std::byte> buffer(std::min(piece_bytes, total));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = bytes_of(tensors[i]);
    for (std::uint64_t offset = 0; offset < bytes; offset += piece_bytes) {
      const auto piece = std::span(buffer).first(std::min(piece_bytes, bytes - offset));
      source(i, offset, piece);
      file.append(piece);
    }
  }
  file.finish();
}

}  // namespace spillway
