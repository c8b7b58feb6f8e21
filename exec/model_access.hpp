// Reading and writing the model states where they rest between runs: initial values, weights hash,
// export.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "exec/arena.hpp"
#include "exec/device.hpp"
#include "exec/ssd_store.hpp"
#include "policies/schedule.hpp"

namespace spillway {

// Used on one thread, while no run is in progress.
class ModelAccess {
 public:
  // `store` may be null when nothing rests on the ssd.
  ModelAccess(const Schedule& schedule, Device& device, SsdStore* store);

  // Writes the initial weights of `seed` (exec/gpt_init.hpp) and zero moments to every home.
  void initialise(std::uint64_t seed);

  // The fp32 master weights of a unit in order: `take(first_element, values)` per piece; padding
  // included.
  void read_master(std::int64_t unit,
                   const std::function<void(std::uint64_t, std::span<const float>)>& take);

  // XXH3 of all master weights in unit order: equal for bit-identical models, whatever the
  // placement.
  std::uint64_t weights_hash();

 private:
  // Bytes [offset, offset + bytes) of a home, to or from `buffer`.
  void write(const Slice& where, std::uint64_t offset, const std::byte* from, std::uint64_t bytes);
  const std::byte* read(const Slice& where, std::uint64_t offset, std::uint64_t bytes);
  std::byte* memory_of(const Slice& where);

  const Schedule& schedule_;
  Device& device_;
  std::unique_ptr<SsdStore::Channel> channel_;
  Arena staging_;
};

}  // namespace spillway
