#include "text/source/text_content.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

using namespace spillway;
using namespace std::string_literals;

namespace {

std::string what(const std::string& bytes, std::size_t piece = 1 << 20) {
  TextContent content;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::string part = bytes.substr(at, piece);
    content.add({reinterpret_cast<const std::uint8_t*>(part.data()), part.size()});
  }
  return content.not_text();
}

std::string repeated(const std::string& text, std::size_t bytes) {
  std::string result;
  while (result.size() < bytes) result += text;
  return result;
}

}  // namespace

TEST_CASE("texts of any language are text, as are sources, logs and Latin-1") {
  for (const std::string& text :
       {""s, "x"s, "plain\r\n\ttext\n"s, "na\xc3\xafve caf\xc3\xa9"s,
        "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 \xd0\xbc\xd0\xb8\xd1\x80"s,
        "\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xb8\x96\xe7\x95\x8c"s, "\xf0\x9f\x90\x8d \xf0\x9f\x8c\x8a"s,
        "\xef\xbb\xbfwith a byte order mark"s, "\x1b[31mred\x1b[0m\n"s,
        "Gr\xfc\xdf"
        "e aus K\xf6ln, in Latin-1"s,
        "PKZIP was a program"s, "BZh is how bzip2 begins"s, "GIF is a format"s,
        "%!PS-Adobe-3.0"s}) {
    INFO(text);
    CHECK(what(text).empty());
    CHECK(what(repeated(text + " ", 100'000), 777).empty());
  }
  // One zero byte in a long log does no harm.
  CHECK(what(repeated("line\n", 5000) + "\0"s).empty());
}

TEST_CASE("archives, pictures, programs and documents are known by how they begin") {
  CHECK(what("PK\x03\x04 and then files") == "a zip archive");
  CHECK(what("\x1f\x8b\x08 compressed") == "a gzip archive");
  CHECK(what("\xfd"
             "7zXZ\0 compressed"s) == "an xz archive");
  CHECK(what("\x28\xb5\x2f\xfd compressed") == "a zstd archive");
  CHECK(what("BZh91AY&SY compressed") == "a bzip2 archive");
  CHECK(what(std::string(257, 'n') + "ustar\0"
                                     "00"s) == "a tar archive");
  CHECK(what(std::string(257, 'n') + "ustar  \0"s, 5) == "a tar archive");
  CHECK(what("\x7f"
             "ELF and code") == "a program");
  CHECK(what("%PDF-1.7\nall of it printable") == "a PDF document");
  CHECK(what("\x89PNG\r\n\x1a\n") == "a picture");
  CHECK(what("SQLite format 3\0"s) == "a database");
  CHECK(what("\xff\xfet\0e\0x\0t\0"s).find("UTF-16") != std::string::npos);
}

TEST_CASE("zero bytes and bytes that are no UTF-8 make a file binary, wherever they are") {
  CHECK(what("a\0b"s).find("binary (1 of 3 bytes are zero)") == 0);
  CHECK(what(repeated("text ", 50'000) + std::string(60, '\0')).find("binary") == 0);
  CHECK(what("\x80\x81\x82 odd text").empty());  // 3 of 12
  CHECK(what(repeated("\xf0\xe1\xe9", 1000)).find("are no text in UTF-8") != std::string::npos);
  // Bytes that are cut, overlong, surrogates, or beyond the last character: not UTF-8.
  for (const std::string& bad :
       {"\xc0\xaf"s, "\xe0\x80\xaf"s, "\xed\xa0\x80"s, "\xf4\x90\x80\x80"s, "\xe4\xbd"s, "\xff"s})
    CHECK(what(repeated(bad, 3000)).find("are no text in UTF-8") != std::string::npos);
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::string noise;
  for (int i = 0; i < 100'000; ++i) noise.push_back(static_cast<char>(random()));
  noise[0] = 'x';
  CHECK(what(noise).find("binary") == 0);
}

TEST_CASE("the verdict does not depend on the pieces in which bytes come") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {
      "plain ascii text ", "\xc3\xa9", "\xe4\xbd\xa0", "\xf0\x9f\x90\x8d", "\xff",
      "\xe0\x80",          "\0"s,      "\x01"};
  for (int round = 0; round < 200; ++round) {
    std::string text = "x";
    const std::size_t kinds = 1 + random() % parts.size();
    while (text.size() < 300) text += parts[random() % kinds];
    const std::string whole = what(text);
    for (const std::size_t piece : {1u, 2u, 3u, 63u, 64u, 65u}) CHECK(what(text, piece) == whole);
  }
}
