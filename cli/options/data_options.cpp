#include "cli/options/data_options.hpp"

namespace spillway::cli {

void add_document_options(CLI::App& command, DataSettings& settings) {
  command
      .add_option("--tokenizer", settings.tokenizer,
                  "tokenizer.json, vocab.json, tokenizer.model, a folder with one of them, or "
                  "bytes; auto: that of the model's folder, else bytes")
      ->capture_default_str();
  command
      .add_option("--data-format", settings.data_format,
                  "what the files are: text | jsonl | json | uint16, uint32: bare tokens; auto: "
                  "each file by its beginning")
      ->check(CLI::IsMember({"auto", "text", "jsonl", "json", "uint16", "uint32"}))
      ->capture_default_str();
  command
      .add_option("--chat-template", settings.chat_template,
                  "how chats become text: the name of a template, a file, or a model's folder; "
                  "auto: that of the model's folder")
      ->capture_default_str();
  command.add_option("--template-date", settings.template_date,
                     "YYYY-MM-DD, for templates that write the date of the day; default: always "
                     "the same date");
  command.add_flag("--parse-special", settings.parse_special,
                   "names of special tokens in the data are these tokens, not letters");
  command.add_flag("--skip-malformed", settings.skip_malformed,
                   "leave out records that are malformed, and say how many, instead of refusing");
  command
      .add_option("--train-on", settings.train_on,
                  "assistant: of chats and completions the answers only | all")
      ->check(CLI::IsMember({"assistant", "all"}))
      ->capture_default_str();
}

void add_data_options(CLI::App& command, DataSettings& settings, bool named) {
  if (named)
    command.add_option("--data", settings.data,
                       "text, JSONL, token files, or folders of them, PATH=WEIGHT to see each "
                       "document WEIGHT times an epoch, a list in a .toml file; default: "
                       "Spillway's own text");
  add_document_options(command, settings);
  command
      .add_option("--pack", settings.pack,
                  "on: several documents a sequence, with borders | off: one, with padding | "
                  "stream: all tokens as one, without borders; auto: on for records, stream for "
                  "running text")
      ->check(CLI::IsMember({"auto", "on", "off", "stream"}))
      ->capture_default_str();
  command
      .add_option(
          "--long-documents", settings.long_documents,
          "documents that are longer than a sequence: split into pieces | cut | drop; auto: cut "
          "where not all of them is trained on, else split")
      ->check(CLI::IsMember({"auto", "split", "cut", "drop"}))
      ->capture_default_str();
  command.add_option("--validation", settings.validation,
                     "held out of training: 1% of the documents (of a stream, its end), a number "
                     "of documents, or files of their own");
}

}  // namespace spillway::cli
