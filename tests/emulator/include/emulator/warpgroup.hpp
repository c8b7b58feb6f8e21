// The instructions of exec/cuda/attention/warpgroup.hpp, emulated. Called by threads of a kernel,
// the same way as there.
//
// Products are those of warps: each warp of a warpgroup computes its own 16 of 64 rows when it gets
// there, and nothing but barriers keeps the four together (the ISA promises no more). Sums are NaN
// from the start of a product to its wait. Ends the launch: a product without products_begin()
// after the last wait; lanes of a warp, or warps of a warpgroup, that start different products;
// operands in shared memory, sums, or registers of the left operand that change between start and
// wait; operands outside of shared memory, or copied there without fence_for_products(); a base
// offset.
#pragma once

#include <cstdint>

namespace emulator {

// A 32-bit address for a pointer to dynamic shared memory, which begins somewhere on 16 bytes.
std::uint32_t shared_window(const unsigned char* pointer);

// `sums`, columns / 2 floats, and `left` stay where they are until the wait.
void multiply_shared(float* sums, int columns, std::uint64_t left, std::uint64_t right,
                     bool accumulate);
void multiply_registers(float* sums, int columns, const std::uint32_t (&left)[4],
                        std::uint64_t right, bool accumulate);
// The same with any way to store the operands: `right_rows` as imm-trans-b, `left_rows` as
// imm-trans-a, of the instruction (0: the inner dimension runs along rows).
void multiply_shared(float* sums, int columns, std::uint64_t left, bool left_transposed,
                     std::uint64_t right, bool right_transposed, bool accumulate);
void products_begin();
void products_commit();
void products_wait(int groups);

void fence_for_products();

void barrier_init(const unsigned char* barrier, int count);
void barrier_arrive(const unsigned char* barrier);
void barrier_wait(const unsigned char* barrier, int parity);
void named_barrier(int number, int threads);

}  // namespace emulator
