// Chats as transformers' apply_chat_template writes them: tests/reference/chats.json, or the file
// that SPILLWAY_TEST_CHATS names. Both are made by tests/peer/transformers/check_chats.py.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "test_paths.hpp"
#include "tests/text/chat/chats.hpp"
#include "tests/text/chat/fake_tokenizer.hpp"
#include "text/chat/encode_chat.hpp"
#include "text/chat/own_template.hpp"
#include "text/tokenizer/read_tokenizer.hpp"

using namespace spillway;
using nlohmann::ordered_json;

namespace {

ordered_json read_cases() {
  const char* const path = std::getenv("SPILLWAY_TEST_CHATS");
  std::ifstream file(path != nullptr ? path : SPILLWAY_SOURCE_DIR "/tests/reference/chats.json");
  return ordered_json::parse(file);
}

std::vector<ChatRecord> chats_of(const ordered_json& cases) {
  std::vector<ChatRecord> chats;
  for (const ordered_json& chat : cases["chats"])
    chats.push_back(std::get<ChatRecord>(parse_json_record(chat.dump()).content));
  return chats;
}

std::vector<TextRange> ranges_of_json(const ordered_json& list) {
  std::vector<TextRange> ranges;
  for (const ordered_json& one : list) {
    if (one[0] != one[1]) ranges.push_back({one[0], one[1]});
  }
  return ranges;
}

struct Reference {
  ordered_json cases = read_cases();
  std::vector<ChatRecord> chats = chats_of(cases);
  test::FakeTokenizer tokenizer{cases["names"], "<s>", "</s>"};
  SpecialNames names{tokenizer};

  // Compares texts and spans with what transformers wrote, and returns how many chats were refused
  // because nobody can tell what is trained on.
  int check(ChatTemplate& chat_template, const ordered_json& expected, bool built_in) {
    int untold = 0;
    const auto training = chat_template.render(chats, RenderFor::training);
    const auto text = chat_template.render(chats, RenderFor::text);
    const auto answer = chat_template.render(chats, RenderFor::answer);
    for (std::size_t i = 0; i < chats.size(); ++i) {
      INFO("chat " << i << " " << cases["chats"][i].dump());
      const ordered_json& one = expected[i];
      REQUIRE(text[i].refused.empty() == one.contains("text"));
      if (!one.contains("text")) continue;
      CHECK(text[i].text == one["text"]);
      CHECK(text[i].trained.empty());
      const bool nothing_to_answer =
          built_in && !answer[i].refused.empty() && chats[i].messages.back().role == "assistant";
      if (!nothing_to_answer) CHECK(answer[i].text == one["answer"]);
      if (!training[i].refused.empty()) {
        CHECK(training[i].refused.starts_with("what is trained on cannot be told"));
        ++untold;
        continue;
      }
      CHECK(training[i].text == one["text"]);
      CHECK(training[i].trained == ranges_of_json(one["trained"]));
    }
    return untold;
  }
};

}  // namespace

TEST_CASE("built-in templates write what transformers does", "[chat][chat_reference]") {
  Reference reference;
  for (ChatRecord& chat : reference.chats) chat.tools.clear();  // these templates know of none
  for (const ordered_json& one : reference.cases["templates"]) {
    if (!one["built_in"]) continue;
    INFO(one["name"]);
    const auto built_in = make_chat_template({.name = one["name"]}, reference.names);
    CHECK(reference.check(*built_in, one["expected"], true) == 0);
  }
}

TEST_CASE("models' own templates write what transformers does, and train on the same",
          "[chat][jinja][chat_reference]") {
  Reference reference;
  const TemplateSettings settings{.name = "own", .date = reference.cases["date"]};
  const auto own = [&](const std::string& text) {
    return make_own_template({text, {}}, settings, reference.names);
  };
  try {
    own("")->render(reference.chats, RenderFor::text);
  } catch (const InputError& error) {
    WARN("not checked: " << error.what());
    return;
  }
  for (const ordered_json& one : reference.cases["templates"]) {
    INFO(one["name"]);
    CHECK(reference.check(*own(one["marked"]), one["expected"], false) == 0);
    const int untold = reference.check(*own(one["plain"]), one["expected"], false);
    // A template that writes older turns otherwise, and one whose begin of an answer never stands
    // before an answer.
    if (one["name"] == "thinking") CHECK(untold <= static_cast<int>(reference.chats.size() / 2));
    if (one["name"] != "thinking" && one["name"] != "filters") CHECK(untold == 0);
  }
}

TEST_CASE("built-in templates in jinja write what they write here",
          "[chat][jinja][chat_reference]") {
  Reference reference;
  for (ChatRecord& chat : reference.chats) chat.tools.clear();  // these templates know of none
  for (const std::string& name : built_in_templates()) {
    INFO(name);
    const auto& all = reference.cases["templates"];
    const auto one =
        std::find_if(all.begin(), all.end(), [&](const auto& t) { return t["name"] == name; });
    REQUIRE(one != all.end());
    // Tokenizers without bos and eos, with one token for both, and with two.
    for (const auto& [begin, end] : {std::pair("<s>", "</s>"), std::pair("", ""),
                                     std::pair("</s>", "</s>"), std::pair("", "</s>")}) {
      INFO(begin << " " << end);
      const test::FakeTokenizer tokenizer(reference.cases["names"], begin, end);
      const SpecialNames names(tokenizer);
      const auto built_in = make_chat_template({.name = name}, names);
      const auto own = make_own_template({chat_template_text(name), {}}, {.name = "own"}, names);
      std::vector<RenderedChat> written;
      try {
        written = own->render(reference.chats, RenderFor::training);
      } catch (const InputError& error) {
        WARN("not checked: " << error.what());
        return;
      }
      const auto expected = built_in->render(reference.chats, RenderFor::training);
      const auto answers = own->render(reference.chats, RenderFor::answer),
                 expected_answers = built_in->render(reference.chats, RenderFor::answer);
      for (std::size_t i = 0; i < written.size(); ++i) {
        INFO("chat " << i << " " << reference.cases["chats"][i].dump());
        REQUIRE(written[i].refused.empty() == expected[i].refused.empty());
        if (expected_answers[i].refused.empty()) CHECK(answers[i].text == expected_answers[i].text);
        if (!expected[i].refused.empty()) continue;
        CHECK(written[i].text == expected[i].text);
        CHECK(written[i].plain == expected[i].plain);
        if (begin == std::string("<s>")) CHECK(written[i].text == (*one)["expected"][i]["text"]);
      }
    }
  }
}

TEST_CASE("chats are the tokens of transformers", "[chat][jinja][chat_reference]") {
  Reference reference;
  if (!reference.cases.contains("tokenizer")) return;  // it is made where transformers is
  const auto tokenizer = read_tokenizer(reference.cases["tokenizer"].get<std::string>());
  const SpecialNames names(*tokenizer);
  const ChatEncoder encoder(*tokenizer, names);
  std::vector<std::string> sorted_names = names.names(), expected = reference.cases["names"];
  std::sort(sorted_names.begin(), sorted_names.end());
  std::sort(expected.begin(), expected.end());
  CHECK(sorted_names == expected);
  for (const ordered_json& one : reference.cases["templates"]) {
    const TemplateSettings settings{.name = "own", .date = reference.cases["date"]};
    const auto own = make_own_template({one["marked"], {}}, settings, names);
    const auto chats = own->render(reference.chats, RenderFor::training);
    for (std::size_t i = 0; i < chats.size(); ++i) {
      INFO(one["name"] << " chat " << i << " " << reference.cases["chats"][i].dump());
      if (!chats[i].refused.empty()) continue;
      const Document document = encoder.encode(chats[i]);
      CHECK(document.tokens == one["expected"][i]["tokens"].get<std::vector<Token>>());
      std::string trained;
      for (const TokenRun& run : document.trained)
        trained +=
            tokenizer->decode(std::span(document.tokens).subspan(run.first, run.end - run.first));
      std::string spans;
      for (const TextRange& range : chats[i].trained)
        spans += chats[i].text.substr(range.first, range.end - range.first);
      CHECK(trained == spans);
    }
  }
}
