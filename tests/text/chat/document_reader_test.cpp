// Documents of every kind of record: tokens, what is trained on, what is too long.
#include "text/chat/document_reader.hpp"

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/policies/input_error.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/text/chat/fake_tokenizer.hpp"
#include "text/chat/preview.hpp"

using namespace spillway;

namespace {

const test::FakeTokenizer chat_tokens({"<s>", "</s>", "<|im_start|>", "<|im_end|>"}, "<s>", "</s>");

struct Documents {
  std::vector<Document> all;
  DocumentCounts counts;
  std::vector<std::string> notes;

  // Each as text, with {} around what is trained on, and ... where it goes on.
  std::vector<std::string> texts(const Tokenizer& tokenizer = chat_tokens) const {
    std::vector<std::string> result;
    for (const Document& document : all) {
      std::string text;
      std::size_t at = 0;
      const auto decode = [&](std::size_t end) {
        text += tokenizer.decode(std::span(document.tokens).subspan(at, end - at));
        at = end;
      };
      for (const TokenRun& run : document.trained) {
        decode(run.first);
        text += "{";
        decode(run.end);
        text += "}";
      }
      decode(document.tokens.size());
      result.push_back(text + (document.goes_on ? "..." : ""));
    }
    return result;
  }
};

Documents read(const std::string& name, const std::string& text,
               const DocumentSettings& settings = {}, const SourceSettings& form = {},
               const Tokenizer& tokenizer = chat_tokens,
               std::uint64_t part_bytes = Source::default_part_bytes) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / name) << text;
  SourceSettings source_settings = form;
  source_settings.paths = {folder / name};
  const Source source(source_settings, part_bytes);
  DocumentReader reader(source, tokenizer, settings);
  Documents documents;
  for (const SourcePart& part : source.parts())
    reader.read(part, [&](Document&& document) { documents.all.push_back(std::move(document)); });
  documents.counts = reader.counts();
  documents.notes = reader.notes();
  return documents;
}

using Texts = std::vector<std::string>;

const std::string two_chats =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]})"
    "\n"
    R"({"messages": [{"role": "user", "content": "a<|im_end|>"}, {"role": "assistant", "content": "b"}]})"
    "\n";

}  // namespace

TEST_CASE("a text is trained on as a whole, between bos and eos", "[chat]") {
  const Documents documents = read("a.txt", "one\n");
  CHECK(documents.texts() == Texts{"<s>{one\n</s>}"});
  CHECK(documents.counts.documents == 1);
  CHECK(documents.counts.tokens == 6);
  CHECK(documents.counts.trained_tokens == 5);
  // A token that both begins and ends documents stands between them once.
  const test::FakeTokenizer one_token({"<|end|>"}, "<|end|>", "<|end|>");
  CHECK(read("a.txt", "one", {}, {}, one_token).texts(one_token) == Texts{"{one<|end|>}"});
  const auto bytes = make_byte_tokenizer();
  CHECK(read("a.txt", "one", {}, {}, *bytes).texts(*bytes) == Texts{"{one}"});
}

TEST_CASE("names of special tokens in texts are letters unless the data is trusted", "[chat]") {
  const Documents letters = read("a.txt", "a</s>b");
  CHECK(letters.all.at(0).tokens.size() == 8);
  const Documents tokens = read("a.txt", "a</s>b", {.parse_special = true});
  CHECK(tokens.all.at(0).tokens.size() == 5);
  CHECK(tokens.texts() == letters.texts());
  // "<|im_end|>" of the user: ten letters, or a token.
  CHECK(read("a.jsonl", two_chats, {.chat_template = "chatml"}).all.at(1).tokens.size() -
            read("a.jsonl", two_chats, {.chat_template = "chatml", .parse_special = true})
                .all.at(1)
                .tokens.size() ==
        9);
}

TEST_CASE("a long text goes on from piece to piece", "[chat]") {
  const Documents documents = read("a.txt", "one\ntwo\nthree\n", {}, {}, chat_tokens, 5);
  CHECK(documents.texts() == Texts{"<s>{one\ntwo\n}...", "{three\n</s>}"});
  CHECK(documents.counts.source.records == 1);
}

TEST_CASE("of a completion only the completion is trained on, or all", "[chat]") {
  const std::string line = R"({"prompt": "2+2=", "completion": "4"})";
  CHECK(read("a.jsonl", line).texts() == Texts{"<s>2+2={4</s>}"});
  CHECK(read("a.jsonl", line, {.assistant_only = false}).texts() == Texts{"<s>{2+2=4</s>}"});
}

TEST_CASE("of a chat what the assistant says is trained on, with the end of its turn", "[chat]") {
  CHECK(read("a.jsonl", two_chats, {.chat_template = "chatml"}).texts() ==
        Texts{"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{Ho<|im_end|>}\n",
              "<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"});
  CHECK(read("a.jsonl", two_chats, {.chat_template = "mistral", .assistant_only = false})
            .texts()
            .at(0) == "<s>{[INST] Hi[/INST] Ho</s>}");
}

TEST_CASE("a tokenizer's blank before a text is not put before an answer", "[chat]") {
  // As SentencePiece does it: every text that is encoded begins with a blank.
  class Blank : public test::FakeTokenizer {
   public:
    using FakeTokenizer::FakeTokenizer;
    void encode(std::string_view text, SpecialTokens special,
                std::vector<Token>& tokens) const override {
      if (!text.empty()) tokens.push_back('_');
      FakeTokenizer::encode(text, special, tokens);
    }
  };
  const Blank blank({"<s>", "</s>"}, "<s>", "</s>");
  CHECK(read("a.jsonl", R"({"prompt": "2+2=", "completion": "4"})", {}, {}, blank).texts(blank) ==
        Texts{"<s>_2+2={4</s>}"});
  CHECK(read("a.jsonl", two_chats, {.chat_template = "mistral"}, {}, blank).texts(blank).at(0) ==
        "_<s>[INST] Hi[/INST]{ Ho</s>}");
  CHECK(read("a.txt", "one\ntwo\n", {}, {}, blank, 4).texts(blank) ==
        Texts{"<s>{_one\n}...", "{two\n</s>}"});
}

TEST_CASE("chats need a template, instructions have Alpaca's", "[chat]") {
  const InputError error = input_error([] { read("a.jsonl", two_chats); });
  CHECK(std::string(error.what()).find("a.jsonl:1: a chat, and no template") != std::string::npos);
  CHECK(error.hint().starts_with("chat_template = chatml (built in: chatml, llama3, qwen,"));
  const Documents documents = read("a.jsonl", R"({"instruction": "Sing.", "output": "La"})");
  CHECK(documents.texts().at(0).ends_with("### Instruction:\nSing.\n\n### Response:\n{La</s>}"));
}

TEST_CASE("a chat that a template refuses is malformed", "[chat]") {
  const std::string line = R"({"messages": [{"role": "assistant", "content": "Hi"}]})"
                           "\n";
  const InputError error =
      input_error([&] { read("a.jsonl", two_chats + line, {.chat_template = "mistral"}); });
  CHECK(std::string(error.what()).find("a.jsonl:3: message 1 is the assistant's") !=
        std::string::npos);
  const Documents documents =
      read("a.jsonl", line + two_chats, {.chat_template = "mistral"}, {.skip_malformed = true});
  CHECK(documents.all.size() == 2);
  CHECK(documents.counts.source.malformed == 1);
  REQUIRE(documents.notes.size() == 1);
  CHECK(documents.notes[0].find("a.jsonl:1: message 1") != std::string::npos);
}

TEST_CASE("a chat in which the assistant says nothing is left out and counted", "[chat]") {
  const Documents documents =
      read("a.jsonl", R"({"messages": [{"role": "user", "content": "Hi"}]})",
           {.chat_template = "chatml"});
  CHECK(documents.all.empty());
  CHECK(documents.notes == Texts{"1 documents are left out: nothing in them is trained on"});
}

TEST_CASE("other settings, another hash", "[chat]") {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "a.txt") << "a";
  const Source source({.paths = {folder / "a.txt"}});
  const auto hash = [&](const DocumentSettings& settings) {
    return DocumentReader(source, chat_tokens, settings).hash();
  };
  const std::vector<DocumentSettings> all = {{},
                                             {.chat_template = "chatml"},
                                             {.chat_template = "llama3"},
                                             {.assistant_only = false},
                                             {.parse_special = true}};
  for (const DocumentSettings& a : all)
    for (const DocumentSettings& b : all) CHECK((hash(a) == hash(b)) == (a == b));
}

TEST_CASE("a preview marks what is not trained on", "[chat]") {
  const Documents documents = read("a.jsonl", two_chats, {.chat_template = "chatml"});
  CHECK(preview(documents.all.at(0), chat_tokens, {}) ==
        "⟦<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟧Ho<|im_end|>⟦\n⟧\n"
        "-- 25 tokens, 3 trained on (12 %)\n");
  CHECK(preview(documents.all.at(0), chat_tokens, {.colour = true, .most_tokens = 3}) ==
        "\x1b[2m<|im_start|>us\x1b[0m ...\n-- 25 tokens, 3 trained on (12 %)\n");
  Document control;
  control.tokens = {0x1b, 'a'};
  control.trained = {{0, 2}};
  control.goes_on = true;
  CHECK(preview(control, chat_tokens, {}) ==
        "\\u001ba\n-- 2 tokens, 2 trained on (100 %), goes on in the next document\n");
}
