#include "exec/generate/decoder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "exec/cpu/blas_threads.hpp"
#include "policies/model/scratch.hpp"
#include "policies/workload/backend.hpp"

namespace spillway {

namespace {

constexpr std::int64_t most_rows = 128;  // of a prompt at a time

Problem problem_of(const ModelSpec& model, std::int64_t rows) {
  Problem problem;
  problem.model = model;
  problem.model.lora_dropout = 0;
  problem.machine.name = "cpu";
  problem.trains_on = Backend::cpu;
  problem.workload.batch = problem.workload.micro_batch = 1;
  problem.workload.sequence = rows;
  problem.workload.precision = Precision::fp32;
  return problem;
}

std::uint64_t cache_elements(const ModelSpec& model, std::int64_t sequences,
                             std::int64_t positions) {
  return static_cast<std::uint64_t>(model.layers * sequences * 2 * positions * model.kv_heads *
                                    model.width_of_head());
}

}  // namespace

std::uint64_t Decoder::cache_bytes(const ModelSpec& model, std::int64_t sequences,
                                   std::int64_t positions) {
  return cache_elements(model, sequences, positions) * sizeof(float);
}

std::uint64_t Decoder::memory_bytes(const ModelSpec& model, std::int64_t sequences,
                                    std::int64_t positions) {
  const std::int64_t rows = std::max(std::min(most_rows, positions), sequences);
  const std::int64_t floats =
      attention_chunk_rows * positions + rows * 2 * model.hidden +
      std::max<std::int64_t>(sequences, 1) * (model.vocabulary + model.hidden + 2);
  // Each number of rows has a table of rotations: those of a prompt's pieces, and of the prompts
  // that go on.
  const std::int64_t tables = (sequences + 2) * positions * model.width_of_head();
  return cache_bytes(model, sequences, positions) +
         static_cast<std::uint64_t>(floats + tables) * sizeof(float) +
         forward_scratch_bytes(problem_of(model, rows), saved_none);
}

Decoder::Decoder(const ModelSpec& model, UnitWeights& weights, std::int64_t sequences,
                 std::int64_t positions, int threads)
    : model_(model),
      weights_(weights),
      positions_(positions),
      lengths_(static_cast<std::size_t>(sequences), 0),
      cache_(cache_elements(model, sequences, positions)),
      scores_(static_cast<std::size_t>(attention_chunk_rows * positions)) {
  if (positions > model.positions)
    throw InputError(fmt::format("model {} has {} positions, fewer than {} tokens", model.name,
                                 model.positions, positions),
                     fmt::format("{} or less together with the prompt", model.positions));
  model_of(std::min(most_rows, positions));  // sets OpenBLAS to one thread
  use_blas_threads(threads);
}

const ModelCpu& Decoder::model_of(std::int64_t rows) {
  std::unique_ptr<ModelCpu>& model = by_rows_[rows];
  if (!model) {
    const Problem problem = problem_of(model_, rows);
    model = make_model_cpu(problem);
    model->set_positions(positions_);
    scratch_.resize(std::max(scratch_.size(), forward_scratch_bytes(problem, saved_none)));
  }
  return *model;
}

KeyValueCache Decoder::cache(std::int64_t layer, std::int64_t sequence) {
  const std::int64_t width = model_.kv_heads * model_.width_of_head();
  const auto sequences = static_cast<std::int64_t>(lengths_.size());
  float* const keys = cache_.data() + (layer * sequences + sequence) * 2 * positions_ * width;
  return {keys, keys + positions_ * width};
}

// A row for each token; leaves what the last layer makes of them in hidden_.
void Decoder::run(std::span<const std::int64_t> sequence_of_row,
                  std::span<const std::int32_t> tokens) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const ModelCpu& model = model_of(rows);
  hidden_.resize(static_cast<std::size_t>(rows * model_.hidden));
  next_.resize(hidden_.size());
  std::vector<std::int32_t> starts;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    std::int64_t& length = lengths_[static_cast<std::size_t>(sequence_of_row[row])];
    SPILLWAY_ASSERT(length < positions_, "no more tokens than there is room for");
    starts.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(row) - length++));
  }
  model.embed_forward(weights_.embedding(), tokens.data(), hidden_.data(), starts.data());
  std::vector<KeyValueCache> caches(tokens.size());
  for (std::int64_t layer = 0; layer < model_.layers; ++layer) {
    for (std::size_t row = 0; row < caches.size(); ++row)
      caches[row] = cache(layer, sequence_of_row[row]);
    model.layer_next(weights_.layer(layer), hidden_.data(), next_.data(),
                     {caches, starts, scores_.data()}, scratch_.data());
    hidden_.swap(next_);
  }
}

std::span<const float> Decoder::logits(std::int64_t first_row, std::int64_t rows) {
  logits_.resize(static_cast<std::size_t>(rows * model_.vocabulary));
  norm_.resize(static_cast<std::size_t>(rows * (model_.hidden + 2)));
  by_rows_.begin()->second->logits(weights_.head(), hidden_.data() + first_row * model_.hidden,
                                   rows, logits_.data(), norm_.data());
  return logits_;
}

std::span<const float> Decoder::append(std::int64_t sequence,
                                       std::span<const std::int32_t> tokens) {
  SPILLWAY_ASSERT(!tokens.empty());
  std::size_t last = 0;
  for (std::size_t first = 0; first < tokens.size(); first += last) {
    last = std::min(tokens.size() - first, static_cast<std::size_t>(most_rows));
    run(std::vector<std::int64_t>(last, sequence), tokens.subspan(first, last));
  }
  return logits(static_cast<std::int64_t>(last) - 1, 1);
}

std::span<const float> Decoder::append_one(std::span<const std::int64_t> sequences,
                                           std::span<const std::int32_t> tokens) {
  run(sequences, tokens);
  return logits(0, static_cast<std::int64_t>(tokens.size()));
}

void Decoder::cut(std::int64_t sequence, std::int64_t length) {
  std::int64_t& now = lengths_[static_cast<std::size_t>(sequence)];
  now = std::min(now, length);
}

}  // namespace spillway
