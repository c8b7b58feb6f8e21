// Files of tokens. After 'h', the numbers of a header of Spillway's own and then its parts, which
// get magic, version and checksums; after '2' or '4', bare tokens of so many bytes; other input is
// a whole file.
#include "text/tokens/token_file.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "tests/fuzz/fuzz.hpp"
#include "text/tokens/token_file_layout.hpp"
#include "text/tokens/token_file_writer.hpp"

using namespace spillway;

namespace {

std::uint64_t checksum(const std::vector<std::uint8_t>& file, std::uint64_t begin,
                       std::uint64_t end) {
  if (begin > end || end > file.size()) return 0;
  return XXH3_64bits(file.data() + begin, end - begin);
}

// With checksums that hold, where the counts leave room for the parts.
std::vector<std::uint8_t> with_header(fuzz::Bytes input) {
  std::vector<std::uint8_t> file(token_file_header_bytes);
  const std::size_t given = std::min(input.size(), token_file_header_bytes);
  std::copy_n(input.begin(), given, file.begin());
  file.insert(file.end(), input.begin() + static_cast<std::ptrdiff_t>(given), input.end());
  TokenFileHeader header = read_token_header(std::as_bytes(std::span(file)));
  const auto small = [&](std::uint64_t& count) { count %= 2 * file.size(); };
  small(header.tokens);
  small(header.documents);
  small(header.trained);
  small(header.description_bytes);
  const TokenFileParts parts = parts_of(header);
  header.tokens_hash = checksum(file, parts.tokens, parts.ends);
  header.ends_hash = checksum(file, parts.ends, parts.mask);
  header.mask_hash = header.masked() ? checksum(file, parts.mask, parts.description) : 0;
  header.description_hash = checksum(file, parts.description, parts.end);
  const auto bytes = token_header_bytes(header);
  std::memcpy(file.data(), bytes.data(), bytes.size());
  return file;
}

// The same file by our writer.
void write_again(const TokenFile& file, const std::filesystem::path& path) {
  TokenFileWriter writer(FilePlace(path), file.header());
  for (std::uint64_t d = 0; d < file.documents(); ++d) {
    std::vector<Token> tokens(file.document_end(d) - file.document_begin(d));
    file.read(file.document_begin(d), tokens);
    std::vector<TokenRun> trained;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (file.is_trained(file.document_begin(d) + i)) trained.push_back({i, i + 1});
    writer.add(tokens, trained);
    writer.end_document();
  }
  writer.commit(std::string(file.description()), file.header().last());
  const TokenFile again(path);
  again.verify();
  fuzz::require(again.tokens() == file.tokens() && again.documents() == file.documents() &&
                    again.header().trained == file.header().trained &&
                    again.description() == file.description(),
                "written and read again, the counts are the same");
}

}  // namespace

SPILLWAY_FUZZ_TARGET(token_file) {
  static const fuzz::ScratchFolder folder;
  const char kind = input.empty() ? ' ' : static_cast<char>(input.front());
  std::vector<std::uint8_t> bytes(input.begin(), input.end());
  std::optional<TokenFormat> raw;
  if (kind == '2') raw = TokenFormat::uint16;
  if (kind == '4') raw = TokenFormat::uint32;
  if (raw) bytes.erase(bytes.begin());
  if (kind == 'h') bytes = with_header(input.subspan(1));
  const std::filesystem::path path = folder.write("in.tokens", bytes);
  fuzz::accepted([&] {
    const TokenFile file(path, raw);
    std::vector<Token> tokens(file.tokens());
    file.read(0, tokens);
    fuzz::require(file.count_trained(0, file.tokens()) <= file.tokens(), "no more are trained on");
    file.require_below(std::uint64_t{1} << 31);
    file.verify();
    if (file.format() != TokenFormat::spillway) return;
    fuzz::require(std::all_of(tokens.begin(), tokens.end(),
                              [&](Token token) {
                                return token >= 0 &&
                                       static_cast<std::uint64_t>(token) < file.header().vocabulary;
                              }),
                  "tokens are below the vocabulary");
    fuzz::require(fuzz::accepted([&] { write_again(file, folder.path() / "out.tokens"); }),
                  "what was read can be written and read again");
  });
}
