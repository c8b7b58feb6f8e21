// Which documents of a corpus are held out.
#pragma once

#include <vector>

#include "text/tokens/packing.hpp"

namespace spillway {

// One for each document. Reads all tokens, in order. Throws InputError where all documents would be
// held out.
std::vector<bool> held_out(const TokenCorpus& corpus, const HoldOut& hold_out);

// "1%", "0.5%", "200": documents. Throws InputError.
HoldOut parse_hold_out(const std::string& text);

}  // namespace spillway
