// Which memory is the device's, and which is pinned. Device memory is the process's own; on both
// sides of an allocation lies a zone that nobody may write, looked at when it is freed (with
// AddressSanitizer: nothing, so that it sees the overrun itself). Fresh memory holds NaN.
#pragma once

#include <driver_types.h>

#include <cstddef>

namespace emulator {

enum class Place { device, pinned, pageable, invalid };
// Where [pointer, pointer + bytes) lies. invalid: partly here and partly there, or beyond the end
// of an allocation.
Place place_of(const void* pointer, std::size_t bytes);

}  // namespace emulator
