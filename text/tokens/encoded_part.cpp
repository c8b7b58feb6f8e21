#include "text/tokens/encoded_part.hpp"

#include <chrono>

namespace spillway {

namespace {

// What a reader has read since `before`.
DocumentCounts counts_since(const DocumentCounts& before, const DocumentCounts& now) {
  DocumentCounts part = now;
  part.source.records -= before.source.records;
  part.source.malformed -= before.source.malformed;
  part.source.bytes -= before.source.bytes;
  if (part.source.malformed == 0 || before.source.malformed > 0) part.source.first_malformed = "";
  part.documents -= before.documents;
  part.tokens -= before.tokens;
  part.trained_tokens -= before.trained_tokens;
  part.untrained -= before.untrained;
  return part;
}

}  // namespace

PartEncoder::PartEncoder(const Source& source, const Tokenizer& tokenizer,
                         const DocumentSettings& settings, std::size_t first, int threads)
    : source_(source),
      tokenizer_(tokenizer),
      settings_(settings),
      most_ahead_(static_cast<std::size_t>(threads) * 2),
      next_taken_(first),
      next_wanted_(first) {
  for (int thread = 0; thread < threads; ++thread) threads_.emplace_back([this] { run(); });
}

PartEncoder::~PartEncoder() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PartEncoder::run() {
  std::optional<DocumentReader> reader;
  while (true) {
    std::size_t number = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || next_taken_ < next_wanted_ + most_ahead_; });
      if (stop_ || next_taken_ >= source_.parts().size()) return;
      number = next_taken_++;
    }
    Outcome outcome;
    try {
      if (!reader) reader.emplace(source_, tokenizer_, settings_);
      outcome.part = encode(*reader, number);
    } catch (...) {
      outcome.failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      done_.emplace(number, std::move(outcome));
    }
    changed_.notify_all();
  }
}

EncodedPart PartEncoder::encode(DocumentReader& reader, std::size_t number) const {
  EncodedPart part;
  const DocumentCounts before = reader.counts();
  reader.read(source_.parts()[number], [&](Document&& document) {
    const std::size_t first = part.tokens.size();
    part.tokens.insert(part.tokens.end(), document.tokens.begin(), document.tokens.end());
    for (const TokenRun& run : document.trained)
      part.trained.push_back({first + run.first, first + run.end});
    part.pieces.push_back({part.tokens.size(), document.goes_on});
  });
  part.counts = counts_since(before, reader.counts());
  return part;
}

std::optional<EncodedPart> PartEncoder::next() {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return done_.contains(next_wanted_); };
  if (!changed_.wait_for(lock, std::chrono::milliseconds(100), there)) return {};
  Outcome outcome = std::move(done_.at(next_wanted_));
  if (outcome.failure) std::rethrow_exception(outcome.failure);
  done_.erase(next_wanted_++);
  lock.unlock();
  changed_.notify_all();
  return std::move(outcome.part);
}

}  // namespace spillway
