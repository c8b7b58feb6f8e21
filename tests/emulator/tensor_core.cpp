#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>
#include <emulator/tensor_core.hpp>
#include <limits>
#include <string>
#include <vector>

#include "tests/emulator/block.hpp"
#include "tests/emulator/proxy.hpp"

namespace emulator {

namespace {

float bf16_value(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// Ends the launch unless [pointer, pointer + bytes) is aligned and in dynamic shared memory.
std::byte* require_shared(const unsigned char* pointer, std::size_t bytes, const char* what) {
  const auto begin = reinterpret_cast<std::uintptr_t>(dynamic_shared());
  const auto at = reinterpret_cast<std::uintptr_t>(pointer);
  if (at < begin || at + bytes > begin + dynamic_shared_bytes())
    fail_thread(std::string(what) + ": " + std::to_string(bytes) + " bytes at offset " +
                std::to_string(static_cast<std::int64_t>(at - begin)) + " of " +
                std::to_string(dynamic_shared_bytes()) + " bytes of dynamic shared memory");
  if (at % bytes != 0)
    fail_thread(std::string(what) + ": the address in shared memory is no multiple of " +
                std::to_string(bytes));
  return dynamic_shared() + (at - begin);
}

// What a thread's copies that have not arrived are to write.
struct PendingCopy {
  std::byte* to;
  const void* from;  // null: zeros
  std::size_t bytes;
};
struct PendingCopies {
  std::uint64_t run = 0;  // the run of a block that it belongs to
  std::vector<PendingCopy> open;
  std::deque<std::vector<PendingCopy>> groups;
};

PendingCopies& pending_copies() {
  static thread_local std::vector<PendingCopies> of_threads;
  const std::size_t thread =
      threadIdx.x + std::size_t{blockDim.x} * (threadIdx.y + std::size_t{blockDim.y} * threadIdx.z);
  if (of_threads.size() <= thread) of_threads.resize(thread + 1);
  PendingCopies& pending = of_threads[thread];
  if (pending.run != block_run()) pending = {block_run(), {}, {}};
  return pending;
}

}  // namespace

void load_matrices(std::uint32_t (&part)[4], const unsigned char* row, bool transposed) {
  struct Row {
    std::uint16_t element[8];
  } mine;
  std::memcpy(&mine, require_shared(row, sizeof(Row), "ldmatrix"), sizeof(Row));
  const Row* rows = warp_exchange(mine);
  const int lane = lane_index();
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint32_t both = 0;
    for (int i = 0; i < 2; ++i) {
      const int far = 2 * (lane % 4) + i, near = lane / 4;
      const std::uint32_t element =
          transposed ? rows[8 * matrix + far].element[near] : rows[8 * matrix + near].element[far];
      both |= element << (16 * i);
    }
    part[matrix] = both;
  }
}

void multiply_add(float (&sums)[4], const std::uint32_t (&left)[4], std::uint32_t right_low,
                  std::uint32_t right_high) {
  struct Operands {
    std::uint32_t left[4], right[2];
  };
  const Operands* all =
      warp_exchange(Operands{{left[0], left[1], left[2], left[3]}, {right_low, right_high}});
  const int lane = lane_index();
  for (int i = 0; i < 4; ++i) {
    // a0, a1: row lane / 4; a2, a3: 8 further; a4 .. a7: 8 columns further. Column 2 (lane % 4) +
    // i.
    const int row_part = i / 2, row_lane = lane / 4 * 4;
    const int column_lane = (2 * (lane % 4) + i % 2) * 4;
    double sum = static_cast<double>(sums[i]);
    for (int k = 0; k < 16; ++k) {
      const int half = k / 8, quad = k % 8 / 2, shift = 16 * (k % 2);
      const std::uint32_t a = all[row_lane + quad].left[row_part + 2 * half] >> shift & 0xffffu;
      const std::uint32_t b = all[column_lane + quad].right[half] >> shift & 0xffffu;
      sum += static_cast<double>(bf16_value(a)) * static_cast<double>(bf16_value(b));
    }
    sums[i] = static_cast<float>(sum);
  }
}

void copy_async(const unsigned char* shared, const void* global, int bytes, bool valid) {
  const auto size = static_cast<std::size_t>(bytes);
  std::byte* const to = require_shared(shared, size, "cp.async");
  if (valid && reinterpret_cast<std::uintptr_t>(global) % size != 0)
    fail_thread("cp.async: the address in global memory is no multiple of " +
                std::to_string(bytes));
  std::memset(to, 0xff, size);
  pending_copies().open.push_back({to, valid ? global : nullptr, size});
}

void copy_commit() {
  PendingCopies& pending = pending_copies();
  pending.groups.push_back(std::move(pending.open));
  pending.open.clear();
}

void copy_wait(int groups) {
  PendingCopies& pending = pending_copies();
  for (; pending.groups.size() > static_cast<std::size_t>(groups); pending.groups.pop_front()) {
    for (const PendingCopy& copy : pending.groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, copy.bytes);
      } else {
        std::memcpy(copy.to, copy.from, copy.bytes);
      }
      copied_to_shared(copy.to, copy.bytes);
    }
  }
}

float exp2_approximate(float x) {
  const auto flush = [](float value) {
    return std::abs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
  };
  return flush(std::exp2(flush(x)));
}

}  // namespace emulator
