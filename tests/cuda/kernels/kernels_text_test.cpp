// fetch_text: what lies in pinned memory, from there to the device.
#include <catch2/catch.hpp>
#include <cstdint>
#include <numeric>
#include <vector>

#include "exec/cuda/device/cuda_streams.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "tests/cuda/device_memory.hpp"

namespace spillway::cuda {
namespace {

TEST_CASE("text is fetched whole, and nothing beside it", "[kernels]") {
  const TestStream stream;
  // Of one word, of a block that is not full, of just one block (1024), and of one more word.
  for (const std::size_t count : {4u, 1000u, 1024u, 1028u}) {
    INFO(count << " of the text");
    PinnedArray<std::int32_t> host(count + 8);
    std::iota(host.data(), host.data() + count + 8, 1);
    DeviceArray<std::int32_t> device(count + 8);  // -1
    fetch_text(host.data() + 4, device.data() + 4, static_cast<std::int64_t>(count), stream);
    stream.wait();
    std::vector<std::int32_t> expected(count + 8, -1);
    std::iota(expected.begin() + 4, expected.end() - 4, 5);
    CHECK(device.download() == expected);
  }
}

TEMPLATE_TEST_CASE("an activation is copied whole, and nothing beside it", "[kernels][sanitizer]",
                   float, bf16) {
  const TestStream stream;
  for (const std::size_t n : {8u, 1000u, 2048u, 2056u}) {
    INFO(n << " elements");
    const DeviceArray<TestType> from(random_normal<TestType>(n, 1, 7)), to(n);
    copy_activation(from.data(), to.data(), static_cast<std::int64_t>(n), stream);
    stream.wait();
    CHECK(bytes_of(to.download()) == bytes_of(from.download()));
  }
}

TEST_CASE("the parts of a text lie apart, each on 16 bytes", "[kernels]") {
  for (std::int64_t rows = 1; rows <= 9; ++rows) {
    INFO(rows << " rows");
    const TextLayout at{rows};
    CHECK(at.order_rows() >= at.tokens() + rows);
    CHECK(at.order_begins() >= at.order_rows() + rows);
    CHECK(at.order_runs() >= at.order_begins() + rows + 1);
    CHECK(at.targets() >= at.order_runs() + 1);
    CHECK(at.scale() >= at.targets() + rows);
    CHECK(at.size() >= at.scale() + 1);
    CHECK(at.starts() >= at.size());
    CHECK(at.ends() >= at.starts() + rows);
    CHECK(at.positions() >= at.ends() + rows);
    CHECK(at.size_with_borders() >= at.positions() + at.order_runs() + 1);
    for (const std::int64_t begin :
         {at.tokens(), at.order_rows(), at.targets(), at.size(), at.starts(), at.ends(),
          at.positions(), at.size_with_borders()})
      CHECK(begin % text_alignment == 0);
  }
}

}  // namespace
}  // namespace spillway::cuda
