// Reading and writing the model states where they rest between runs: initial or resumed values,
// weights hash, export.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "exec/data/checkpoint.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/device.hpp"
#include "exec/store/commit_record.hpp"
#include "exec/store/ssd_store.hpp"
#include "exec/store/state_owners.hpp"
#include "exec/store/store_layout.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

// Where the states are: the homes of a schedule, in this memory and in this store. All outlive
// whoever holds it.
struct StateAtRest {
  const Schedule& schedule;
  Device& device;
  SsdStore* store = nullptr;            // null when nothing rests on the ssd
  const ChunkTable* chunks = nullptr;   // of the store
  std::span<const StatePart> parts{};   // of the optimizer state, in the store
  const FrozenFiles* frozen = nullptr;  // homes that are in the files of a checkpoint already
};

// `count` values of a unit from element `first` on: master weights (moment 0), first (1) or second
// (2) moments.
using StateValues = std::function<void(std::int64_t unit, int moment, std::uint64_t first,
                                       std::uint64_t count, float* to)>;

// Master weights drawn from the seed (exec/cpu/initial_values.hpp), zero moments.
StateValues initial_state(const ModelSpec& model, std::uint64_t seed);
// The same, but for the model's own tensors those of `weights`, and for its adapters those of
// `adapter`; of these, either may be null.
StateValues starting_state(const ModelSpec& model, std::uint64_t seed,
                           std::shared_ptr<Checkpoint> weights,
                           std::shared_ptr<Checkpoint> adapter);

// XXH3 of all master weights that are trained, in unit order.
std::uint64_t hash_of_weights(const ModelSpec& model, const StateValues& values);

// Used on one thread, while no run is in progress.
class ModelAccess {
 public:
  // `copy`: which copy of optimizer state on the ssd is the current one.
  explicit ModelAccess(const StateAtRest& state, int copy = 0);

  const ModelSpec& model() const { return state_.schedule.problem().model; }

  // Which homes to write.
  enum class Homes : std::uint8_t {
    all,
    not_on_ssd_optimizer_state  // those that a store opened again does not hold already
  };
  // Writes these values to every home: optimizer state, and parameters, which equal the masters;
  // rounded to bf16 (to nearest) where the problem's parameters or moments are.
  void write(const StateValues& values, Homes homes = Homes::all);

  // Copies optimizer state that rests in memory to copy `copy` in the store.
  void capture(int copy);
  // Commits what was written and captured (exec/store/commit_record.hpp).
  void commit(const StoreIdentity& identity, std::int64_t version, std::int64_t epoch);

  // fp32 master weights [first, first + count) of a unit, among those that are trained; padding
  // included.
  void read_master(std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to);

  // Whose optimizer state is here, of all units.
  std::vector<StateRange> own_ranges() const;
  // The same of those that this one of several ranks has; the others stay as they are.
  void read_own_master(std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
    read_found(unit, first, count, to);
  }

 private:
  // Where a home begins: in host memory, at an address in the store, or at an offset in the gpu
  // tier, which is read and written through the device.
  struct Place {
    Tier tier = Tier::host;
    std::byte* memory = nullptr;
    std::uint64_t address = 0;
  };
  Place place_of(std::size_t home) const;  // by its index
  // Calls take(address, bytes) for pieces, each no larger than the staging, of a place that is not
  // in host memory.
  template <class Take>
  void for_pieces(const Place& place, std::uint64_t bytes, const Take& take);
  // Returns how many there are here.
  std::uint64_t read_found(std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to);
  void write_home(std::size_t home, const StateValues& values);
  void read_home(std::size_t home, std::uint64_t first, std::uint64_t count, float* to);

  StateAtRest state_;
  int copy_;
  std::vector<std::int32_t> part_of_home_;
  std::unique_ptr<SsdStore::Channel> channel_;
  Arena staging_;
  // The piece of a home, by its index and address, that reading has left in the staging.
  std::optional<std::pair<std::size_t, std::uint64_t>> held_;
};

}  // namespace spillway
