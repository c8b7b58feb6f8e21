#include "text/tokens/token_corpus.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t most_files = 100'000;

// The file that number `at` lies in, where file i begins with number first[i].
std::size_t file_of(const std::vector<std::uint64_t>& first, std::uint64_t at) {
  return static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), at) -
                                  first.begin()) -
         1;
}

std::vector<TokenFile> open_own_folder(const fs::path& folder) {
  std::vector<TokenFile> files;
  for (std::uint32_t shard = 0; shard < most_files; ++shard) {
    const fs::path path = folder / token_file_name(shard);
    std::error_code error;
    if (!fs::exists(path, error)) break;
    files.emplace_back(path);
    const TokenFileHeader& header = files.back().header();
    if (header.shard != shard || header.identity != files.front().header().identity ||
        header.tokenizer != files.front().header().tokenizer ||
        header.vocabulary != files.front().header().vocabulary)
      throw InputError(path.string() + " is not of the same tokens as the files before it",
                       "tokenize into a folder of its own");
    if (header.last()) return files;
  }
  throw InputError(folder.string() + " is not finished: its last file is missing",
                   "run the same `spillway tokenize` again: it goes on where it stopped");
}

std::vector<TokenFile> open_foreign_folder(const fs::path& folder, std::optional<TokenFormat> raw) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".bin") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  if (paths.empty())
    throw InputError("there are no tokens in " + folder.string(),
                     "name a folder that `spillway tokenize` wrote, or one with .bin files");
  std::vector<TokenFile> files;
  for (const fs::path& path : paths) files.emplace_back(path, raw);
  return files;
}

}  // namespace

std::string token_file_name(std::uint32_t shard) { return fmt::format("{:05}.tokens", shard); }

TokenCorpus::TokenCorpus(std::vector<TokenFile> files) : files_(std::move(files)) {
  SPILLWAY_ASSERT(!files_.empty());
  first_token_.push_back(0);
  first_document_.push_back(0);
  for (const TokenFile& file : files_) {
    first_token_.push_back(first_token_.back() + file.tokens());
    first_document_.push_back(first_document_.back() + file.documents());
    trained_ += file.header().trained;
    records_ = records_ || file.header().records();
    has_documents_ = has_documents_ && file.format() == TokenFormat::spillway;
  }
}

TokenCorpus TokenCorpus::open(const fs::path& path, std::optional<TokenFormat> raw) {
  std::error_code error;
  std::vector<TokenFile> files;
  if (!fs::is_directory(path, error))
    files.emplace_back(path, raw);
  else if (fs::exists(path / token_file_name(0), error))
    files = open_own_folder(path);
  else
    files = open_foreign_folder(path, raw);
  return TokenCorpus(std::move(files));
}

void TokenCorpus::verify() const {
  for (const TokenFile& file : files_) file.verify();
}

void TokenCorpus::require_below(std::uint64_t vocabulary) const {
  for (const TokenFile& file : files_) file.require_below(vocabulary);
}

std::uint64_t TokenCorpus::hash() const {
  std::vector<std::uint64_t> hashes;
  for (const TokenFile& file : files_) hashes.push_back(file.content_hash());
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof hashes.front());
}

TokenCorpus::Range TokenCorpus::document(std::uint64_t number) const {
  SPILLWAY_ASSERT(number < documents());
  const std::size_t file = file_of(first_document_, number);
  const std::uint64_t within = number - first_document_[file];
  return {first_token_[file] + files_[file].document_begin(within),
          first_token_[file] + files_[file].document_end(within)};
}

void TokenCorpus::read(std::uint64_t first, std::span<Token> tokens) const {
  SPILLWAY_ASSERT(first <= this->tokens() && tokens.size() <= this->tokens() - first);
  while (!tokens.empty()) {
    const std::size_t file = file_of(first_token_, first);
    const auto part =
        tokens.first(std::min<std::uint64_t>(tokens.size(), first_token_[file + 1] - first));
    files_[file].read(first - first_token_[file], part);
    first += part.size();
    tokens = tokens.subspan(part.size());
  }
}

std::uint64_t TokenCorpus::count_trained(std::uint64_t first, std::uint64_t count) const {
  SPILLWAY_ASSERT(first <= tokens() && count <= tokens() - first);
  if (all_trained()) return count;
  std::uint64_t trained = 0;
  while (count > 0) {
    const std::size_t file = file_of(first_token_, first);
    const std::uint64_t part = std::min(count, first_token_[file + 1] - first);
    trained += files_[file].count_trained(first - first_token_[file], part);
    first += part;
    count -= part;
  }
  return trained;
}

}  // namespace spillway
