// Batches of which some are not trained on: what follows each of them takes its place.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/data/batches.hpp"

namespace spillway {

class LeftOutBatches final : public Batches {
 public:
  // `left_out`: steps of `all`, ascending, each once.
  LeftOutBatches(std::shared_ptr<const Batches> all, std::vector<std::int64_t> left_out);

  // The step of all batches that a step is trained on.
  static std::int64_t source_of(std::int64_t step, const std::vector<std::int64_t>& left_out);

  void require(std::int64_t sequence_length, std::int64_t vocabulary) const override;
  void batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
             std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
             std::int32_t* starts) const override;
  bool has_borders() const override { return all_->has_borders(); }
  std::int64_t counted_tokens(std::int64_t step, std::int64_t sequences,
                              std::int64_t sequence_length) const override;
  // Of all batches: which are left out a training decides while it goes on.
  std::uint64_t size() const override { return all_->size(); }
  std::uint64_t hash() const override { return all_->hash(); }

 private:
  std::shared_ptr<const Batches> all_;
  std::vector<std::int64_t> left_out_;
};

}  // namespace spillway
