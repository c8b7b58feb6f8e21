// Byte-level training text: one token per byte, vocabulary 256. A sequence begins at a random byte.
//
// The first files are held in memory, as many as fit into its limit; those that do not fit are
// mapped (base/mapped_file.hpp) and must not be cut while they are trained on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "exec/data/batches.hpp"
#include "text/source/text_files.hpp"

namespace spillway {

struct DatasetFile {
  std::filesystem::path path;
  std::uint64_t first_byte = 0;  // in the corpus
  std::uint64_t bytes = 0;
};

class Dataset : public Batches {
 public:
  static constexpr std::uint64_t default_memory_limit = std::uint64_t{1} << 30;

  // Reads `paths`: text files, and folders with all text files below them (find_text_files() says
  // which). The files are sorted by path and each is taken once, so the order of the arguments does
  // not matter. What is not text (text/source/text_content.hpp) is skipped in a folder and refused
  // where it is named; `binary` takes all files as they are. Throws InputError naming the path:
  // missing, unreadable, neither file nor folder, no text, nothing to read.
  Dataset(const std::vector<std::filesystem::path>& paths, std::uint64_t seed,
          std::uint64_t memory_limit = default_memory_limit, bool binary = false);

  // T + 1 bytes are needed for a sequence.
  void require(std::int64_t sequence_length, std::int64_t vocabulary) const override;

  // Every target counts, and starts are not written. Throws InputError when the corpus is shorter
  // than T + 1 bytes.
  void batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
             std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
             std::int32_t* starts = nullptr) const override;

  // Corpus bytes first .. + tokens.size() - 1 as tokens.
  void tokens(std::uint64_t first, std::span<std::int32_t> tokens) const;

  // Keeps the last `fraction` of the bytes out of every batch: what is held out is the end, so that
  // no sequence has a part on either side. Throws InputError where nothing would be left.
  void hold_out(double fraction);
  std::uint64_t trained_bytes() const { return trained_bytes_; }  // the others are held out

  std::uint64_t size() const override { return bytes_; }
  std::uint64_t hash()
      const override;  // XXH3 of the corpus and, if any, of what is held out; read once
  const std::vector<DatasetFile>& files() const { return files_; }
  const SkippedFiles& skipped() const { return skipped_; }

 private:
  void read(const TextFile& file, std::uint64_t memory_limit, bool binary);
  const DatasetFile& file_at(std::uint64_t byte) const;
  // Calls visit(bytes) for the pieces of the corpus from byte `first` on, until it returns false.
  void for_each_piece(std::uint64_t first,
                      const std::function<bool(std::span<const std::uint8_t>)>& visit) const;
  std::uint64_t hash_all() const;
  std::string describe() const;  // "corpus.txt" or "12 files from data"

  std::uint64_t seed_;
  std::vector<DatasetFile> files_;
  SkippedFiles skipped_;
  std::uint64_t bytes_ = 0, trained_bytes_ = 0;
  std::vector<std::uint8_t> memory_;  // of the files that are held in it, one after the other
  // Where each file's bytes are: mapped, or, with none, in memory_ from `in_memory` on.
  struct Content {
    MappedFile mapped;
    std::uint64_t in_memory = 0;
  };
  std::vector<Content> contents_;
  mutable std::mutex hash_mutex_;
  mutable std::optional<std::uint64_t> hash_;  // once it was asked for
};

// The bytes of a corpus from byte `first` on, as sequences that follow each other: sequence i of
// step s is number s * sequences_per_step + i, and beyond the last one no target counts.
class HeldOutBytes : public Batches {
 public:
  HeldOutBytes(std::shared_ptr<const Dataset> dataset, std::uint64_t first,
               std::int64_t sequences_per_step)
      : dataset_(std::move(dataset)), first_(first), sequences_per_step_(sequences_per_step) {}

  void require(std::int64_t sequence_length, std::int64_t vocabulary) const override;
  void batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
             std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
             std::int32_t* starts) const override;
  std::int64_t counted_tokens(std::int64_t step, std::int64_t sequences,
                              std::int64_t sequence_length) const override;
  std::uint64_t size() const override { return dataset_->size() - first_; }
  std::uint64_t hash() const override { return dataset_->hash(); }
  // Steps until all sequences were there once.
  std::int64_t batches(std::int64_t sequence_length) const;

 private:
  std::int64_t sequences(std::int64_t sequence_length) const;

  std::shared_ptr<const Dataset> dataset_;
  std::uint64_t first_;
  std::int64_t sequences_per_step_;
};

}  // namespace spillway
