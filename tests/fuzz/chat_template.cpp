// What templates of chats are made from. After `c`, a tokenizer_config.json; after `r`, an answer
// of the process that renders a model's own template; after anything else, a chat as JSON, which
// the built-in templates write.
#include <algorithm>

#include "tests/fuzz/fuzz.hpp"
#include "tests/text/chat/fake_tokenizer.hpp"
#include "text/chat/encode_chat.hpp"
#include "text/chat/own_template.hpp"
#include "text/source/json_record.hpp"

using namespace spillway;

namespace {

const test::FakeTokenizer& tokenizer() {
  static const test::FakeTokenizer made({"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"},
                                        "<s>", "</s>");
  return made;
}

const SpecialNames& special_names() {
  static const SpecialNames made(tokenizer());
  return made;
}

Document encoded(const RenderedChat& chat) {
  static const ChatEncoder encoder(tokenizer(), special_names());
  Document document = encoder.encode(chat);
  fuzz::require(tokenizer().decode(document.tokens) == chat.text, "the tokens are the text");
  std::size_t end = 0;
  for (const TokenRun& run : document.trained) {
    fuzz::require(run.first < run.end && run.end <= document.tokens.size(), "runs are in it");
    fuzz::require(end == 0 || run.first > end, "runs are apart");
    end = run.end;
  }
  return document;
}

void check_built_in(const ChatRecord& chat) {
  for (const std::string& name : built_in_templates()) {
    const auto built_in = make_chat_template({.name = name}, special_names());
    const RenderedChat rendered = built_in->render(std::vector{chat}, RenderFor::training).at(0);
    if (!rendered.refused.empty()) continue;
    const Document document = encoded(rendered);
    if (name != "chatml") continue;
    // Whatever the messages say, each begins once.
    const Token begin = *tokenizer().find("<|im_start|>");
    const auto begins = std::count(document.tokens.begin(), document.tokens.end(), begin);
    fuzz::require(begins == static_cast<std::ptrdiff_t>(chat.messages.size()),
                  "no message makes a special token");
  }
}

}  // namespace

SPILLWAY_FUZZ_TARGET(chat_template) {
  const std::string text = fuzz::text_of(input);
  const char form = text.empty() ? ' ' : text[0];
  if (form == 'c') {
    fuzz::accepted([&] { parse_tokenizer_config(text.substr(1), "tokenizer_config.json"); });
  } else if (form == 'r') {
    std::vector<RenderedChat> chats;
    if (fuzz::accepted([&] { chats = parse_template_reply(text.substr(1), 1); }))
      encoded(chats.at(0));
  } else {
    Record record;
    if (!fuzz::accepted([&] { record = parse_json_record(text); })) return;
    if (const auto* chat = std::get_if<ChatRecord>(&record.content)) check_built_in(*chat);
  }
}
