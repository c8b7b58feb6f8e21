// Where the frozen weights of a run are from: RUN/frozen-weights.json. Commits hold what is trained
// alone; the rest is read from there again whenever the run goes on or is exported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/directory.hpp"
#include "exec/data/weights_seal.hpp"
#include "exec/run/model_access.hpp"
#include "policies/model/model.hpp"

namespace spillway {

struct FrozenOrigin {
  static constexpr const char* file = "frozen-weights.json";

  std::filesystem::path folder;  // of the model; empty: they were drawn from the seed
  std::uint64_t seed = 0;
  WeightsSeal seal;  // of the folder's files

  // Nothing where the run's folder has no such file, or one that was not written by save(): all of
  // the weights are then read again to be known.
  static std::optional<FrozenOrigin> load(const Directory& run);
  void save(const Directory& run) const;
  // What the file says. Of a text that is not such a file's, nothing.
  static std::optional<FrozenOrigin> parse(const std::string& text);
  std::string text() const;
};

// Where the frozen weights of a run are, from its folder. `hash`: of those that the trained ones
// were trained beside, 0 where they were drawn from the seed; none: that is not known. Throws
// InputError where the run's file says nothing, or tells of other weights.
FrozenOrigin require_origin(const std::filesystem::path& run,
                            const std::optional<std::uint64_t>& hash);

// Bytes read so far, and of all that is to be read. What it throws ends the reading.
using ReadingProgress = std::function<void(std::uint64_t done, std::uint64_t all)>;

// The frozen values of the model, from their folder, whose files must be what they were: files that
// look otherwise are read and hashed again, of which `progress` (may be empty) is told.
// `strip_bytes`: as Checkpoint has it. Throws InputError naming the folder.
StateValues frozen_values(const FrozenOrigin& origin, const ModelSpec& model,
                          const RingFactory& make_ring = make_usual_ring,
                          const ReadingProgress& progress = {},
                          std::int64_t strip_bytes = TransposedMatrix::usual_strip_bytes);

// Throws InputError unless the weights in the folder are those of that hash (WeightsSeal::data).
void require_same_frozen(const std::filesystem::path& folder, std::uint64_t found,
                         std::uint64_t wanted);

// `trained` for what is trained of each unit, `frozen` for the rest.
StateValues with_frozen(const ModelSpec& model, StateValues trained, StateValues frozen);

}  // namespace spillway
