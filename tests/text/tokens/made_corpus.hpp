// Documents of random tokens for tests, and token files of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <vector>

#include "text/tokens/token_corpus.hpp"
#include "text/tokens/token_file_writer.hpp"

namespace spillway::test {

struct MadeDocument {
  std::vector<Token> tokens;
  std::vector<bool> trained;
};

// `count` documents of 1 to `most` tokens; about two thirds of the tokens are trained on, in runs.
inline std::vector<MadeDocument> made_documents(std::uint64_t seed, std::size_t count,
                                                std::size_t most, std::uint64_t vocabulary,
                                                bool all_trained = false) {
  std::mt19937_64 random(seed);
  std::vector<MadeDocument> documents(count);
  for (MadeDocument& document : documents) {
    const std::size_t tokens = 1 + random() % most;
    bool trained = all_trained || random() % 3 != 0;
    for (std::size_t i = 0; i < tokens; ++i) {
      document.tokens.push_back(static_cast<Token>(random() % vocabulary));
      document.trained.push_back(trained);
      if (!all_trained && random() % 5 == 0) trained = random() % 3 != 0;
    }
  }
  return documents;
}

inline void write_made(const std::filesystem::path& path,
                       const std::vector<MadeDocument>& documents, std::uint64_t vocabulary,
                       std::uint32_t shard = 0, bool last = true) {
  TokenFileHeader header;
  header.vocabulary = vocabulary;
  header.token_bytes = vocabulary <= 65536 ? 2 : 4;
  header.identity = 17;
  header.shard = shard;
  TokenFileWriter writer(FilePlace(path), header);
  for (const MadeDocument& document : documents) {
    std::vector<TokenRun> runs;
    for (std::size_t i = 0; i < document.tokens.size(); ++i)
      if (document.trained[i]) runs.push_back({i, i + 1});
    writer.add(document.tokens, runs);
    writer.end_document();
  }
  writer.commit("{}", last);
}

// With at most `documents_a_file` documents in a file.
inline void write_made_folder(const std::filesystem::path& folder,
                              const std::vector<MadeDocument>& documents, std::uint64_t vocabulary,
                              std::size_t documents_a_file) {
  std::uint32_t shard = 0;
  for (std::size_t first = 0; first < documents.size(); first += documents_a_file) {
    const std::size_t end = std::min(documents.size(), first + documents_a_file);
    write_made(folder / token_file_name(shard),
               {documents.begin() + static_cast<std::ptrdiff_t>(first),
                documents.begin() + static_cast<std::ptrdiff_t>(end)},
               vocabulary, shard, end == documents.size());
    ++shard;
  }
}

}  // namespace spillway::test
