// The tokens of a micro-batch sorted by number, so that the rows of the token table's gradient are
// summed in a fixed order with no atomics (TokenOrder in exec/cuda/kernels/kernels.hpp); and where
// its documents end. Host code.
#pragma once

#include <cstdint>

namespace spillway::cuda {

// Sorts rows 0 .. rows - 1 by their token, stably: rows of the same token lie together and ascend.
//   sorted (rows): the rows in this order.
//   begins (rows + 1): run k, of one token, is sorted[begins[k] .. begins[k + 1]); begins beyond
//   the last run are `rows`.
//   runs: how many runs there are.
// Time is linear in `rows`; allocates nothing. Tokens are not negative.
void order_tokens(const std::int32_t* tokens, std::int64_t rows, std::int32_t* sorted,
                  std::int32_t* begins, std::int32_t* runs);

// ends (rows): the index in its sequence of the first token behind each token's document, from
// where the documents start (exec/data/batches.hpp).
void find_ends(const std::int32_t* starts, std::int64_t rows, std::int64_t sequence_length,
               std::int32_t* ends);

}  // namespace spillway::cuda
