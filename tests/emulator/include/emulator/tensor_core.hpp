// The instructions of exec/cuda/attention/tensor_core.hpp, emulated: what a warp does together goes
// through one exchange of its 32 lanes. Called by threads of a kernel, the same way as there.
//
// Layouts are those of the PTX ISA: "Warp-level matrix load instruction: ldmatrix", "Matrix
// Fragments for mma.m16n8k16 with floating point type". Shared memory is the block's dynamic one;
// addresses outside of it, or not aligned, end the launch.
#pragma once

#include <cstdint>

namespace emulator {

// ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16: `row` is the address of row l % 8 of matrix
// l / 8 for lane l. A lane reads its row when it gets here, so that what another lane has yet to
// write, without a barrier between, is missing.
void load_matrices(std::uint32_t (&part)[4], const unsigned char* row, bool transposed);

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: sums += left right. The 16 products of a sum
// are added exactly and then rounded once, which is more exact than any GPU and within what one may
// do.
void multiply_add(float (&sums)[4], const std::uint32_t (&left)[4], std::uint32_t right_low,
                  std::uint32_t right_high);

// cp.async: from now until the wait the bytes are NaN, and only then are read and written. A copy
// that is not `valid` writes zeros.
void copy_async(const unsigned char* shared, const void* global, int bytes, bool valid);
void copy_commit();
void copy_wait(int groups);

// ex2.approx.ftz.f32, as exact as the C library's.
float exp2_approximate(float x);

}  // namespace emulator
