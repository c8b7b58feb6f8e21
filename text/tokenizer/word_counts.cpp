#include "text/tokenizer/word_counts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>

#include "base/errors.hpp"
#include "text/tokenizer/added_tokens.hpp"
#include "text/tokenizer/utf8.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t part_bytes = 4 << 20;

using Counts = std::unordered_map<std::string, std::uint64_t>;

// Hands out the parts of the files, one after the other.
class Parts {
 public:
  Parts(const WordCounting& how, const Source& source) : how_(how), source_(source) {}

  // Null: there are no more.
  const SourcePart* next() {
    const std::scoped_lock lock(mutex_);
    return next_ < source_.parts().size() ? &source_.parts()[next_++] : nullptr;
  }
  void done(const SourcePart& part, const SourceCounts& counts) {
    const std::scoped_lock lock(mutex_);
    counts_.add(counts);
    bytes_ += part.end - part.begin;
    if (how_.progress) how_.progress(bytes_, source_.bytes());
  }
  const SourceCounts& counts() const { return counts_; }

 private:
  const WordCounting& how_;
  const Source& source_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::uint64_t bytes_ = 0;
  SourceCounts counts_;
};

// The texts of a record, and the roles of a chat, which templates write; not the names of fields.
std::vector<std::string_view> texts_of(const Record& record) {
  struct Texts {
    std::vector<std::string_view> operator()(const TextRecord& text) { return {text.text}; }
    std::vector<std::string_view> operator()(const CompletionRecord& completion) {
      return {completion.prompt, completion.completion};
    }
    std::vector<std::string_view> operator()(const InstructionRecord& instruction) {
      return {instruction.instruction, instruction.input, instruction.output};
    }
    std::vector<std::string_view> operator()(const ChatRecord& chat) {
      std::vector<std::string_view> texts;
      for (const ChatMessage& message : chat.messages) {
        texts.push_back(message.role);
        texts.push_back(message.content);
      }
      return texts;
    }
  };
  return std::visit(Texts(), record.content);
}

// Counts the words of parts until there are no more.
class Counter {
 public:
  Counter(const WordCounting& how, const PreTokenizer& steps, const AddedTokenFinder& special)
      : how_(how), cutter_(steps), special_(special) {}

  void run(const Source& source, Parts& parts) {
    while (const SourcePart* const part = parts.next()) {
      SourceCounts counts;
      source.read(
          *part,
          [this](Record&& record) {
            for (const std::string_view text : texts_of(record)) add(text);
          },
          counts);
      parts.done(*part, counts);
    }
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
  const Source source(how.source, part_bytes);
  Parts parts(how, source);
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
          counters[i].run(source, parts);
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
  const SourceCounts& read = parts.counts();
  WordCounts result{{}, read.bytes, source.files().size(), source.skipped().text()};
  result.malformed = read.malformed;
  result.words.reserve(all.size());
  while (!all.empty()) {
    auto node = all.extract(all.begin());
    result.words.emplace_back(std::move(node.key()), node.mapped());
  }
  std::sort(result.words.begin(), result.words.end());
  return result;
}

}  // namespace spillway
