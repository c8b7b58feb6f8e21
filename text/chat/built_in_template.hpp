// Templates that many models share, written here: what is content and what is trained on is known.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/chat/chat_template.hpp"

namespace spillway {

// Nothing: there is none of this name.
std::unique_ptr<ChatTemplate> make_built_in_template(const std::string& name,
                                                     const SpecialNames& names, bool parse_special);

}  // namespace spillway
