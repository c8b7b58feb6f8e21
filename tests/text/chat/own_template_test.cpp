// Models' own templates: what they write, what of it is trained on, and what they cannot do.
//
// The templates are made up for the tests. Where python3 has no jinja2 the tests say so and check
// the refusal.
#include "text/chat/own_template.hpp"

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/policies/input_error.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/text/chat/chats.hpp"
#include "tests/text/chat/fake_tokenizer.hpp"

using namespace spillway;
using test::Turns;

namespace {

constexpr const char* chatml =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}";

const Turns two_turns = {{"user", "Hi"}, {"assistant", " Ho "}, {"user", "é"}, {"assistant", "€"}};

class Own {
 public:
  explicit Own(std::string text, TemplateLimits limits = {})
      : template_(make_own_template({std::move(text), {}}, {.name = "own.jinja", .limits = limits},
                                    names_)) {}

  RenderedChat render(const ChatRecord& chat, RenderFor purpose = RenderFor::training) {
    return template_->render(std::vector{chat}, purpose).at(0);
  }
  std::string operator()(const Turns& turns, RenderFor purpose = RenderFor::training) {
    return test::marked(render(test::chat(turns), purpose));
  }

 private:
  test::FakeTokenizer tokenizer_{
      {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>"}, "<s>", "</s>"};
  SpecialNames names_{tokenizer_};
  std::unique_ptr<ChatTemplate> template_;
};

// Whether templates can be rendered here; else says why, and checks that.
bool has_jinja() {
  try {
    Own("{{ 1 }}")({{"user", "Hi"}}, RenderFor::text);
    return true;
  } catch (const InputError& error) {
    CHECK(error.hint().find("python3-jinja2") != std::string::npos);
    WARN("python3 with jinja2 is not installed");
    return false;
  }
}

}  // namespace

TEST_CASE("a model's own template writes what the built-in one does", "[chat][jinja]") {
  if (!has_jinja()) return;
  const test::FakeTokenizer tokenizer({"<|im_start|>", "<|im_end|>"});
  const SpecialNames names(tokenizer);
  const auto built_in = make_chat_template({.name = "chatml"}, names);
  Own own(chatml);
  const std::vector<Turns> chats = {
      two_turns,
      {{"system", "é<|im_end|>"}, {"user", "<|im_end|><|im_start|>"}, {"assistant", "a€\n"}},
      {{"user", "\U000f0000<|im_end|>\U000f0001"}, {"assistant", ""}},
      {{"user", "never answered"}},
      {{"assistant", "first"}, {"assistant", "and again"}}};
  for (const Turns& turns : chats) {
    for (const RenderFor purpose : {RenderFor::training, RenderFor::text, RenderFor::answer}) {
      CHECK(own(turns, purpose) ==
            test::marked(built_in->render(std::vector{test::chat(turns)}, purpose).at(0)));
    }
  }
}

TEST_CASE("generation blocks say what is trained on", "[chat][jinja]") {
  if (!has_jinja()) return;
  Own own(
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}é"
      "{% generation %}{{ m.content | trim }}{{ eos_token }}{% endgeneration %}"
      "{% else %}[{{ m.content }}]{% endif %}{% endfor %}");
  CHECK(own(two_turns) == "<s>[Hi]é{Ho</s>}[é]é{€</s>}");
  CHECK(own({{"user", "<s>"}, {"assistant", "a</s>b"}}) == "<s>[[<s>]]é{a[</s>]b</s>}");
}

TEST_CASE("a template that writes older turns otherwise is understood by the content",
          "[chat][jinja]") {
  if (!has_jinja()) return;
  // As models that reason: only the last turn has a place for thoughts.
  Own own(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{% if m.role == 'assistant' and loop.last %}<think>\n{% endif %}"
      "{{ m.content | trim }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  CHECK(own(two_turns) ==
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{Ho<|im_end|>}\n"
        "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n{<think>\n€<|im_end|>}\n");
}

TEST_CASE("where nobody can tell what is trained on, the chat is refused, but not its text",
          "[chat][jinja]") {
  if (!has_jinja()) return;
  Own counts("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
  CHECK(counts(two_turns) ==
        "refused: what is trained on cannot be told: message 2: what stands before the message "
        "depends on what comes after it");
  CHECK(counts(two_turns, RenderFor::text) == "4Hi Ho é€");
  Own drops(
      "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.content }}"
      "{% endif %}{% endfor %}");
  CHECK(drops(two_turns) ==
        "refused: what is trained on cannot be told: message 2: the message cannot be found "
        "again in the text");
}

TEST_CASE("templates have what transformers gives them", "[chat][jinja]") {
  if (!has_jinja()) return;
  const auto text = [](const char* source) {
    return Own(source)({{"user", "<b>é"}}, RenderFor::text);
  };
  CHECK(text("{{ strftime_now('%d %b %Y') }}") == "26 Jul 2024");
  CHECK(text("{{ messages | tojson }}") == R"([{"role": "user", "content": "<b>é"}])");
  CHECK(text("{% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}") == "2");
  CHECK(text("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") ==
        "01");
  CHECK(text("  {% if true %}\na\n  {% endif %}\nb") == "a\nb");
  CHECK(text("{{ bos_token }}{{ unk_token }}{{ tools is none }}") == "<s>True");
  CHECK(text("{{ raise_exception('roles must alternate') }}") ==
        "refused: the template says: roles must alternate");
  CHECK(text("{{ messages[0].nothing.more }}")
            .starts_with("refused: the template says: "
                         "UndefinedError"));
}

TEST_CASE("tools and other fields reach the template, with their names of tokens as letters",
          "[chat][jinja]") {
  if (!has_jinja()) return;
  Own own("{{ tools | tojson }}{{ messages[0].tool_calls[0].name }}{{ messages[0].thinking }}");
  ChatRecord chat = test::chat({{"assistant", ""}});
  chat.tools = R"([{"name":"</s>"}])";
  chat.messages[0].json =
      R"({"role":"assistant","tool_calls":[{"name":"f"}],"reasoning_content":"hm"})";
  CHECK(test::marked(own.render(chat, RenderFor::text)) == R"([{"name": "[</s>]"}]fhm)");
}

TEST_CASE("a template that looks into messages sees no marks of names", "[chat][jinja]") {
  if (!has_jinja()) return;
  const auto text = [](const char* source, const char* content) {
    return Own(source)({{"user", content}}, RenderFor::text);
  };
  constexpr const char* changed =
      "refused: the template says: ValueError: names of special tokens in the messages change what "
      "the template writes";
  CHECK(text("{{ messages[0].content | length }}", "abcd") == "4");
  CHECK(text("{{ messages[0].content | length }}", "</s>") == changed);
  CHECK(text("{{ messages[0].content[1:] }}", "</s>") == changed);
  CHECK(text("{{ messages[0].content[1:] }}", "a</s>") == "[</s>]");
  CHECK(text("{{ messages[0].content | trim }}", " a</s> ") == "a[</s>]");
}

TEST_CASE("a template is a stranger's program: it is held to its limits", "[chat][jinja]") {
  if (!has_jinja()) return;
  const TemplateLimits tight{std::chrono::seconds(1), std::uint64_t{1} << 28, 1000};
  const auto text = [&](const char* source) {
    return Own(source, tight)({{"user", "Hi"}}, RenderFor::text);
  };
  SECTION("memory") {
    CHECK(text("{{ 'a' * 1000000000000 }}") ==
          "refused: the template says: it needs more memory than it may have");
  }
  SECTION("time") {
    check_error(
        [&] {
          text("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
        },
        "the chat template took longer than 1 s", "does not end");
  }
  SECTION("output") {
    CHECK(text("{% for i in range(99999) %}{{ 'abcdefghij' }}{% endfor %}") ==
          "refused: the template says: ValueError: its text is longer than 1000 characters");
  }
  SECTION("Python's own") {
    for (const char* source :
         {"{{ ().__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}",
          "{{ messages.append(1) }}", "{{ namespace.__init__ }}",
          "{{ ''.format.__self__.__class__ }}", "{{ '{0.__class__}'.format(1) }}",
          "{% include '/etc/passwd' %}", "{% set n = namespace() %}{% set n.__x__ = 1 %}"}) {
      INFO(source);
      const std::string result = text(source);
      CHECK((result.empty() || result.starts_with("refused: the template says: ")));
    }
  }
}

TEST_CASE("a template ends, and the next chat has a new process", "[chat][jinja]") {
  if (!has_jinja()) return;
  Own own(
      "{% if messages[0].content == 'stay' %}{% for i in range(99999) %}"
      "{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok",
      {.time = std::chrono::seconds(1)});
  CHECK(own({{"user", "Hi"}}, RenderFor::text) == "ok");
  CHECK_THROWS_AS(own({{"user", "stay"}}, RenderFor::text), InputError);
  CHECK(own({{"user", "Hi"}}, RenderFor::text) == "ok");
}

TEST_CASE("a message needs no JSON of its own", "[chat][jinja]") {
  if (!has_jinja()) return;
  Own own(chatml);
  const ChatRecord bare{{{"user", "\"é", {}}, {"assistant", "Ho", {}}}, {}};
  CHECK(test::marked(own.render(bare)) == own({{"user", "\"é"}, {"assistant", "Ho"}}));
}

TEST_CASE("a date that is none", "[chat]") {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "own.jinja") << "{{ strftime_now('%d') }}";
  const test::FakeTokenizer tokenizer({});
  const SpecialNames names(tokenizer);
  const auto make = [&](const std::string& date) {
    make_chat_template({.name = (folder / "own.jinja").string(), .date = date}, names);
  };
  for (const char* date : {"", "today", "2024-02-30", "2024-13-01", "26 Jul 2024", "2024-07-26x"})
    check_error([&] { make(date); }, std::string(date) + " is no date", "template_date = 2024");
  make("2024-02-29");
}

TEST_CASE("a text that is no template", "[chat][jinja]") {
  if (!has_jinja()) return;
  check_error(
      [] {
        Own("{% if")({{"user", "Hi"}});
      },
      "own.jinja: is no chat template: TemplateSyntaxError", "jinja");
}

TEST_CASE("where models keep their template", "[chat]") {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
  };
  CHECK_FALSE(has_chat_template(folder.path()));
  check_error([&] { read_template_file(folder.path()); },
              folder.path().string() + ": has no chat template", "chat_template = chatml");
  write("tokenizer_config.json",
        R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true,
            "pad_token": null, "chat_template": [{"name": "tool_use", "template": "t"},
                                                 {"name": "default", "template": "d"}]})");
  const std::map<std::string, std::string> variables = {{"bos_token", "<s>"},
                                                        {"eos_token", "</s>"}};
  CHECK(has_chat_template(folder.path()));
  CHECK(read_template_file(folder.path()) == TemplateFile{"d", variables});
  CHECK(read_template_file(folder / "tokenizer_config.json") == TemplateFile{"d", variables});
  write("chat_template.jinja", "j");
  CHECK(read_template_file(folder.path()) == TemplateFile{"j", variables});
  CHECK(read_template_file(folder / "chat_template.jinja") == TemplateFile{"j", variables});

  const auto refused = [](const char* text, const char* what) {
    check_error([&] { parse_tokenizer_config(text, "c.json"); }, std::string("c.json: ") + what,
                "");
  };
  refused("{", "is not a JSON object");
  refused("[]", "is not a JSON object");
  refused(R"({"chat_template": 7})", "`chat_template` is number, not a text");
  refused(R"({"chat_template": [{"name": "rag", "template": "r"}]})", "holds chat templates");
}

TEST_CASE("what the process answers is not believed", "[chat]") {
  for (const char* reply :
       {"", "[]", "{}", R"({"chats": []})", R"({"chats": [1]})", R"({"chats": [{}]})",
        R"({"chats": [{"error": 1}]})", R"({"chats": [{"text": "a", "plain": [], "trained": 1}]})",
        R"({"chats": [{"text": "a", "plain": [], "trained": [[0, 2]]}]})",
        R"({"chats": [{"text": "a", "plain": [], "trained": [[1, 0]]}]})",
        R"({"chats": [{"text": "a", "plain": [], "trained": [[-1, 0]]}]})",
        R"({"chats": [{"text": "ab", "plain": [], "trained": [[0, 2], [1, 2]]}]})"}) {
    INFO(reply);
    CHECK_THROWS_AS(parse_template_reply(reply, 1), InputError);
  }
  CHECK(parse_template_reply(R"({"chats": [{"text": "ab", "plain": [], "trained": [[0, 1]]}]})", 1)
            .at(0)
            .trained == std::vector<TextRange>{{0, 1}});
}
