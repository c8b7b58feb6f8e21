#include "exec/data/left_out_batches.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

LeftOutBatches::LeftOutBatches(std::shared_ptr<const Batches> all,
                               std::vector<std::int64_t> left_out)
    : all_(std::move(all)), left_out_(std::move(left_out)) {
  SPILLWAY_ASSERT(std::is_sorted(left_out_.begin(), left_out_.end(), std::less_equal<>()));
}

std::int64_t LeftOutBatches::source_of(std::int64_t step,
                                       const std::vector<std::int64_t>& left_out) {
  for (const std::int64_t batch : left_out) {
    if (batch > step) break;
    ++step;
  }
  return step;
}

void LeftOutBatches::require(std::int64_t sequence_length, std::int64_t vocabulary) const {
  all_->require(sequence_length, vocabulary);
}

void LeftOutBatches::batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
                           std::int64_t sequence_length, std::int32_t* tokens,
                           std::int32_t* targets, std::int32_t* starts) const {
  all_->batch(source_of(step, left_out_), first_sequence, sequences, sequence_length, tokens,
              targets, starts);
}

std::int64_t LeftOutBatches::counted_tokens(std::int64_t step, std::int64_t sequences,
                                            std::int64_t sequence_length) const {
  return all_->counted_tokens(source_of(step, left_out_), sequences, sequence_length);
}

}  // namespace spillway
