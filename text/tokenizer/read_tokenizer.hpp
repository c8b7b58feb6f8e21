// A tokenizer from the files that models come with.
#pragma once

#include <filesystem>
#include <memory>

#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

// Reads one of these, or a folder that holds one; of several in a folder the first:
//   tokenizer.json                            Hugging Face's tokenizers: byte-level BPE
//                                             (GPT-2, Llama 3, Qwen, SmolLM), BPE like
//                                             SentencePiece's (Llama 2, Mistral)
//   vocab.json and merges.txt,
//   encoder.json and vocab.bpe                GPT-2's own files: name either of the two
//   tokenizer.model                           SentencePiece: BPE and unigram
// tokenizer_config.json and special_tokens_map.json beside the file say which tokens begin, end and
// pad a text. Throws InputError, naming the file and the key, for what is not read.
std::unique_ptr<Tokenizer> read_tokenizer(const std::filesystem::path& path);

}  // namespace spillway
