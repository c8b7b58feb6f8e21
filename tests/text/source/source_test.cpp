// Sources of every form, cut into parts of any size: the records are always the same.
#include "text/source/source.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "tests/policies/input_error.hpp"
#include "tests/temporary_folder.hpp"

using namespace spillway;

namespace {

using Strings = std::vector<std::string>;

std::filesystem::path write_file(const test::TemporaryFolder& folder, const std::string& name,
                                 const std::string& text) {
  std::filesystem::create_directories((folder / name).parent_path());
  std::ofstream(folder / name, std::ios::binary) << text;
  return folder / name;
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(::deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string result(::deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  REQUIRE(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
  result.resize(stream.total_out);
  ::deflateEnd(&stream);
  return result;
}

struct All {
  std::vector<Record> records;
  SourceCounts counts;

  // The texts of whole documents, pieces put together.
  Strings texts() const {
    Strings result;
    bool goes_on = false;
    for (const Record& record : records) {
      const auto& text = std::get<TextRecord>(record.content);
      CHECK(text.begins == !goes_on);
      if (text.begins) result.emplace_back();
      result.back() += text.text;
      goes_on = !text.ends;
    }
    CHECK_FALSE(goes_on);
    return result;
  }
};

All read_all(const Source& source) {
  All all;
  for (const SourcePart& part : source.parts())
    source.read(
        part, [&](Record&& record) { all.records.push_back(std::move(record)); }, all.counts);
  return all;
}

All read_all(const SourceSettings& settings,
             std::uint64_t part_bytes = Source::default_part_bytes) {
  return read_all(Source(settings, part_bytes));
}

// The records of one line of JSONL.
Record parse(const std::string& json) {
  const test::TemporaryFolder folder;
  const All all = read_all({.paths = {write_file(folder, "a.jsonl", json + "\n")}});
  REQUIRE(all.records.size() == 1);
  return all.records[0];
}

Strings chat(const std::string& json) {
  Strings result;
  const Record record = parse(json);
  for (const ChatMessage& message : std::get<ChatRecord>(record.content).messages)
    result.push_back(message.role + ": " + message.content);
  return result;
}

}  // namespace

TEST_CASE("a text file is a document, in pieces that fit together whatever their size",
          "[source]") {
  const test::TemporaryFolder folder;
  std::string text;
  for (int line = 0; line < 300; ++line) text += fmt::format("line {} äöü €\n", line);
  text += std::string(200'000, 'x') + "€€€";  // without a line end for longer than is searched
  const auto path = write_file(folder, "a.txt", text);
  for (const std::uint64_t part_bytes : std::vector<std::uint64_t>{1000, 4096, 70'001, 1'000'000}) {
    const All all = read_all({.paths = {path}}, part_bytes);
    CHECK(all.texts() == Strings{text});
    CHECK(all.counts.records == 1);
    CHECK(all.counts.bytes == text.size());
    CHECK((all.records.size() > 1) == (part_bytes < text.size()));
    for (const Record& record : all.records)  // no character is cut
      CHECK((std::get<TextRecord>(record.content).text[0] & 0xc0) != 0x80);
  }
}

TEST_CASE("separators stand between documents, the same ones by parts of any size", "[source]") {
  const test::TemporaryFolder folder;
  const std::uint32_t seed = GENERATE(1u, 2u, 3u, 4u, 5u, 6u);
  std::mt19937 random(seed);
  // Of a few letters, so that separators overlap each other and the ends of parts.
  const std::string separator = seed % 2 == 0 ? "aba" : "\n\n";
  std::string text;
  const int length = static_cast<int>(random() % 400);
  for (int i = 0; i < length; ++i) text += "ab\nc"[random() % 4];
  // What no occurrence of the separator covers, without line breaks at the ends.
  std::vector<bool> covered(text.size());
  for (std::size_t at = text.find(separator); at != std::string::npos;
       at = text.find(separator, at + 1))
    for (std::size_t i = 0; i < separator.size(); ++i) covered[at + i] = true;
  Strings expected;
  for (std::size_t at = 0; at < text.size();) {
    std::string document;
    for (; at < text.size() && !covered[at]; ++at) document += text[at];
    for (; at < text.size() && covered[at]; ++at) continue;
    document.erase(0, document.find_first_not_of("\n"));
    document.erase(document.find_last_not_of("\n") + 1);
    if (!document.empty()) expected.push_back(document);
  }
  INFO("seed " << seed);
  const auto path = write_file(folder, "a.txt", text);
  const auto packed = write_file(folder, "a.txt.gz", gzip(text));
  for (const std::uint64_t part_bytes : std::vector<std::uint64_t>{1, 2, 3, 5, 17, 1000}) {
    CHECK(read_all({.paths = {path}, .separator = separator}, part_bytes).texts() == expected);
    CHECK(read_all({.paths = {packed}, .separator = separator}, part_bytes).texts() == expected);
  }
}

TEST_CASE("a document between separators that is long comes in pieces", "[source]") {
  const test::TemporaryFolder folder;
  const std::string first(300'000, 'a'), second(5, 'b');
  const auto path = write_file(folder, "a.txt", first + "<|end|>\n" + second + "\n<|end|>\n");
  const All all = read_all({.paths = {path}, .separator = "<|end|>"}, 1000);
  CHECK(all.texts() == Strings{first, second});
  CHECK(all.records.size() > 3);
}

TEST_CASE("JSONL cut into parts: every line once, in order, with its place", "[source]") {
  const test::TemporaryFolder folder;
  std::string lines = "\xef\xbb\xbf";
  Strings expected;
  for (int i = 0; i < 100; ++i) {
    expected.push_back(std::string(static_cast<std::size_t>(i % 37), 'x') + std::to_string(i));
    lines += fmt::format("{{\"text\": \"{}\"}}{}", expected.back(), i % 3 == 0 ? "\r\n\n" : "\n");
  }
  lines.pop_back();  // the last line has no end
  const auto path = write_file(folder, "a.jsonl", lines);
  const auto packed =
      write_file(folder, "b.jsonl.gz", gzip(lines.substr(0, 700)) + gzip(lines.substr(700)));
  for (const std::uint64_t part_bytes : std::vector<std::uint64_t>{1, 7, 64, 100'000}) {
    const Source source({.paths = {path}}, part_bytes);
    const All all = read_all(source);
    CHECK(all.texts() == expected);
    CHECK(source.where(all.records[3].place) == path.string() + ":5");
    CHECK(read_all({.paths = {packed}}, part_bytes).texts() == expected);
  }
}

TEST_CASE("a list of records in a .json file", "[source]") {
  const test::TemporaryFolder folder;
  const auto path = write_file(
      folder, "a.json", " [\n{\"text\": \"a]},\\\"\"} ,\n {\"text\": \"b\", \"n\": [[1], {}]}]\n ");
  CHECK(read_all({.paths = {path}}).texts() == Strings{"a]},\"", "b"});
  const Source source({.paths = {path}});
  CHECK(source.where(read_all(source).records[1].place) == path.string() + ":3");
  const auto empty = write_file(folder, "b.json", "[]");
  CHECK(read_all({.paths = {empty}, .format = SourceFormat::json}).records.empty());

  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"[{\"text\": \"a\"}", ":1: the list has no end"},
           {"[{\"text\": \"a\"}] 1", ":1: something follows the list"},
           {"[{\"text\": \"a\"}\n{\"text\": \"b\"}]", ":1: the record is not JSON"},
           {"[\n,{\"text\": \"a\"}]", ":2: the list holds nothing"},
           {"[\n1]", ":2: a record is an object, not a number"},
           {"{}", ":1: the file does not begin with ["}}) {
    const auto bad = write_file(folder, "c.json", text);
    check_error([&] { read_all({.paths = {bad}, .format = SourceFormat::json}); },
                bad.string() + what, "");
  }
}

TEST_CASE("the forms of records", "[source]") {
  CHECK(std::get<TextRecord>(parse(R"({"text": "a\nb"})").content).text == "a\nb");
  const auto completion =
      std::get<CompletionRecord>(parse(R"({"prompt": "2+2=", "completion": "4"})").content);
  CHECK(completion.prompt == "2+2=");
  CHECK(completion.completion == "4");
  const auto alpaca = std::get<InstructionRecord>(
      parse(R"({"instruction": "Add.", "input": null, "output": "4"})").content);
  CHECK(alpaca.instruction == "Add.");
  CHECK(alpaca.input.empty());
  CHECK(alpaca.output == "4");
  CHECK(chat(R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant",)"
             R"( "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}]})") ==
        Strings{"user: Hi", "assistant: AB"});
  CHECK(chat(R"({"system": "Be kind.", "conversations": [{"from": "human", "value": "Hi"},)"
             R"( {"from": "gpt", "value": "Ho"}]})") ==
        Strings{"system: Be kind.", "user: Hi", "assistant: Ho"});
}

TEST_CASE("what a message says beside its text is kept for the model's own template", "[source]") {
  const auto record = std::get<ChatRecord>(
      parse(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"x": 1}]}],)"
            R"( "tools": "[{\"name\": \"f\"}]"})")
          .content);
  CHECK(record.messages[0].json == R"({"role":"assistant","tool_calls":[{"x":1}]})");
  CHECK(record.tools == R"([{"name":"f"}])");
  CHECK(std::get<ChatRecord>(
            parse(R"({"conversations": [{"from": "human", "value": "Hi", "id": 3}]})").content)
            .messages[0]
            .json == R"({"role":"user","content":"Hi","id":3})");
}

TEST_CASE("a malformed record is named by file and line, or counted", "[source]") {
  const test::TemporaryFolder folder;
  const std::string good = "{\"text\": \"a\"}\n";
  for (const auto& [bad, what] : std::vector<std::pair<std::string, std::string>>{
           {"{\"text\": \"a\"", "the record is not JSON"},
           {"{\"text\": \"\xff\"}", "the record is not JSON"},
           {"[1]", "a record is an object, not an array"},
           {"7", "a record is an object, not a number"},
           {"{}", "the record is empty"},
           {"{\"txt\": \"a\"}", "the record has no field to train on, only: txt"},
           {"{\"text\": 7}", "`text` is number, not a text"},
           {"{\"messages\": {}}", "`messages` is object, not a list"},
           {"{\"messages\": []}", "`messages` is empty"},
           {"{\"messages\": [7]}", "message 1: is number, not an object"},
           {"{\"messages\": [{\"content\": \"a\"}]}", "message 1: `role` is missing"},
           {"{\"messages\": [{\"role\": \"user\"}]}", "message 1: `content` is missing"},
           {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
            "message 1: `content` holds something else than text"},
           {std::string(100, '['), "the record is nested too deeply"}}) {
    const auto path = write_file(folder, "a.jsonl", good + "\n" + bad + "\n" + good);
    check_error([&] { read_all({.paths = {path}}); }, path.string() + ":3: " + what, "");
    const All all = read_all({.paths = {path}, .skip_malformed = true});
    CHECK(all.texts() == Strings{"a", "a"});
    CHECK(all.counts.malformed == 1);
    CHECK(all.counts.first_malformed.starts_with(path.string() + ":3: " + what));
  }
}

TEST_CASE("the form of a file is found by its first record", "[source]") {
  const test::TemporaryFolder folder;
  const std::string record = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  const auto format = [&](const std::string& name, const std::string& text) {
    return Source({.paths = {write_file(folder, name, text)}}).files().at(0).format;
  };
  CHECK(format("a.jsonl", "{}") == SourceFormat::jsonl);
  CHECK(format("a.txt", record + "\n" + record) == SourceFormat::jsonl);
  CHECK(format("a.json", "[" + record + "]") == SourceFormat::json);
  CHECK(format("b.json", gzip("[" + record + "]")) == SourceFormat::json);
  CHECK_THROWS_AS(format("c.json", R"({"name": "package", "version": 1})"), InputError);
  CHECK_THROWS_AS(format("d.json", "{\n\"text\": \"a\"}"), InputError);
  CHECK_THROWS_AS(format("e.json", "[1, 2]"), InputError);
  CHECK(format("f", "[Hello], he said.") == SourceFormat::text);
  CHECK(format("g", "") == SourceFormat::text);
}

TEST_CASE("a folder's files in order, and what is no text is skipped there and refused by name",
          "[source]") {
  const test::TemporaryFolder folder;
  write_file(folder, "d/b.jsonl", "{\"text\": \"two\"}");
  write_file(folder, "d/a.txt", "one");
  const auto zip = write_file(folder, "d/c.zip", "PK\x03\x04 and more");
  const auto tar = write_file(folder, "d/d.gz", gzip(std::string(1000, '\0')));
  const Source source({.paths = {folder / "d"}});
  CHECK(read_all(source).texts() == Strings{"one", "two"});
  CHECK(source.skipped().count == 2);
  check_error([&] { Source({.paths = {zip}}); }, zip.string() + " is a zip archive", "unpack");
  check_error([&] { Source({.paths = {tar}}); }, tar.string() + " is binary", "unpack");
  check_error([&] { Source({.paths = {folder / "no"}}); }, "cannot read", "spelling");
  CHECK(read_all({.paths = {zip}, .binary = true}).texts().size() == 1);
}

TEST_CASE("a gzip that is cut off or damaged, and a file that became shorter", "[source]") {
  const test::TemporaryFolder folder;
  std::string text;
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) text += fmt::format("{}\n", random());
  std::string packed = gzip(text);
  const auto cut = write_file(folder, "a.gz", packed.substr(0, packed.size() / 2));
  check_error([&] { read_all({.paths = {cut}}); }, cut.string() + " is cut off", "again");
  packed[packed.size() / 2] ^= 0x55;
  const auto damaged = write_file(folder, "b.gz", packed);
  check_error([&] { read_all({.paths = {damaged}}); }, damaged.string() + " is damaged", "again");
  const auto plain = write_file(folder, "c.txt", text);
  const Source source({.paths = {plain}});
  std::filesystem::resize_file(plain, 10);
  check_error([&] { read_all(source); }, plain.string() + " has become shorter", "leave");
}

TEST_CASE("sources as users write them", "[source]") {
  const test::TemporaryFolder folder;
  const std::string data = write_file(folder, "a=2.jsonl", "{\"text\": \"a\"}").string();
  using Settings = std::vector<SourceSettings>;
  CHECK(parse_sources(data) == Settings{{.paths = {data}}});
  CHECK(parse_sources("b.txt=0.25") == Settings{{.paths = {"b.txt"}, .weight = 0.25}});
  check_error([] { parse_sources("b.txt=many"); }, "many is no weight in b.txt=many", "=WEIGHT");
  check_error([] { parse_sources("b.txt=0"); }, "0 is no weight", "above 0");
  check_error([] { parse_sources("b.txt=nan"); }, "nan is no weight", "above 0");
  check_error([] { parse_sources("=2"); }, "a source without a path", "PATH");

  const auto list = write_file(folder, "mix.toml", R"([[source]]
path = "a=2.jsonl"
weight = 2
[[source]]
paths = ["/data/b", "c"]
format = "text"
separator = "<|end|>"
skip_malformed = true
binary = true
)");
  const Settings expected = {{.paths = {data}, .weight = 6},
                             {.paths = {"/data/b", folder / "c"},
                              .weight = 3,
                              .format = SourceFormat::text,
                              .separator = "<|end|>",
                              .skip_malformed = true,
                              .binary = true}};
  CHECK(parse_sources(list.string() + "=3") == expected);
  const auto refused = [](const std::string& toml, const std::string& what,
                          const std::string& hint) {
    check_error([&] { parse_source_list(toml, "mix.toml"); }, "mix.toml:" + what, hint);
  };
  refused("[[source]]\nwight = 2", "2: a source has no wight", "weight");
  refused("[[source]]\nweight = 0", "2: weight is not a number", "");
  refused("[[source]]\nweight = true", "2: weight is not a number", "");
  refused("[[source]]\npath = 7", "2: path is not a text", "path = ");
  refused("[[source]]\npaths = 7", "2: paths is not a list", "");
  refused("[[source]]\npath = \"a\"\nformat = \"jsnl\"", "3: there is no format jsnl", "jsonl");
  refused("[[source]]\npath = \"a\"\nbinary = 1", "3: binary is neither", "");
  refused("[[source]]", "1: a source without path", "path = ");
  refused("source = 1", "1: source is not a list of sources", "[[source]]");
  refused("", " there is no source", "[[source]]");
  refused("[[source", "1: ", "TOML");
}
