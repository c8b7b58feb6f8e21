// CUDA's small vectors, and the functions that make them.
#pragma once

#include <cstdint>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define EMULATOR_VECTORS(type, name, align2, align4)                          \
  struct name##1 {                                                            \
    type x;                                                                   \
  };                                                                          \
  struct alignas(align2) name##2 {                                            \
    type x, y;                                                                \
  };                                                                          \
  struct name##3 {                                                            \
    type x, y, z;                                                             \
  };                                                                          \
  struct alignas(align4) name##4 {                                            \
    type x, y, z, w;                                                          \
  };                                                                          \
  inline name##1 make_##name##1(type x) { return {x}; }                       \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }            \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

EMULATOR_VECTORS(signed char, char, 2, 4)
EMULATOR_VECTORS(unsigned char, uchar, 2, 4)
EMULATOR_VECTORS(short, short, 4, 8)
EMULATOR_VECTORS(unsigned short, ushort, 4, 8)
EMULATOR_VECTORS(int, int, 8, 16)
EMULATOR_VECTORS(unsigned, uint, 8, 16)
EMULATOR_VECTORS(long long, longlong, 16, 16)
EMULATOR_VECTORS(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTORS(float, float, 8, 16)
EMULATOR_VECTORS(double, double, 16, 16)
#undef EMULATOR_VECTORS
