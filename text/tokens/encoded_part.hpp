// Parts of a source as tokens, made by several threads and handed out in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "text/chat/document_reader.hpp"

namespace spillway {

struct EncodedPart {
  struct Piece {
    std::size_t end = 0;   // of `tokens`
    bool goes_on = false;  // the next piece is of the same document
  };
  std::vector<Token> tokens;
  std::vector<TokenRun> trained;  // of `tokens`
  std::vector<Piece> pieces;
  DocumentCounts counts;
};

class PartEncoder {
 public:
  // Parts from number `first` on; the references outlive this. A few parts for each thread are held
  // at a time.
  PartEncoder(const Source& source, const Tokenizer& tokenizer, const DocumentSettings& settings,
              std::size_t first, int threads);
  ~PartEncoder();
  PartEncoder(const PartEncoder&) = delete;
  PartEncoder& operator=(const PartEncoder&) = delete;

  // The next part; nothing where it is not there within a fraction of a second. Throws what its
  // reader threw: always the failure of the first part that fails.
  std::optional<EncodedPart> next();

 private:
  struct Outcome {
    EncodedPart part;
    std::exception_ptr failure;
  };
  void run();
  EncodedPart encode(DocumentReader& reader, std::size_t part) const;

  const Source& source_;
  const Tokenizer& tokenizer_;
  const DocumentSettings& settings_;
  std::size_t most_ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_taken_, next_wanted_;
  bool stop_ = false;
  std::map<std::size_t, Outcome> done_;
  std::vector<std::thread> threads_;
};

}  // namespace spillway
