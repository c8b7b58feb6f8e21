#include "text/chat/document_reader.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "text/chat/encode_chat.hpp"

namespace spillway {

namespace {

// So many records at most are rendered at once, or of so many bytes.
constexpr std::size_t most_records = 64;
constexpr std::size_t batch_bytes = std::size_t{1} << 20;

std::size_t bytes_of(const Record& record) {
  std::size_t bytes = 0;
  if (const auto* chat = std::get_if<ChatRecord>(&record.content))
    for (const ChatMessage& message : chat->messages) bytes += message.json.size();
  if (const auto* text = std::get_if<TextRecord>(&record.content)) bytes = text->text.size();
  return bytes;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

void DocumentCounts::add(const DocumentCounts& more) {
  source.add(more.source);
  documents += more.documents;
  tokens += more.tokens;
  trained_tokens += more.trained_tokens;
  untrained += more.untrained;
}

struct DocumentReader::State {
  using Take = std::function<void(Document&&)>;

  State(const Source& source_, const Tokenizer& tokenizer_, const DocumentSettings& settings_)
      : source(source_),
        tokenizer(tokenizer_),
        settings(settings_),
        names(tokenizer_),
        encoder(tokenizer_, names) {
    const auto make = [&](const std::string& name) {
      TemplateSettings wanted;
      wanted.name = name;
      wanted.date = settings.template_date;
      wanted.parse_special = settings.parse_special;
      return make_chat_template(wanted, names);
    };
    if (!settings.chat_template.empty()) chat_template = make(settings.chat_template);
    if (!chat_template) instruction_template = make("alpaca");
    if (tokenizer.adds_begin_of_text()) begin = tokenizer.begin_of_text();
    end = tokenizer.end_of_text();
  }

  ChatTemplate& template_of_instructions() const {
    return chat_template ? *chat_template : *instruction_template;
  }

  // `before`: the text of the document that is encoded already.
  void encode(const std::string& before, const std::string& text, Document& document) const {
    encoder.append(before, text,
                   settings.parse_special ? SpecialTokens::parsed : SpecialTokens::as_text,
                   document.tokens);
  }

  Document document_of(const TextRecord& record) const {
    Document document;
    if (record.begins && begin) document.tokens.push_back(*begin);
    const std::size_t first = document.tokens.size();
    encode(record.begins ? "" : "\n", record.text, document);
    if (record.ends && end) document.tokens.push_back(*end);
    add_trained(document, first, document.tokens.size());
    document.goes_on = !record.ends;
    return document;
  }

  Document document_of(const CompletionRecord& record) const {
    Document document;
    if (begin) document.tokens.push_back(*begin);
    encode("", record.prompt, document);
    const std::size_t first = settings.assistant_only ? document.tokens.size() : begin ? 1 : 0;
    encode(record.prompt, record.completion, document);
    if (end) document.tokens.push_back(*end);
    add_trained(document, first, document.tokens.size());
    return document;
  }

  Document document_of(const RenderedChat& chat) const {
    Document document = encoder.encode(chat);
    if (!settings.assistant_only && !document.tokens.empty()) {
      const std::size_t first = begin && document.tokens[0] == *begin ? 1 : 0;
      document.trained = {{first, document.tokens.size()}};
    }
    return document;
  }

  // The records that wait, as documents.
  void flush(const Take& take) {
    std::vector<ChatRecord> chats;
    for (Record& record : waiting) {
      if (auto* chat = std::get_if<ChatRecord>(&record.content)) {
        if (!chat_template) refuse_chat(record.place);
        chats.push_back(std::move(*chat));
      } else if (const auto* instruction = std::get_if<InstructionRecord>(&record.content)) {
        chats.push_back(template_of_instructions().chat_of(*instruction));
      }
    }
    std::vector<RenderedChat> rendered;
    if (!chats.empty())
      rendered = template_of_instructions().render(
          chats, settings.assistant_only ? RenderFor::training : RenderFor::text);
    std::size_t chat = 0;
    const std::vector<Record> records = std::exchange(waiting, {});
    waiting_bytes = 0;
    for (const Record& record : records) {
      Document document;
      const auto* const text = std::get_if<TextRecord>(&record.content);
      if (text != nullptr) {
        document = document_of(*text);
      } else if (const auto* completion = std::get_if<CompletionRecord>(&record.content)) {
        document = document_of(*completion);
      } else {
        const RenderedChat& one = rendered.at(chat++);
        if (!one.refused.empty()) {
          source.refuse(record.place, MalformedRecord(one.refused, one.hint), counts.source);
          continue;
        }
        document = document_of(one);
      }
      document.place = record.place;
      const bool is_piece = text != nullptr && !(text->begins && text->ends);
      hand_out(std::move(document), is_piece, take);
    }
  }

  [[noreturn]] void refuse_chat(const RecordPlace& place) const {
    throw InputError(source.where(place) + ": a chat, and no template that says how it is written",
                     Setting{"chat_template", "chatml"} +
                         " (built in: " + list_of(built_in_templates()) +
                         "), or the folder of the model that is trained, where it has a template");
  }

  // A piece of a text is kept whatever it holds: the document before it goes on in it.
  void hand_out(Document&& document, bool is_piece, const Take& take) {
    if (document.trained.empty() && !is_piece) {
      ++counts.untrained;
      return;
    }
    ++counts.documents;
    counts.tokens += document.tokens.size();
    counts.trained_tokens += document.trained_tokens();
    take(std::move(document));
  }

  const Source& source;
  const Tokenizer& tokenizer;
  DocumentSettings settings;
  SpecialNames names;
  ChatEncoder encoder;
  std::unique_ptr<ChatTemplate> chat_template, instruction_template;
  std::optional<Token> begin, end;
  DocumentCounts counts;
  std::vector<Record> waiting;
  std::size_t waiting_bytes = 0;
};

DocumentReader::DocumentReader(const Source& source, const Tokenizer& tokenizer,
                               const DocumentSettings& settings)
    : state_(std::make_unique<State>(source, tokenizer, settings)) {}

DocumentReader::~DocumentReader() = default;

void DocumentReader::read(const SourcePart& part, const std::function<void(Document&&)>& take) {
  State& state = *state_;
  state.waiting.clear();
  state.waiting_bytes = 0;
  state.source.read(
      part,
      [&](Record&& record) {
        state.waiting_bytes += bytes_of(record);
        state.waiting.push_back(std::move(record));
        if (state.waiting.size() == most_records || state.waiting_bytes >= batch_bytes)
          state.flush(take);
      },
      state.counts.source);
  state.flush(take);
}

const DocumentCounts& DocumentReader::counts() const { return state_->counts; }

std::vector<std::string> DocumentReader::notes() const {
  std::vector<std::string> notes;
  if (state_->chat_template) notes = state_->chat_template->notes();
  const DocumentCounts& counts = state_->counts;
  const auto note = [&](std::uint64_t count, const std::string& what) {
    if (count > 0) notes.push_back(fmt::format("{} {}", count, what));
  };
  note(counts.source.malformed,
       "malformed records are left out; the first: " + counts.source.first_malformed);
  note(counts.untrained, "documents are left out: nothing in them is trained on");
  return notes;
}

std::uint64_t DocumentReader::hash() const {
  const DocumentSettings& settings = state_->settings;
  // The number is raised whenever the same records become other documents.
  const std::string text = fmt::format("1 {} {} {}", state_->template_of_instructions().hash(),
                                       settings.assistant_only, settings.parse_special);
  return ::XXH3_64bits(text.data(), text.size());
}

}  // namespace spillway
