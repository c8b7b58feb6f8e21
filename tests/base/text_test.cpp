#include "base/text.hpp"

#include <catch2/catch.hpp>

#include <random>

using namespace spillway;

TEST_CASE("printable: what can be shown stays as it is, in any language") {
  for (const char* text :
       {"", "gpt-13b", "a/b c_d.e", "größe", "模型", "модель", "🙂", "100 %"}) {
    INFO(text);
    CHECK(printable(text) == text);
    CHECK_FALSE(find_unprintable(text));
  }
}

TEST_CASE("printable: controls of the terminal are spelled out") {
  CHECK(printable("a\x1b[2Jb") == "a\\u001b[2Jb");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\u0000b");
  CHECK(printable("a\rb\tc\x7f") == "a\\u000db\\u0009c\\u007f");
  CHECK(printable("one\ntwo") == "one\\u000atwo");
  CHECK(printable_lines("one\ntwo\r") == "one\ntwo\\u000d");
  // U+009B begins a control sequence by itself (C1).
  CHECK(printable("\xc2\x9b"
                  "2J") == "\\u009b2J");
  CHECK(find_unprintable("x\x1by") == "the control character U+001B");
  CHECK(find_unprintable("two\nlines") == "the control character U+000A");
}

TEST_CASE("printable: characters that turn a line round or cannot be seen are spelled out") {
  CHECK(printable("gpt\xe2\x80\xae"
                  "b31") == "gpt\\u202eb31");  // right-to-left override
  CHECK(printable("gpt\xe2\x81\xa6-\xe2\x81\xa9") == "gpt\\u2066-\\u2069");
  CHECK(printable("g\xe2\x80\x8bpt") == "g\\u200bpt");  // zero-width space
  CHECK(printable("\xef\xbb\xbfgpt") == "\\ufeffgpt");
  CHECK(printable("a\xf3\xa0\x81\x81") == "a\\udb40\\udc41");  // a tag
  CHECK(find_unprintable("g\xe2\x80\x8bpt") == "the invisible character U+200B");
}

TEST_CASE("printable: bytes that are not UTF-8 are spelled out") {
  CHECK(printable("a\xff"
                  "b") == "a\\xffb");
  CHECK(printable("\xc3") == "\\xc3");                    // cut short
  CHECK(printable("\xc0\xaf") == "\\xc0\\xaf");           // an overlong slash
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // half of a surrogate pair
  CHECK(printable("\xf5\x80\x80\x80") == "\\xf5\\x80\\x80\\x80");
  CHECK(find_unprintable("a\xff") == "bytes that are not UTF-8");
}

TEST_CASE("printable: of any bytes makes what needs no change") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 12, ' ');
    for (char& c : text) c = static_cast<char>(random());
    const std::string shown = printable(text);
    CHECK_FALSE(find_unprintable(shown));
    CHECK(printable(shown) == shown);
  }
}

TEST_CASE("A file's name from any name is one part of a path, visible, and no option") {
  CHECK(file_name_from("gpt-13b") == "gpt-13b");
  CHECK(file_name_from("gpt2-1.5b") == "gpt2-1.5b");
  CHECK(file_name_from("../../etc/passwd") == "etc-passwd");
  CHECK(file_name_from("/abs") == "abs");
  CHECK(file_name_from("meta/llama 7b") == "meta-llama-7b");
  CHECK(file_name_from("-rf") == "rf");
  CHECK(file_name_from(".hidden") == "hidden");
  CHECK(file_name_from("a\x1b[2J\nb") == "a-2J-b");
  CHECK(file_name_from("größe") == "gr-e");
  for (const char* nothing : {"", ".", "..", "...", "/", "--", "模型"}) {
    INFO(nothing);
    CHECK(file_name_from(nothing) == "unnamed");
  }
  CHECK(file_name_from(std::string(5000, 'x')).size() == 80);
}

TEST_CASE("A file's name from any bytes is one of its own kind") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::string name(random() % 100, ' ');
    for (char& c : name) c = static_cast<char>(random());
    const std::string file = file_name_from(name);
    CHECK(file.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "0123456789-_.") == std::string::npos);
    CHECK((!file.empty() && file.size() <= 80));
    CHECK((file.front() != '.' && file.front() != '-'));
    CHECK(file_name_from(file) == file);
  }
}
