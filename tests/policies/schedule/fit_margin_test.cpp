#include <catch2/catch.hpp>

#include "policies/schedule/fit_margin.hpp"

namespace spillway {

namespace {

TierUse use_of(std::uint64_t peak, std::uint64_t capacity, std::uint64_t kept = 0) {
  TierUse use;
  use.peak_bytes = peak;
  use.capacity_bytes = capacity;
  use.kept_bytes = kept;
  return use;
}

}  // namespace

TEST_CASE("fit margin: the tier of which the least share is left, whatever the bytes") {
  // 10 of 100 bytes are left of the GPU, 50 of 1000 of the host, and there are no drives.
  const FitMargin margin = fit_margin({use_of(90, 100), use_of(950, 1000), use_of(0, 0)});
  CHECK(margin.fits());
  CHECK(margin.tier == Tier::host);
  CHECK(margin.bytes == 50);
  CHECK(*margin.share == Approx(0.05));
  CHECK(to_text(margin) == "5.0 % of host memory is left (50 B)");
}

TEST_CASE("fit margin: what is kept because memory is left counts as free") {
  const FitMargin margin = fit_margin({use_of(100, 100, 60), use_of(500, 1000), use_of(0, 0)});
  CHECK(margin.tier == Tier::host);
  CHECK(free_bytes(use_of(100, 100, 60)) == 60);
  CHECK(*free_share(use_of(100, 100, 60)) == Approx(0.6));
}

TEST_CASE("fit margin: of what does not fit the tier that lacks most, even one that is not there") {
  const FitMargin lacks = fit_margin({use_of(103, 100), use_of(1200, 1000), use_of(0, 0)});
  CHECK_FALSE(lacks.fits());
  CHECK(lacks.tier == Tier::host);
  CHECK(lacks.bytes == -200);
  CHECK(to_text(lacks) == "20.0 % of host memory is lacking (200 B)");
  const FitMargin no_drives = fit_margin({use_of(103, 100), use_of(10, 1000), use_of(7, 0)});
  CHECK(no_drives.tier == Tier::ssd);
  CHECK(no_drives.bytes == -7);
  CHECK_FALSE(no_drives.share);
}

}  // namespace spillway
