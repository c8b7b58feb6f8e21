// Sequences that go on token by token: attention over keys and values that are kept.
#include <algorithm>

#include "base/errors.hpp"
#include "exec/cpu/model_cpu.hpp"

namespace spillway {

void ModelCpu::layer_next(const float* parameters, const float* input, float* output,
                          const NextRows& rows, std::byte* scratch) const {
  SPILLWAY_ASSERT(b_ == 1);
  LayerTensors tensors;
  tensors.starts = rows.starts.data();
  tensors.next = &rows;
  const std::uint64_t used = place(tensors.write, scratch, saved_all_, 1, 0);
  float* left = reinterpret_cast<float*>(scratch + used);
  tensors.adapters = carve_adapters(left, false, {{}, 0, 0, false});
  std::copy(tensors.write.begin(), tensors.write.end(), tensors.read.begin());
  compute_activations(parameters, input, saved_none, tensors, nullptr);
  compute_output(parameters, tensors, output);
}

void ModelCpu::attend(const LayerTensors& tensors, const QueryKeyValue<const float>& in,
                      float* output, float* log_sum_exp, float* scores) const {
  if (tensors.next == nullptr)
    return attention_forward(kernels_, attention_of(tensors), in, output, log_sum_exp, scores);
  const NextRows& next = *tensors.next;
  const std::int64_t width = attention_.kv_width();
  for (std::int64_t first = 0, end = 0; first < t_; first = end) {  // of one sequence
    const auto row = static_cast<std::size_t>(first);
    const KeyValueCache& cache = next.caches[row];
    AttentionShape shape = attention_;
    shape.past = first - next.starts[row];
    for (end = first; end < t_ && next.caches[static_cast<std::size_t>(end)].keys == cache.keys;
         ++end) {
      const std::int64_t at = (shape.past + end - first) * width;
      std::copy_n(in.key + end * in.key_stride, width, cache.keys + at);
      std::copy_n(in.value + end * in.value_stride, width, cache.values + at);
    }
    shape.tokens = end - first;
    shape.chunk_rows = std::min(shape.chunk_rows, shape.tokens);
    attention_forward(kernels_, shape,
                      {in.query + first * in.query_stride, cache.keys, cache.values,
                       in.query_stride, width, width},
                      output + first * attention_.width(), nullptr, next.scores);
  }
}

void ModelCpu::logits(const float* parameters, const float* hidden, std::int64_t rows,
                      float* logits, float* scratch) const {
  float* const norm = scratch;  // (rows, C)
  final_norm(parameters, hidden, norm + rows * c_, norm, rows);
  head_.forward(kernels_, parameters, norm, nullptr, logits, rows, {});
}

}  // namespace spillway
