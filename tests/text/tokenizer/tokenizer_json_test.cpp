#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "text/tokenizer/model_files.hpp"

using namespace spillway;
using nlohmann::json;

namespace {

// A tokenizer of bytes with the tokens "ab", " a" and a special one; 0 to 255 are the bytes.
json small_file() {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char sign = static_cast<char>(byte);
    vocabulary[byte_level_name({&sign, 1})] = byte;
  }
  vocabulary["ab"] = 256;
  vocabulary[byte_level_name(" ab")] = 257;
  return {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 258},
         {"content", "<|end|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocabulary},
        {"merges", {"a b", byte_level_name(" ") + " ab"}}}}};
}

std::unique_ptr<Tokenizer> made(const json& file) {
  return make_bpe_tokenizer(read_tokenizer_json(file.dump(), "file"));
}

std::vector<Token> tokens_of(const Tokenizer& tokenizer, std::string_view text,
                             SpecialTokens special = SpecialTokens::parsed) {
  std::vector<Token> tokens;
  tokenizer.encode(text, special, tokens);
  return tokens;
}

// What refusing the file says.
std::string refusal(const json& file) {
  try {
    made(file);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("words become tokens by merges, special tokens by name", "[tokenizer]") {
  const auto tokenizer = made(small_file());
  CHECK(tokenizer->size() == 259);
  CHECK(tokens_of(*tokenizer, "ab ab") == std::vector<Token>{256, 257});
  CHECK(tokens_of(*tokenizer, "b<|end|>ab") == std::vector<Token>{'b', 258, 256});
  CHECK(tokens_of(*tokenizer, "<|end|>", SpecialTokens::as_text).size() == 7);
  CHECK(tokenizer->decode(std::vector<Token>{257, 258, 'b'}) == " ab<|end|>b");
  CHECK(tokenizer->decode(std::vector<Token>{257, 258, 'b'}, false) == " abb");
  CHECK(tokenizer->find("<|end|>") == 258);
  CHECK_FALSE(tokenizer->find("<|begin|>"));
  CHECK_THROWS_AS(tokenizer->decode(std::vector<Token>{259}), InputError);
  CHECK_THROWS_AS(tokenizer->decode(std::vector<Token>{-1}), InputError);
}

TEST_CASE("merges are read in both notations, and make equal tokenizers", "[tokenizer]") {
  json file = small_file();
  const std::uint64_t hash = made(file)->hash();
  file["model"]["merges"] =
      json::array({json::array({"a", "b"}), json::array({byte_level_name(" "), "ab"})});
  CHECK(made(file)->hash() == hash);
  file["model"]["merges"] = json::array({json::array({"a", "b"})});
  CHECK(made(file)->hash() != hash);
}

TEST_CASE("bytes that are no text become their tokens, and part the text", "[tokenizer]") {
  const auto tokenizer = made(small_file());
  CHECK(tokens_of(*tokenizer, "a\xff\x62") == std::vector<Token>{'a', 0xff, 'b'});
  // An overlong slash, a surrogate, a character that is cut off.
  for (const std::string& text :
       std::vector<std::string>{"\xc0\xaf", "ab\xed\xa0\x80 ab", " ab\xf0\x9f\x98"}) {
    CHECK(tokenizer->decode(tokens_of(*tokenizer, text)) == text);
  }
  json file = small_file();
  file["pre_tokenizer"]["add_prefix_space"] = true;
  // A blank before the text, not after the byte.
  CHECK(tokens_of(*made(file), "ab\xff\x61\x62") == std::vector<Token>{257, 0xff, 256});
}

TEST_CASE("added tokens take white space along, or want to be words of their own", "[tokenizer]") {
  json file = small_file();
  json& token = file["added_tokens"][0];
  token["content"] = "end";
  token["lstrip"] = true;
  CHECK(tokens_of(*made(file), "a  endb") == std::vector<Token>{'a', 258, 'b'});
  token["lstrip"] = false;
  token["rstrip"] = true;
  CHECK(tokens_of(*made(file), "aend \n b") == std::vector<Token>{'a', 258, 'b'});
  token["rstrip"] = false;
  token["single_word"] = true;
  CHECK(tokens_of(*made(file), "end-end") == std::vector<Token>{258, '-', 258});
  CHECK(tokens_of(*made(file), "ends") == std::vector<Token>{'e', 'n', 'd', 's'});
}

TEST_CASE("of added tokens at one place the longest is found", "[tokenizer]") {
  json file = small_file();
  json longer = file["added_tokens"][0];
  longer["id"] = 259;
  longer["content"] = "<|end|>x";
  file["added_tokens"].push_back(longer);
  CHECK(tokens_of(*made(file), "<|end|>x<|end|>") == std::vector<Token>{259, 258});
}

TEST_CASE("what is not supported is refused by its key", "[tokenizer]") {
  using Catch::Contains;
  const auto with = [](const std::string& pointer, const json& value) {
    json file = small_file();
    file[json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  CHECK_THAT(with("/model/dropout", 0.1), Contains("model.dropout"));
  CHECK_THAT(with("/model/end_of_word_suffix", "</w>"), Contains("model.end_of_word_suffix"));
  CHECK_THAT(with("/model/continuing_subword_prefix", "##"), Contains("continuing_subword_prefix"));
  CHECK_THAT(with("/model/type", "WordPiece"), Contains("model.type") && Contains("WordPiece"));
  CHECK_THAT(with("/model/novelty", 1), Contains("model.novelty"));
  CHECK_THAT(with("/novelty", 1), Contains("novelty"));
  CHECK_THAT(with("/normalizer", {{"type", "NFKC"}}),
             Contains("normalizer.type") && Contains("NFKC"));
  CHECK_THAT(with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}),
             Contains("pre_tokenizer.type"));
  CHECK_THAT(with("/decoder", {{"type", "WordPiece"}}), Contains("decoder.type"));
  CHECK_THAT(with("/model/merges", {"a"}), Contains("merges") && Contains("not two tokens"));
  CHECK_THAT(with("/model/merges", {"a c"}), Contains("ac is no token"));
  CHECK_THAT(with("/model/vocab/x", -1), Contains("model.vocab"));
  CHECK_THAT(with("/model/vocab/new", 5), Contains("is that of another token"));
  CHECK_THAT(with("/model/vocab/far", 100'000'000), Contains("far beyond"));
  CHECK_THAT(with("/added_tokens/0/id", 5), Contains("is that of another token"));
  CHECK_THAT(with("/added_tokens/0/content", "ab"), Contains("added_tokens[0].id"));
  CHECK_THAT(with("/added_tokens/0/content", ""), Contains("added_tokens[0].content"));
  CHECK_THAT(with("/model/unk_token", "nothing"), Contains("model.unk_token"));
  CHECK_THAT(refusal(json::array()), Contains("no object"));
  CHECK_THROWS_WITH(read_tokenizer_json("{\n\"a\": }", "f.json"), Contains("f.json:2"));
}

TEST_CASE("begin and end of a text are known from the post-processor", "[tokenizer]") {
  json file = small_file();
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single",
                             {{{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  const auto tokenizer = made(file);
  CHECK(tokenizer->begin_of_text() == 258);
  CHECK(tokenizer->adds_begin_of_text());
  CHECK_FALSE(tokenizer->end_of_text());
  CHECK(tokens_of(*tokenizer, "ab") == std::vector<Token>{256});  // nothing is put there
}
