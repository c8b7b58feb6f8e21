// Tensors to and from one safetensors file (format: huggingface/safetensors, README).
//
// u64 little-endian length n of the header, n bytes of JSON padded with spaces, then the data. The
// padding makes the data start at a multiple of 4096, which every reader accepts and unbuffered I/O
// needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/new_file.hpp"
#include "exec/data/element_type.hpp"

namespace spillway {

struct SafetensorsTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // row-major; empty: a scalar
  ElementType type = ElementType::f32;
};

// Fills `piece` with the bytes of tensor `tensor` (index) from byte `offset` of it on. Called in
// order of the file, with pieces of a few MiB that hold whole elements.
using SafetensorsSource =
    std::function<void(std::size_t tensor, std::uint64_t offset, std::span<std::byte> piece)>;

// Writes a new file (base/new_file.hpp) that takes the name `path` once it is complete and synced:
// an old file stays whole until then. Throws InputError (no such folder; a link, or a file that is
// not `only`, lies there), MachineError (disk full, I/O error). Names are distinct.
void write_safetensors(const FilePlace& place, const std::vector<SafetensorsTensor>& tensors,
                       const SafetensorsSource& source,
                       const std::map<std::string, std::string>& metadata = {},
                       const ReplaceOnly* only = nullptr);

// An open file whose header has been checked: valid JSON of at most 100 MB, names distinct, sizes
// that agree with shapes, data without holes and overlaps up to the end of the file.
class SafetensorsFile {
 public:
  struct Tensor {
    std::string name;
    std::string type;  // "F32"
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  // bytes from data_start()
  };

  // Throws InputError naming the file and what is wrong with it, MachineError where it cannot be
  // read.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::vector<Tensor>& tensors() const { return tensors_; }  // in order of their data
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::uint64_t data_start() const { return data_start_; }  // bytes from the start of the file
  std::uint64_t bytes() const { return bytes_; }            // of the whole file
  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return file_.get(); }
  std::uint64_t header_hash() const { return header_hash_; }  // XXH3 of the header

  // All elements of an F32 tensor. Throws InputError: no such tensor, or of another type.
  std::vector<float> read(const std::string& name) const;

 private:
  void parse(const std::string& header);
  void check_layout(std::uint64_t data_bytes) const;
  [[noreturn]] void refuse(const std::string& what) const;

  std::filesystem::path path_;
  FileDescriptor file_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::uint64_t data_start_ = 0, bytes_ = 0, header_hash_ = 0;
};

}  // namespace spillway
