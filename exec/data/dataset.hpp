// Byte-level training text: files in memory, one token per byte, vocabulary 256. A sequence begins
// at a random byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

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
  static constexpr std::uint64_t default_memory_limit = std::uint64_t{4} << 30;

  // Reads `paths`: text files, and folders with all text files below them (find_text_files() says
  // which). The files are sorted by path and each is taken once, so the order of the arguments does
  // not matter. What is not text (text/source/text_content.hpp) is skipped in a folder and refused
  // where it is named; `binary` takes all files as they are. Throws InputError naming the path:
  // missing, unreadable, neither file nor folder, no text, nothing to read, or more than
  // memory_limit bytes.
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

  std::uint64_t size() const override { return corpus_.size(); }  // bytes
  std::uint64_t hash() const override;                            // XXH3 of the corpus
  std::span<const std::uint8_t> corpus() const { return corpus_; }
  const std::vector<DatasetFile>& files() const { return files_; }
  const SkippedFiles& skipped() const { return skipped_; }

 private:
  void read(const TextFile& file, std::uint64_t memory_limit, bool binary);
  std::string describe() const;  // "corpus.txt" or "12 files from data"

  std::uint64_t seed_;
  std::vector<DatasetFile> files_;
  SkippedFiles skipped_;
  std::vector<std::uint8_t> corpus_;
};

}  // namespace spillway
