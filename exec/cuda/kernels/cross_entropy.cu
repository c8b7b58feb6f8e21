// Softmax cross entropy, a block per row of logits, in place.
//
// First the logits are read: every thread keeps the maximum of its own and the sum of exponentials
// against it, rescaled where the maximum grows, so that the arithmetic goes on under the loads.
// Then the threads' maxima and sums are put together, and the gradient written. Between the two the
// row waits in shared memory (101 KB for 50,304 columns of bf16: two blocks to a multiprocessor of
// compute capability 9.0), so that one read and one write of a logit (4 bytes in bf16) are all that
// is moved. Where two such rows do not fit on a multiprocessor (GPUs of 8.0 have 164 KB, those of
// 8.6 and 8.9 100 KB), one block alone would leave it idle while it waits for memory or for its own
// threads: the row is read again, mostly from the L2 cache, 6 bytes of a logit, and the bits are
// the same.
#include <cfloat>

#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/data/batches.hpp"

namespace spillway::cuda {

namespace {

constexpr int threads = 768;  // two blocks are all that a multiprocessor of 1536 threads runs
constexpr int warps = threads / warp_size;
constexpr int in_flight = 4;

template <class Element>
struct Rows {
  Element* logits;
  std::int64_t stride, vocabulary;
  const std::int32_t* targets;
  const float* scale;
  double* token_losses;
};

// The maximum of some logits, and the sum of exp(logit - maximum). Not infinite, so that logits of
// -infinity alone do no harm.
struct Softmax {
  float maximum = -FLT_MAX, sum = 0;
};

template <class Element>
__device__ inline void include(Softmax& softmax, const float (&x)[pack_size<Element>]) {
  float maximum = softmax.maximum;
  SPILLWAY_UNROLL
  for (int i = 0; i < pack_size<Element>; ++i) maximum = fmaxf(maximum, x[i]);
  if (maximum > softmax.maximum) {
    softmax.sum *= exponential<Element>(softmax.maximum - maximum);
    softmax.maximum = maximum;
  }
  SPILLWAY_UNROLL
  for (int i = 0; i < pack_size<Element>; ++i)
    softmax.sum += exponential<Element>(x[i] - softmax.maximum);
}

// Of all threads of the block.
template <class Element>
__device__ inline Softmax of_block(const Softmax& own) {
  __shared__ float maxima[warps], sums[warps];
  const int warp = thread_x() / warp_size;
  Softmax all;
  const float of_warp = warp_maximum(own.maximum);
  if (thread_x() % warp_size == 0) maxima[warp] = of_warp;
  __syncthreads();
  all.maximum = maxima[0];
  SPILLWAY_UNROLL
  for (int k = 1; k < warps; ++k) all.maximum = fmaxf(all.maximum, maxima[k]);
  const float sum = warp_sum(own.sum * exponential<Element>(own.maximum - all.maximum));
  if (thread_x() % warp_size == 0) sums[warp] = sum;
  __syncthreads();
  SPILLWAY_UNROLL
  for (int k = 0; k < warps; ++k) all.sum += sums[k];
  return all;
}

// x[at], without an index that would move x out of registers.
template <int size>
__device__ inline float element(const float (&x)[size], int at) {
  float result = x[0];
  SPILLWAY_UNROLL
  for (int i = 1; i < size; ++i)
    if (i == at) result = x[i];
  return result;
}

template <class Element, bool staged>
__global__ void __launch_bounds__(threads, 2) cross_entropy_kernel(Rows<Element> rows) {
  constexpr int size = pack_size<Element>;
  const std::int64_t row = block_x();
  Element* const logits = rows.logits + row * rows.stride;
  auto* const stage = reinterpret_cast<Words*>(dynamic_shared());  // a thread reads its own alone
  const int vocabulary = static_cast<int>(rows.vocabulary);
  const int packs = (vocabulary + size - 1) / size;
  const int all_packs = static_cast<int>(rows.stride) / size;

  Softmax softmax;
  for (int first = thread_x(); first < packs; first += in_flight * threads) {
    Words words[in_flight];
    SPILLWAY_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      const int at = first + k * threads;
      if (at < packs) words[k] = load_words(logits + at * size);
    }
    SPILLWAY_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      const int at = first + k * threads;
      if (at >= packs) continue;
      if constexpr (staged) stage[at] = words[k];
      float x[size];
      unpack<Element>(words[k], x);
      if (at == packs - 1) {
        SPILLWAY_UNROLL
        for (int i = 0; i < size; ++i)
          if (at * size + i >= vocabulary) x[i] = -INFINITY;
      }
      include<Element>(softmax, x);
    }
  }
  softmax = of_block<Element>(softmax);

  const int target = rows.targets[row];
  const bool counts = target != no_target;
  const int target_pack = counts ? target / size : 0;
  const float scale = *rows.scale, factor = divide(scale, softmax.sum);
  float target_logit = 0;
  for (int at = thread_x(); at < all_packs; at += threads) {
    float x[size] = {};
    if (counts && at < packs) {
      unpack<Element>(staged ? stage[at] : load_words(logits + at * size), x);
      if (at == target_pack) target_logit = element(x, target % size);
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) x[i] = exponential<Element>(x[i] - softmax.maximum) * factor;
      if (at == target_pack) {
        SPILLWAY_UNROLL
        for (int i = 0; i < size; ++i)
          if (i == target % size) x[i] -= scale;
      }
      if (at == packs - 1) {
        SPILLWAY_UNROLL
        for (int i = 0; i < size; ++i)
          if (at * size + i >= vocabulary) x[i] = 0;
      }
    }
    store_words(logits + at * size, pack<Element>(x));
  }
  if (thread_x() == target_pack % threads) {
    const double loss = log(static_cast<double>(softmax.sum)) -
                        (static_cast<double>(target_logit) - static_cast<double>(softmax.maximum));
    rows.token_losses[row] = counts ? loss : 0;
  }
}

}  // namespace

template <class Element>
void cross_entropy(Element* logits, std::int64_t stride, std::int64_t vocabulary,
                   const std::int32_t* targets, const float* scale, double* token_losses,
                   std::int64_t rows, cudaStream_t stream) {
  SPILLWAY_ASSERT(stride % 8 == 0 && stride < (1 << 30) && on_16_bytes(logits));
  SPILLWAY_ASSERT(vocabulary > 0 && vocabulary <= stride);
  if (rows == 0) return;
  constexpr int of_kernel = 2 * warps * static_cast<int>(sizeof(float));  // of fixed size
  const Rows<Element> all{logits, stride, vocabulary, targets, scale, token_losses};
  const std::int64_t packs = divide_up(vocabulary, pack_size<Element>);
  const auto bytes = static_cast<std::int64_t>(sizeof(Words)) * packs;
  Launch shape{dim3(grid_size(rows)), dim3(threads)};
  if (blocks_that_fit(bytes + of_kernel) >= 2) {
    shape.shared_bytes = static_cast<std::size_t>(bytes);
    // Else the caches may be left more of it, and one block of two find no room.
    SPILLWAY_CUDA(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(cross_entropy_kernel<Element, true>),
                             cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    launch("cross_entropy", cross_entropy_kernel<Element, true>, shape, stream, all);
  } else {
    launch("cross_entropy", cross_entropy_kernel<Element, false>, shape, stream, all);
  }
}

template void cross_entropy(float*, std::int64_t, std::int64_t, const std::int32_t*, const float*,
                            double*, std::int64_t, cudaStream_t);
template void cross_entropy(bf16*, std::int64_t, std::int64_t, const std::int32_t*, const float*,
                            double*, std::int64_t, cudaStream_t);

}  // namespace spillway::cuda
