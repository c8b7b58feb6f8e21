#include "text/tokenizer/word_counts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>

#include "base/errors.hpp"
#include "text/source/text_content.hpp"
#include "text/source/text_files.hpp"
#include "text/tokenizer/added_tokens.hpp"
#include "text/tokenizer/utf8.hpp"

namespace spillway {

namespace {

constexpr std::size_t block_bytes = 4 << 20;

using Counts = std::unordered_map<std::string, std::uint64_t>;

// Hands out blocks of the files, one after the other.
class Blocks {
 public:
  explicit Blocks(const WordCounting& how)
      : how_(how), files_(find_text_files(how.paths, skipped_)) {
    for (const TextFile& file : files_) all_ += file.bytes();
  }

  // Nothing: there is no more.
  std::optional<std::string> next() {
    const std::scoped_lock lock(mutex_);
    while (true) {
      if (!file_.valid() && !open_next()) return {};
      std::string block = std::move(rest_);
      rest_.clear();
      if (!fill(block)) file_ = FileDescriptor();
      if (block.empty()) continue;
      bytes_ += block.size();
      if (how_.progress) how_.progress(bytes_, std::max(all_, bytes_));
      return block;
    }
  }

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t files() const { return taken_; }
  std::string skipped() const { return skipped_.text(); }

 private:
  bool open_next() {
    while (at_ < files_.size()) {
      const TextFile& file = files_[at_++];
      std::string why_not;
      file_ = file.open(why_not);
      path_ = file.path();
      if (file_.valid()) {
        std::string head(65536, '\0');
        const ssize_t count = ::pread(file_.get(), head.data(), head.size(), 0);
        if (count < 0) refuse_to_read(path_, errno);
        TextContent content;
        content.add(
            {reinterpret_cast<const std::uint8_t*>(head.data()), static_cast<std::size_t>(count)});
        why_not = content.not_text();
      }
      if (why_not.empty()) {
        ++taken_;
        return true;
      }
      file_ = FileDescriptor();
      skipped_.add(path_, why_not);
    }
    return false;
  }

  // Fills the block and puts what follows its last line aside. False: the file has ended.
  bool fill(std::string& block) {
    std::size_t have = block.size();
    block.resize(std::max(block_bytes, 2 * have));
    bool ended = false;
    while (have < block.size()) {
      const ssize_t count = ::read(file_.get(), block.data() + have, block.size() - have);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) refuse_to_read(path_, errno);
      if (count == 0) {
        ended = true;
        break;
      }
      have += static_cast<std::size_t>(count);
    }
    block.resize(have);
    if (ended) return false;
    const std::size_t line = block.rfind('\n');
    const std::size_t end = line == std::string::npos ? have : line + 1;
    rest_ = block.substr(end);
    block.resize(end);
    return true;
  }

  const WordCounting& how_;
  SkippedFiles skipped_;
  std::vector<TextFile> files_;
  std::uint64_t all_ = 0, bytes_ = 0, taken_ = 0;
  std::mutex mutex_;
  std::size_t at_ = 0;
  std::filesystem::path path_;
  FileDescriptor file_;
  std::string rest_;
};

// Counts the words of blocks until there are no more.
class Counter {
 public:
  Counter(const WordCounting& how, const PreTokenizer& steps, const AddedTokenFinder& special)
      : how_(how), cutter_(steps), special_(special) {}

  void run(Blocks& blocks) {
    while (const auto block = blocks.next()) add(*block);
  }
  Counts& counts() { return counts_; }

 private:
  void add(std::string_view text) {
    for (std::size_t at = 0; at < text.size(); ++at) {
      const std::size_t valid = valid_utf8(text.substr(at));
      add_valid(text.substr(at, valid));
      at += valid;
    }
  }

  void add_valid(std::string_view text) {
    const auto count = [this](std::string_view word) {
      word_ = word;
      ++counts_[word_];
    };
    for (std::size_t at = 0; at < text.size();) {
      const auto found = special_.find(text, at, SpecialTokens::parsed);
      const std::size_t end = found ? found->begin : text.size();
      normalized_ = text.substr(at, end - at);
      normalize(how_.normalizer, true, normalized_);
      cutter_.cut({normalized_}, count);
      if (!found) break;
      at = found->end;
    }
  }

  const WordCounting& how_;
  PreTokenizer::Cutter cutter_;
  const AddedTokenFinder& special_;
  Counts counts_;
  std::string normalized_, word_;
};

}  // namespace

WordCounts count_words(const WordCounting& how) {
  const PreTokenizer steps(how.steps, "the pattern of words");
  std::vector<AddedTokenFinder::Entry> names;
  for (const std::string& name : how.special) names.push_back({name, {}});
  const AddedTokenFinder special(std::move(names));
  Blocks blocks(how);
  std::vector<Counter> counters;
  const std::size_t threads = std::max<std::size_t>(how.threads, 1);
  counters.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) counters.emplace_back(how, steps, special);
  std::vector<std::exception_ptr> errors(threads);
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < threads; ++i) {
      workers.emplace_back([&, i] {
        try {
          counters[i].run(blocks);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  Counts& all = counters.front().counts();
  for (std::size_t i = 1; i < threads; ++i) {
    for (auto& [word, count] : counters[i].counts()) all[word] += count;
    counters[i].counts().clear();
  }
  if (all.empty())
    throw InputError("there is no text to train a tokenizer on", "name text files or folders");
  WordCounts result{{}, blocks.bytes(), blocks.files(), blocks.skipped()};
  result.words.reserve(all.size());
  while (!all.empty()) {
    auto node = all.extract(all.begin());
    result.words.emplace_back(std::move(node.key()), node.mapped());
  }
  std::sort(result.words.begin(), result.words.end());
  return result;
}

}  // namespace spillway
