// The weights of a model from a folder in Hugging Face's layout: streamed, converted to fp32 and
// put into the order that units have here, in a fixed amount of memory whatever the model's size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/data/element_type.hpp"
#include "exec/data/read_ahead.hpp"
#include "exec/data/safetensors_folder.hpp"
#include "exec/data/transposed_matrix.hpp"
#include "exec/io/io_choice.hpp"
#include "policies/model/hugging_face_tensors.hpp"

namespace spillway {

// Of a model with adapters: its own tensors, in the model's folder, or those of its adapters, in a
// folder of PEFT's.
enum class CheckpointPart : std::uint8_t { model, adapter };

// Used by one thread.
class Checkpoint {
 public:
  // Opens the files and checks that they hold every tensor of that part of the model in its shape,
  // as F32, F16 or BF16, and none that it does not have. Throws InputError naming the tensors,
  // before any memory is taken.
  Checkpoint(const std::filesystem::path& folder, const ModelSpec& model,
             RingFactory make_ring = make_usual_ring, CheckpointPart part = CheckpointPart::model);

  // Elements [first, first + count) of a unit; its padding, and what is of the other part, is zero.
  // In ascending order it runs at the drive's speed. Throws MachineError.
  void read(std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to);

  const std::filesystem::path& folder() const { return folder_; }
  // Of names, shapes and places of all tensors: XXH3 of the files' headers.
  std::uint64_t hash() const { return files_.hash(); }
  // Of their data. What nobody has read yet is read. Throws MachineError.
  std::uint64_t data_hash() { return reader_->hash(); }
  // From here on told how much has been read, while it is read (ReadAhead::tell).
  void tell(std::function<void(std::uint64_t done, std::uint64_t all)> progress) {
    reader_->tell(std::move(progress));
  }
  // Memory for a strip of a matrix that lies transposed in its file. A matrix that is larger is
  // read once for each strip. Call it before the first reading.
  void set_strip_bytes(std::int64_t bytes) { transposed_ = TransposedMatrix(bytes); }
  // Taken to read; 0 before the first reading.
  std::uint64_t memory_bytes() const {
    return reader_->memory_bytes() + transposed_.memory_bytes();
  }
  // Of adapters that Spillway wrote: the hash of the weights that they were trained beside, 0 where
  // these were drawn from a seed.
  std::optional<std::uint64_t> frozen_hash() const;
  std::uint64_t bytes() const { return bytes_; }  // of the model's tensors, in the files
  const std::vector<SafetensorsFile>& files() const { return files_.files(); }

  // Elements of a unit that lie in a file just as they are in memory.
  struct InFile {
    std::uint64_t first = 0, count = 0;  // elements of the unit
    std::size_t file = 0;                // of files()
    std::uint64_t offset = 0;            // bytes from the start of the file
  };
  // All tensors of a unit, ascending. Call it where why_otherwise() is empty.
  std::vector<InFile> in_files(std::int64_t unit) const;
  // Why the elements of a unit, as `type`, do not lie in the files just as they are in memory, in
  // words; empty: they do.
  std::string why_otherwise(std::int64_t unit, ElementType type) const;
  // "942 MB as BF16 in 2 files".
  std::string describe() const;

 private:
  struct Tensor {
    HuggingFaceTensor what;
    ElementType type = ElementType::f32;
    std::size_t file = 0;
    std::uint64_t offset = 0;  // bytes from the start of the file
    std::size_t extent = 0;
    std::uint64_t at = 0;  // bytes from the extent's start
  };
  void match(const ModelSpec& model);
  void plan(const RingFactory& make_ring);
  // Elements of a tensor in the order of its file, and as they lie in the unit.
  void read_stored(const Tensor& tensor, std::int64_t first, std::int64_t count, float* to);
  void read_tensor(const Tensor& tensor, std::int64_t first, std::int64_t count, float* to);

  std::filesystem::path folder_;
  CheckpointPart part_;
  SafetensorsFolder files_;
  std::vector<std::vector<Tensor>> units_;
  std::uint64_t bytes_ = 0;
  std::unique_ptr<ReadAhead> reader_;
  TransposedMatrix transposed_;
};

}  // namespace spillway
