// The emulated instructions of exec/cuda/attention/warpgroup.hpp against plain matrix products, and
// the mistakes their emulation is to show.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "exec/cuda/attention/warpgroup.hpp"
#include "exec/cuda/device/launch.hpp"
#include "tests/cuda/emulator/emulator_run.hpp"

namespace spillway::cuda {
namespace {

using Catch::Matchers::Contains;
using emulator::test::run;

constexpr int inner = 32;  // two steps of 16

// Small whole numbers: every product and sum is exact.
std::vector<float> whole_numbers(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 17) - 8);
  return values;
}

// How an operand of `majors` (rows of the left, columns of the right) x 32 lies in shared memory.
// `swizzle` as in bits 62-63 of a descriptor.
struct Layout {
  unsigned swizzle;
  bool transposed;  // majors run along rows
  int majors;
  int width() const { return swizzle == 0 ? 1 : swizzle == 1 ? 8 : swizzle == 2 ? 4 : 2; }
  int row_bytes() const { return 16 * width(); }
  // Written down from the figures of the PTX ISA ("Strides", "Shared Memory Matrix Layout"), in
  // numbers of 16 bytes, apart from how the emulation computes it: a row of an atom is `width`
  // pieces, an atom 8 rows; atoms follow each other along the dimension that does not run along
  // rows, then along the other.
  int offset(int major, int step) const {
    const int along = transposed ? major : step, across = transposed ? step : major;
    const int across_size = transposed ? inner : majors;
    const int piece = along / 8, atom_column = piece / width(), atom_row = across / 8;
    const int row = across % 8;
    // Piece p of row r of an atom lies where p ^ (r / (8 / width)) says: 128 bytes: r, 64: r / 2,
    // 32: r / 4.
    const int place = swizzle == 0 ? 0 : piece % width() ^ row / (8 / width());
    return (atom_column * (across_size / 8) + atom_row) * 8 * row_bytes() + row * row_bytes() +
           place * 16 + along % 8 * 2;
  }
  int bytes() const {
    const int along = transposed ? majors : inner, across = transposed ? inner : majors;
    return (along + 8 * width() - 1) / (8 * width()) * across * row_bytes();
  }
  // From one atom to the next across, and along.
  std::uint32_t across_bytes() const { return static_cast<std::uint32_t>(8 * row_bytes()); }
  std::uint32_t along_bytes() const {
    return static_cast<std::uint32_t>((transposed ? inner : majors) * row_bytes());
  }
  std::uint64_t descriptor(SharedAddress at, int step) const {
    // A step of 16: along rows 32 bytes (or, beyond a row, atoms); across rows two atoms.
    const int pieces = 2 * step;
    const std::uint32_t further =
        transposed ? static_cast<std::uint32_t>(2 * step) * across_bytes()
                   : static_cast<std::uint32_t>(pieces / width()) * along_bytes() +
                         static_cast<std::uint32_t>(pieces % width() * 16);
    // Which of the two offsets is "leading" depends on the mode (CUTLASS, make_gmma_desc): with a
    // swizzle the stride is across rows; without, K-major the same, MN-major the other way round.
    const bool swapped = swizzle == 0 && transposed;
    const std::uint32_t leading = swapped ? across_bytes() : along_bytes();
    const std::uint32_t stride = swapped ? along_bytes() : across_bytes();
    return descriptor_further(descriptor_field(shared_window(at)) |
                                  (descriptor_field(leading) << 16) |
                                  (descriptor_field(stride) << 32) | (std::uint64_t{swizzle} << 62),
                              further);
  }
};

void store(std::byte* at, const Layout& layout, const float* values) {
  for (int major = 0; major < layout.majors; ++major)
    for (int step = 0; step < inner; ++step)
      *reinterpret_cast<bf16*>(at + layout.offset(major, step)) =
          to_bf16(values[major * inner + step]);
}

int tiles_begin() {
  const std::uint32_t begin = shared_window(shared_address(dynamic_shared()));
  return static_cast<int>((1024 - begin % 1024) % 1024);
}

// sums (64 x columns) = left (64 x 32) right (columns x 32, transposed).
__global__ void layout_kernel(const float* left, const float* right, float* sums, Layout left_as,
                              Layout right_as) {
  std::byte* const memory = dynamic_shared() + tiles_begin();
  std::byte* const right_memory = memory + left_as.bytes();
  if (threadIdx.x == 0) {
    store(memory, left_as, left);
    store(right_memory, right_as, right);
    fence_for_products();
  }
  __syncthreads();
  float mine[64];
  products_begin();
  for (int step = 0; step < inner / 16; ++step) {
    ::emulator::multiply_shared(
        mine, right_as.majors, left_as.descriptor(shared_address(memory), step), left_as.transposed,
        right_as.descriptor(shared_address(right_memory), step), right_as.transposed, step > 0);
  }
  products_commit();
  products_wait<0>();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = 0; i < right_as.majors / 2; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8;
    sums[row * right_as.majors + i / 4 * 8 + 2 * (lane % 4) + i % 2] = mine[i];
  }
}

std::vector<float> product(const std::vector<float>& left, const std::vector<float>& right,
                           int columns) {
  std::vector<float> sums(static_cast<std::size_t>(64 * columns));
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < columns; ++column)
      for (int k = 0; k < inner; ++k)
        sums[static_cast<std::size_t>(row * columns + column)] +=
            left[static_cast<std::size_t>(row * inner + k)] *
            right[static_cast<std::size_t>(column * inner + k)];
  return sums;
}

TEST_CASE("wgmma multiplies operands of every layout, with every swizzle, as plain products do") {
  for (const int columns : {64, 128}) {
    const auto left = whole_numbers(64 * inner, 1);
    const auto right = whole_numbers(static_cast<std::size_t>(columns * inner), 2);
    const std::vector<float> expected = product(left, right, columns);
    for (const unsigned swizzle : {0u, 1u, 2u, 3u}) {
      for (const int transposed : {0, 1, 2, 3}) {
        emulator::reset();
        emulator::seed(swizzle + 4 * static_cast<unsigned>(transposed));
        const Layout left_as{swizzle, transposed % 2 == 1, 64};
        const Layout right_as{swizzle, transposed / 2 == 1, columns};
        INFO(columns << " columns, swizzle " << swizzle << ", transposed: left "
                     << left_as.transposed << ", right " << right_as.transposed);
        std::vector<float> sums(expected.size());
        const Launch shape{dim3(1), dim3(128),
                           static_cast<std::size_t>(1024 + left_as.bytes() + right_as.bytes())};
        CHECK(run(layout_kernel, shape, left.data(), right.data(), sums.data(), left_as,
                  right_as) == "");
        CHECK(sums == expected);
      }
    }
  }
  emulator::reset();
}

// What a kernel of one warp that copies and one warpgroup that multiplies may leave out. It adds up
// left (64 x 16) x tile t (64 x 16, transposed; each row 128 bytes, of which 32 are used) over
// tiles, with two buffers.
enum class Mistake {
  none,
  no_proxy_fence,  // copies are not made visible to tensor cores
  no_copy_wait,    // the barrier is reached before copies arrive
  no_full_wait,    // products do not wait for the buffer
  early_release,   // the buffer is free before products are done
  no_empty_wait,   // copies do not wait for a free buffer
  no_begin,        // no wgmma.fence
  no_commit,
  no_wait,       // sums are used before the wait
  other_parity,  // of the full barriers
  unaligned,     // tiles do not begin on 1024 bytes
  no_swizzle,    // copies do not swizzle
  other_stride   // of the descriptor
};

constexpr int tiles = 5, tile_bytes = 64 * 128;

__global__ void pipeline_kernel(const bf16* left, const bf16* right, float* sums, Mistake mistake) {
  const int shift = mistake == Mistake::unaligned ? 128 : 0;
  const SharedAddress begin = shared_address(dynamic_shared() + tiles_begin() + shift);
  const SharedAddress buffers = begin + tile_bytes, barriers = buffers + 2 * tile_bytes;
  const auto full = [&](int tile) { return barriers + 8 * (tile % 2); };
  const auto empty = [&](int tile) { return barriers + 16 + 8 * (tile % 2); };
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // 64 rows of 16 numbers, two pieces each.
  const auto copy = [&](SharedAddress to, const bf16* from) {
    for (int piece = lane; piece < 128; piece += 32) {
      const int row = piece / 2, part = piece % 2;
      const int place = mistake == Mistake::no_swizzle ? part : part ^ row % 8;
      copy_async_16(to + row * 128 + place * 16, from + row * 16 + part * 8, true);
    }
    copy_commit();
    if (mistake != Mistake::no_copy_wait) copy_wait<0>();
    if (mistake != Mistake::no_proxy_fence) fence_for_products();
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(full(i), 32);
      barrier_init(empty(i), 4);
    }
  }
  if (warp == 4) copy(begin, left);
  __syncthreads();
  if (warp == 4) {
    for (int tile = 0; tile < tiles; ++tile) {
      if (mistake != Mistake::no_empty_wait) barrier_wait(empty(tile), (tile / 2 + 1) % 2);
      copy(buffers + tile % 2 * tile_bytes, right + tile * 64 * 16);
      barrier_arrive(full(tile));
    }
    return;
  }
  WarpgroupSums<64> mine;
  const std::uint32_t stride = mistake == Mistake::other_stride ? 512 : 1024;
  const auto release = [&](int tile) {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty(tile));
  };
  for (int tile = 0; tile < tiles; ++tile) {
    const int parity = mistake == Mistake::other_parity ? (tile / 2 + 1) % 2 : tile / 2 % 2;
    if (mistake != Mistake::no_full_wait) barrier_wait(full(tile), parity);
    if (mistake != Mistake::no_begin) products_begin();
    multiply_shared(mine, matrix_descriptor(begin, 16, stride),
                    matrix_descriptor(buffers + tile % 2 * tile_bytes, 16, stride), tile > 0);
    if (mistake != Mistake::no_commit) products_commit();
    if (mistake == Mistake::early_release) release(tile);
    if (mistake != Mistake::no_wait) products_wait<0>();
    if (mistake != Mistake::early_release) release(tile);
  }
  for (int i = 0; i < 32; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8;
    sums[row * 64 + i / 4 * 8 + 2 * (lane % 4) + i % 2] = mine.sum[i];
  }
}

// Whether the kernel's result is right under an order of threads.
bool pipeline_is_right(Mistake mistake, unsigned seed) {
  emulator::reset();
  emulator::seed(seed);
  const auto left = whole_numbers(64 * 16, seed), right = whole_numbers(tiles * 64 * 16, seed + 1);
  const auto rounded = [](const std::vector<float>& values) {
    std::vector<bf16> all;
    for (const float value : values) all.push_back(to_bf16(value));
    return all;
  };
  // Rows of copies are 16-byte aligned in global memory as on a GPU.
  struct alignas(16) Numbers {
    bf16 number[8];
  };
  const auto aligned = [&](const std::vector<float>& values) {
    const std::vector<bf16> numbers = rounded(values);
    std::vector<Numbers> all(numbers.size() / 8);
    for (std::size_t i = 0; i < numbers.size(); ++i) all[i / 8].number[i % 8] = numbers[i];
    return all;
  };
  const auto left_numbers = aligned(left), right_numbers = aligned(right);
  std::vector<float> sums(64 * 64, NAN), expected(64 * 64);
  for (std::size_t tile = 0; tile < tiles; ++tile)
    for (std::size_t row = 0; row < 64; ++row)
      for (std::size_t column = 0; column < 64; ++column)
        for (std::size_t k = 0; k < 16; ++k)
          expected[64 * row + column] += left[16 * row + k] * right[(64 * tile + column) * 16 + k];
  const Launch shape{dim3(1), dim3(160), 1024 + 128 + 3 * tile_bytes + 32};
  const std::string failure = run(pipeline_kernel, shape, left_numbers.data()->number,
                                  right_numbers.data()->number, sums.data(), mistake);
  return failure.empty() && sums == expected;
}

TEST_CASE("Products of a warpgroup fed by copies are right in any order of threads") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    CHECK(pipeline_is_right(Mistake::none, seed));
  }
  emulator::reset();
}

// Each mistake is one that a GPU may let pass for long; most orders of threads show it here.
TEST_CASE("A fence, wait, barrier or swizzle that is left out shows in most orders of threads") {
  struct Left {
    Mistake mistake;
    const char* name;
  };
  for (const auto& [mistake, name] :
       {Left{Mistake::no_proxy_fence, "proxy fence"},
        Left{Mistake::no_copy_wait, "wait for copies"},
        Left{Mistake::no_full_wait, "wait for a full buffer"},
        Left{Mistake::early_release, "wait before release"},
        Left{Mistake::no_empty_wait, "wait for a free buffer"},
        Left{Mistake::no_begin, "wgmma.fence"}, Left{Mistake::no_commit, "commit"},
        Left{Mistake::no_wait, "wait for products"}, Left{Mistake::other_parity, "parity"},
        Left{Mistake::unaligned, "alignment"}, Left{Mistake::no_swizzle, "swizzle"},
        Left{Mistake::other_stride, "stride"}}) {
    int shown = 0;
    for (unsigned seed = 0; seed < 20; ++seed) shown += pipeline_is_right(mistake, seed) ? 0 : 1;
    INFO(name << " left out: shown by " << shown << " of 20 seeds");
    CHECK(shown >= 14);
  }
  emulator::reset();
}

enum class Stray { sums_touched, left_touched, other_lane, other_warp, outside, base_offset };

__global__ void stray_kernel(Stray stray) {
  const SharedAddress begin = shared_address(dynamic_shared() + tiles_begin());
  if (threadIdx.x < 64) copy_async_16(begin + 16 * static_cast<int>(threadIdx.x), nullptr, false);
  copy_commit();
  copy_wait<0>();
  fence_for_products();
  __syncthreads();
  WarpgroupSums<64> sums;
  Matrices left{{0, 0, 0, 0}};
  std::uint64_t right = matrix_descriptor(begin, 16, 0);
  if (stray == Stray::other_lane && threadIdx.x % 32 == 5) right = descriptor_further(right, 32);
  if (stray == Stray::other_warp && threadIdx.x / 32 == 2) right = descriptor_further(right, 32);
  if (stray == Stray::outside) right = descriptor_further(right, 64 * 1024);
  if (stray == Stray::base_offset) right |= std::uint64_t{1} << 49;
  products_begin();
  multiply_registers(sums, left, right, false);
  products_commit();
  if (stray == Stray::sums_touched) sums.sum[3] = 0.0f;
  if (stray == Stray::left_touched) left.part[1] = 7;
  products_wait<0>();
}

TEST_CASE("Products whose registers are touched, or whose descriptors differ, end the launch") {
  const Launch shape{dim3(1), dim3(128), 4096};
  const auto failure = [&](Stray stray) {
    emulator::reset();
    return run(stray_kernel, shape, stray);
  };
  CHECK_THAT(failure(Stray::sums_touched), Contains("sums changed"));
  CHECK_THAT(failure(Stray::left_touched), Contains("left operand changed"));
  CHECK_THAT(failure(Stray::other_lane), Contains("lanes of a warp start different"));
  CHECK_THAT(failure(Stray::other_warp), Contains("warps of a warpgroup start different"));
  CHECK_THAT(failure(Stray::outside), Contains("an operand at offset"));
  CHECK_THAT(failure(Stray::base_offset), Contains("base offset"));
  emulator::reset();
}

__global__ void barrier_kernel(int* order, bool misses) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (misses && threadIdx.x == 7) return;
  atomicAdd(order + group, 1);
  warpgroup_barrier(group);
  if (order[group] != 128) order[2] = 1;
}

TEST_CASE("A barrier of a warpgroup waits for its threads, and for no others") {
  emulator::reset();
  for (unsigned seed = 0; seed < 10; ++seed) {
    emulator::seed(seed);
    std::vector<int> order(3);
    CHECK(run(barrier_kernel, {dim3(1), dim3(256), 0}, order.data(), false) == "");
    CHECK(order == std::vector<int>{128, 128, 0});
  }
  std::vector<int> order(3);
  CHECK_THAT(run(barrier_kernel, {dim3(1), dim3(256), 0}, order.data(), true),
             Contains("wait for each other in vain"));
  emulator::reset();
}

}  // namespace
}  // namespace spillway::cuda
