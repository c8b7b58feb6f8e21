#include "exec/data/left_out_batches.hpp"

#include <catch2/catch.hpp>
#include <vector>

namespace spillway {
namespace {

// The tokens of a batch are its number.
class Numbered final : public Batches {
 public:
  void require(std::int64_t, std::int64_t) const override {}
  void batch(std::int64_t step, std::int64_t, std::int64_t sequences, std::int64_t length,
             std::int32_t* tokens, std::int32_t*, std::int32_t*) const override {
    for (std::int64_t k = 0; k < sequences * length; ++k)
      tokens[k] = static_cast<std::int32_t>(step);
  }
  std::int64_t counted_tokens(std::int64_t step, std::int64_t, std::int64_t) const override {
    return step + 1;
  }
  std::uint64_t size() const override { return 1; }
  std::uint64_t hash() const override { return 2; }
};

TEST_CASE("batches that are left out give their place to what follows") {
  const auto all = std::make_shared<const Numbered>();
  const LeftOutBatches batches(all, {0, 3, 4, 9});
  std::vector<std::int32_t> found;
  for (std::int64_t step = 0; step < 8; ++step) {
    std::int32_t token = -1;
    batches.batch(step, 0, 1, 1, &token, nullptr, nullptr);
    found.push_back(token);
    CHECK(batches.counted_tokens(step, 1, 1) == token + 1);
    CHECK(LeftOutBatches::source_of(step, {0, 3, 4, 9}) == token);
  }
  CHECK(found == std::vector<std::int32_t>{1, 2, 5, 6, 7, 8, 10, 11});
  // A longer list changes no step before the batch that it adds.
  CHECK(LeftOutBatches::source_of(5, {0, 3, 4}) == 8);
  CHECK(LeftOutBatches::source_of(6, {0, 3, 4}) == 9);
  CHECK(batches.hash() == all->hash());
}

}  // namespace
}  // namespace spillway
