#include "text/tokens/token_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "base/errors.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/text/tokens/made_corpus.hpp"
#include "text/tokens/packing.hpp"
#include "text/tokens/token_corpus.hpp"
#include "text/tokens/token_file_layout.hpp"
#include "text/tokens/token_file_writer.hpp"

using namespace spillway;
using namespace spillway::test;
namespace fs = std::filesystem;

namespace {

std::string bytes_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<Token> all_tokens(const TokenFile& file) {
  std::vector<Token> tokens(file.tokens());
  file.read(0, tokens);
  return tokens;
}

template <class Number>
std::string raw(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

std::string llm_c(std::uint32_t magic, std::uint32_t version, std::uint32_t tokens) {
  std::vector<std::uint32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return raw(header);
}

}  // namespace

TEST_CASE("a token file gives back its documents, tokens and mask, in either width") {
  const TemporaryFolder folder;
  const std::uint64_t vocabulary = GENERATE(std::uint64_t{65536}, std::uint64_t{65537});
  const std::vector<MadeDocument> documents = made_documents(7, 100, 200, vocabulary);
  write_made(folder / "00000.tokens", documents, vocabulary);
  const TokenFile file(folder / "00000.tokens");
  file.verify();
  CHECK(file.header().token_bytes == (vocabulary == 65536 ? 2 : 4));
  REQUIRE(file.documents() == documents.size());
  std::uint64_t trained = 0;
  for (std::uint64_t d = 0; d < documents.size(); ++d) {
    std::vector<Token> tokens(file.document_end(d) - file.document_begin(d));
    file.read(file.document_begin(d), tokens);
    REQUIRE(tokens == documents[d].tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      REQUIRE(file.is_trained(file.document_begin(d) + i) == documents[d].trained[i]);
      if (documents[d].trained[i]) ++trained;
    }
  }
  CHECK(file.header().trained == trained);
  CHECK(file.count_trained(0, file.tokens()) == trained);
  CHECK(file.description() == "{}");
}

TEST_CASE("a token file appears whole or not at all") {
  const TemporaryFolder folder;
  TokenFileHeader header;
  header.vocabulary = 256;
  {
    TokenFileWriter writer(FilePlace(folder / "a.tokens"), header);
    writer.add(std::vector<Token>{1, 2, 3}, {});
  }
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("every byte of a token file matters: a changed one is noticed") {
  const TemporaryFolder folder;
  write_made(folder / "a.tokens", made_documents(3, 4, 6, 300), 300);
  const std::string whole = bytes_in(folder / "a.tokens");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    write_bytes(folder / "b.tokens", changed);
    INFO("byte " << at);
    CHECK_THROWS_AS(TokenFile(folder / "b.tokens").verify(), InputError);
  }
  for (const std::size_t size : {whole.size() - 1, std::size_t{127}, std::size_t{8}}) {
    write_bytes(folder / "b.tokens", whole.substr(0, size));
    CHECK_THROWS_AS(TokenFile(folder / "b.tokens"), InputError);
  }
  write_bytes(folder / "b.tokens", whole + "x");
  CHECK_THROWS_AS(TokenFile(folder / "b.tokens"), InputError);
}

TEST_CASE("llm.c's files are read in both widths, while other versions and cut files are refused") {
  const TemporaryFolder folder;
  const std::vector<std::uint16_t> gpt2 = {50256, 15496, 995, 0};
  write_bytes(folder / "gpt2.bin", llm_c(20240520, 1, 4) + raw(gpt2));
  const TokenFile narrow(folder / "gpt2.bin");
  CHECK(narrow.format() == TokenFormat::llm_c);
  CHECK(all_tokens(narrow) == std::vector<Token>{50256, 15496, 995, 0});
  CHECK_NOTHROW(narrow.require_below(50257));
  CHECK_THROWS_WITH(narrow.require_below(50256), Catch::Contains("has the token 50256 at 0"));

  const std::vector<std::uint32_t> llama = {128000, 9906, 1917};
  write_bytes(folder / "llama.bin", llm_c(20240801, 7, 3) + raw(llama));
  CHECK(all_tokens(TokenFile(folder / "llama.bin")) == std::vector<Token>{128000, 9906, 1917});

  write_bytes(folder / "old.bin", llm_c(20240801, 1, 3) + raw(llama));
  CHECK_THROWS_WITH(TokenFile(folder / "old.bin"), Catch::Contains("is of version 1"));
  write_bytes(folder / "cut.bin", llm_c(20240520, 1, 5) + raw(gpt2));
  CHECK_THROWS_WITH(TokenFile(folder / "cut.bin"), Catch::Contains("it should have 1034"));
}

TEST_CASE("bare tokens are read where their width is said, and not guessed") {
  const TemporaryFolder folder;
  const std::vector<std::uint16_t> tokens = {1, 2, 50256, 4};
  write_bytes(folder / "train.bin", raw(tokens));
  CHECK_THROWS_WITH(TokenFile(folder / "train.bin"), Catch::Contains("holds no tokens"));
  CHECK(all_tokens(TokenFile(folder / "train.bin", TokenFormat::uint16)) ==
        std::vector<Token>{1, 2, 50256, 4});
  const TokenFile wrong(folder / "train.bin", TokenFormat::uint32);
  CHECK_THROWS_WITH(wrong.require_below(50257), Catch::Contains("has the token 131073 at 0"));
  write_bytes(folder / "odd.bin", "abc");
  CHECK_THROWS_WITH(TokenFile(folder / "odd.bin", TokenFormat::uint16),
                    Catch::Contains("has 3 bytes"));
  write_bytes(folder / "headed.bin", llm_c(20240520, 1, 0));
  CHECK_THROWS_WITH(TokenFile(folder / "headed.bin", TokenFormat::uint16),
                    Catch::Contains("has a header"));
}

TEST_CASE(
    "sparse files of more than 4.29 GB and 2^32 tokens are read and packed at their far end") {
  const TemporaryFolder folder;
  const std::uint64_t count = (std::uint64_t{5} << 30) / 2;
  for (const char* name : {"a.bin", "b.bin"}) {
    const fs::path path = folder / name;
    write_bytes(path, "");
    fs::resize_file(path, count * 2);
    const int file = ::open(path.c_str(), O_WRONLY);
    const std::uint16_t last = 4711;
    REQUIRE(::pwrite(file, &last, 2, static_cast<off_t>(count * 2 - 2)) == 2);
    ::close(file);
  }
  const TokenCorpus corpus = TokenCorpus::open(folder.path(), TokenFormat::uint16);
  REQUIRE(corpus.tokens() == 2 * count);
  REQUIRE(corpus.tokens() > std::uint64_t{1} << 32);
  std::vector<Token> across(3), end(3);
  corpus.read(count - 1, across);
  CHECK(across == std::vector<Token>{4711, 0, 0});
  corpus.read(2 * count - 3, end);
  CHECK(end == std::vector<Token>{0, 0, 4711});
  const PackedSequences stream(corpus, {Packing::stream, 1000}, {}, Side::training);
  REQUIRE(stream.sequences() == (2 * count - 1) / 1000);
  CHECK(stream.segments(stream.sequences() - 1) ==
        std::vector<Segment>{{(stream.sequences() - 1) * 1000, 1000}});

  TokenFileHeader header;
  header.token_bytes = 4;
  header.tokens = header.documents = std::uint64_t{3} << 30;
  header.flags = TokenFileHeader::has_mask;
  const TokenFileParts parts = parts_of(header);
  CHECK(parts.ends == 128 + (std::uint64_t{12} << 30));
  CHECK(parts.mask == parts.ends + (std::uint64_t{24} << 30));
  CHECK(parts.description == parts.mask + (std::uint64_t{3} << 27));
}

TEST_CASE("the files of a folder are one corpus, whole and in order") {
  const TemporaryFolder folder;
  const std::vector<MadeDocument> documents = made_documents(11, 40, 30, 1000);
  write_made_folder(folder.path(), documents, 1000, 16);
  const TokenCorpus corpus = TokenCorpus::open(folder.path());
  CHECK(corpus.files().size() == 3);
  REQUIRE(corpus.documents() == documents.size());
  for (std::uint64_t d = 0; d < documents.size(); ++d) {
    const auto range = corpus.document(d);
    std::vector<Token> tokens(range.size());
    corpus.read(range.begin, tokens);
    REQUIRE(tokens == documents[d].tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      REQUIRE(corpus.is_trained(range.begin + i) == documents[d].trained[i]);
  }
  std::vector<Token> all(corpus.tokens()), expected;
  corpus.read(0, all);
  for (const MadeDocument& document : documents)
    expected.insert(expected.end(), document.tokens.begin(), document.tokens.end());
  CHECK(all == expected);
  CHECK(corpus.count_trained(5, corpus.tokens() - 10) ==
        corpus.trained() - corpus.count_trained(0, 5) -
            corpus.count_trained(corpus.tokens() - 5, 5));

  fs::rename(folder / "00002.tokens", folder / "away");
  CHECK_THROWS_WITH(TokenCorpus::open(folder.path()), Catch::Contains("is not finished"));
  fs::copy(folder / "00000.tokens", folder / "00002.tokens");
  CHECK_THROWS_WITH(TokenCorpus::open(folder.path()), Catch::Contains("not of the same tokens"));
}
