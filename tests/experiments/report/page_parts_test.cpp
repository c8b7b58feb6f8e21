// The parts that a page is made of: escaped text, packed data, tables, the document.
#include <zlib.h>
#include <catch2/catch.hpp>

#include "experiments/report/facts.hpp"
#include "experiments/report/html.hpp"
#include "experiments/report/packed.hpp"
#include "tests/experiments/report/page_reader.hpp"

namespace spillway {
namespace {

TEST_CASE("base64 gives the vectors of RFC 4648") {
  const std::vector<std::pair<std::string, std::string>> vectors = {{"", ""},
                                                                    {"f", "Zg=="},
                                                                    {"fo", "Zm8="},
                                                                    {"foo", "Zm9v"},
                                                                    {"foob", "Zm9vYg=="},
                                                                    {"fooba", "Zm9vYmE="},
                                                                    {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : vectors) CHECK(base64(bytes) == text);
  CHECK(base64(std::string("\xff\x00\xfe", 3)) == "/wD+");
}

TEST_CASE("whole numbers of any size come back from a column, and small ones take a byte") {
  NumberColumn column;
  const std::vector<std::int64_t> numbers = {
      0, -1, 1, 63, -64, 64, -65, 1'000'000'007, INT64_MAX, INT64_MIN};
  for (const std::int64_t number : numbers) column.add_signed(number);
  column.add(UINT64_MAX);
  test::NumberReader reader(column.bytes());
  for (const std::int64_t number : numbers) CHECK(reader.next_signed() == number);
  CHECK(reader.next() == UINT64_MAX);
  CHECK(reader.at_end());
  NumberColumn small;
  for (std::int64_t number = -64; number < 64; ++number) small.add_signed(number);
  CHECK(small.bytes().size() == 128);
}

TEST_CASE("packed data comes back, and is shorter where it repeats") {
  std::string bytes;
  for (int i = 0; i < 10'000; ++i) bytes += static_cast<char>(i % 7);
  const std::string text = packed(bytes);
  CHECK(text.size() < bytes.size() / 20);
  CHECK(
      text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") ==
      std::string::npos);
  CHECK(test::unpacked(text) == bytes);
  CHECK(test::unpacked(packed("")).empty());
}

TEST_CASE("text becomes text: no tag, no attribute, no entity, nothing that cannot be seen") {
  CHECK(escaped("<b onload='x' class=\"y\">&amp;") ==
        "&lt;b onload=&#39;x&#39; class=&quot;y&quot;&gt;&amp;amp;");
  CHECK(escaped("a\xe2\x80\xae"
                "b") == "a\\u202eb");  // right-to-left override
  CHECK(escaped("bell\x07") == "bell\\u0007");
  CHECK(escaped("gr\xc3\xbc\xc3\x9f") == "gr\xc3\xbc\xc3\x9f");
}

TEST_CASE("a table escapes all it shows, and carries what it is sorted by") {
  const PageTable table = {"<caption>", {{"<i>", true, "\"hint\""}}, {{{"<td>", 2.5, 0.25}}}};
  const std::string text = table_html(table);
  CHECK_THAT(text, Catch::Contains("&lt;caption&gt;") && Catch::Contains("&lt;i&gt;") &&
                       Catch::Contains("&lt;td&gt;") && Catch::Contains("&quot;hint&quot;") &&
                       Catch::Contains("data-value=\"2.5\"") &&
                       Catch::Contains("background-size:25.00% 100%"));
  CHECK_THAT(text, !Catch::Contains("<i>") && !Catch::Contains("<caption><"));
  // Long settings may be broken between them, numbers and sentences not.
  const PageTable settings = {
      "", {{"policy"}, {"bytes", true}}, {{{"a:b=1,c=2, d"}, {"1,024", 1024}}}};
  CHECK_THAT(table_html(settings),
             Catch::Contains(">a:b=1,<wbr>c=2, d<") && Catch::Contains(">1,024<"));
}

TEST_CASE("a page stands alone: nothing in it is loaded, only its own scripts may run") {
  const Page page = {
      "A <title>", "sub", "", {{"one", "First & last", "<p>body</p>"}}, {{"data", "bytes"}}};
  const std::string text = page_html(page);
  CHECK(is_report(text));
  CHECK(text == page_html(page));
  CHECK_THAT(text, Catch::Contains("default-src 'none'; script-src 'sha256-") &&
                       Catch::Contains("<h1>A &lt;title&gt;</h1>") &&
                       Catch::Contains("First &amp; last") && Catch::Contains("<p>body</p>"));
  for (const char* outside : {"http://", "https://", "src=\"", "@import", "url("}) {
    INFO(outside);
    // The name space of SVG is a name and no address.
    std::string without = text;
    const std::string svg = "http://www.w3.org/2000/svg";
    for (std::size_t at; (at = without.find(svg)) != std::string::npos;)
      without.erase(at, svg.size());
    CHECK(without.find(outside) == std::string::npos);
  }
  CHECK(test::blob_of(text, "data") == "bytes");
}

TEST_CASE("scripts of the page write text, never markup") {
  const std::string text = page_html({});
  for (const char* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                          "new Function"}) {
    INFO(way);
    CHECK(text.find(way) == std::string::npos);
  }
  // Only the ends of the seven scripts themselves.
  std::size_t begins = 0, ends = 0;
  for (std::size_t at = 0; (at = text.find("<script>", at)) != std::string::npos; ++at) ++begins;
  for (std::size_t at = 0; (at = text.find("</script", at)) != std::string::npos; ++at) ++ends;
  CHECK(begins == 7);
  CHECK(ends == begins);
}

TEST_CASE("numbers of a summary are as people write them") {
  CHECK(number_text(0) == "0");
  CHECK(number_text(1234567, 4) == "1,234,567");
  CHECK(number_text(8, 9) == "8");
  CHECK(number_text(12.3456) == "12.35");
  CHECK(number_text(0.00123456) == "0.001235");
  CHECK(number_text(-45678.9) == "-45,679");
  CHECK(count_text(1, "step") == "1 step");
  CHECK(count_text(2345, "step") == "2,345 steps");
}

TEST_CASE("facts of several things lie beside each other, a row a fact") {
  const Facts a = {{"x", "X", "1", 1}, {"y", "Y", "2", 2}},
              b = {{"y", "Y", "3", 3}, {"z", "Z", "z", "z"}};
  const PageTable table = facts_table({"a", "b"}, {a, b});
  REQUIRE(table.rows.size() == 3);
  CHECK(table.rows[1][0].text == "Y");
  CHECK(table.rows[1][1].value == 2);
  CHECK(table.rows[1][2].value == 3);
  CHECK(table.rows[0][2].text.empty());
  CHECK(table.rows[2][2].text == "z");
  CHECK(to_json(a).dump() == R"({"x":1,"y":2})");
}

}  // namespace
}  // namespace spillway
