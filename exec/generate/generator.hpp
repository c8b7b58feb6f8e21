// Prompts in, tokens out.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "exec/generate/decoder.hpp"
#include "exec/generate/sampler.hpp"

namespace spillway {

struct GenerateOptions {
  std::int64_t tokens = 128;             // for each prompt, at most
  std::int64_t vocabulary = 0;           // tokens that there are; 0: as many as the model has
  std::vector<std::int32_t> stops = {};  // tokens that end an answer, which they are not part of
  Sampling sampling = {};
  // Called with each token when it is known; false: no more for this prompt. May be empty.
  std::function<bool(std::int64_t prompt, std::int32_t token)> take = {};
};

// Goes on from each prompt, which is sequence k of the decoder, until a stop, or until there are as
// many tokens as may be or the decoder has no more positions. The answers, in the order of the
// prompts. What is in the decoder already comes before a prompt.
std::vector<std::vector<std::int32_t>> generate(
    Decoder& decoder, const std::vector<std::vector<std::int32_t>>& prompts,
    const GenerateOptions& options);

}  // namespace spillway
