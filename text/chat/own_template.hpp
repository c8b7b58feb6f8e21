// A model's own chat template, and what its files say of it.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/chat_template.hpp"

namespace spillway {

struct TemplateFile {
  std::string text;  // empty: the files hold no template
  // "bos_token": "<s>", as a template knows them.
  std::map<std::string, std::string> variables;
  bool operator==(const TemplateFile&) const = default;
};

// Reads a .jinja file, a tokenizer_config.json, or a model's folder. Throws InputError.
TemplateFile read_template_file(const std::filesystem::path& path);
// The contents of a tokenizer_config.json. Throws InputError with `name`.
TemplateFile parse_tokenizer_config(const std::string& text, const std::string& name);

// What the child process answered to `chats` chats. Throws InputError where that is no answer.
std::vector<RenderedChat> parse_template_reply(const std::string& text, std::size_t chats);

std::unique_ptr<ChatTemplate> make_own_template(const TemplateFile& file,
                                                const TemplateSettings& settings,
                                                const SpecialNames& names);

}  // namespace spillway
