#include "exec/data/weights_seal.hpp"

#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <memory>

#include "base/errors.hpp"

namespace spillway {

namespace {

struct Deleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

WeightsSeal::File describe(const SafetensorsFile& file) {
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0)
    throw MachineError::from_errno("cannot look at " + file.path().string(), errno);
  return {file.path().filename().string(),
          static_cast<std::uint64_t>(status.st_size),
          status.st_ino,
          status.st_dev,
          nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

std::uint64_t hash_of_data(const Checkpoint& weights,
                           const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                           RingFactory make_ring) {
  std::vector<ReadAhead::File> files;
  std::vector<ReadAhead::Extent> extents;
  std::uint64_t all = 0, done = 0;
  for (const SafetensorsFile& file : weights.files()) {
    extents.push_back({files.size(), 0, file.bytes()});
    files.push_back({file.descriptor(), file.bytes(), file.path().string()});
    all += file.bytes();
  }
  ReadAhead reader(std::move(files), extents, std::move(make_ring));
  const std::unique_ptr<XXH3_state_t, Deleter> hash(XXH3_createState());
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    XXH3_64bits_reset(hash.get());
    for (std::uint64_t at = 0; at < extents[i].end;) {
      const std::span<const std::byte> bytes = reader.bytes(i, at);
      XXH3_64bits_update(hash.get(), bytes.data(), bytes.size());
      at += bytes.size();
      done += bytes.size();
      if (progress) progress(done, all);
    }
    hashes.push_back(XXH3_64bits_digest(hash.get()));
  }
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

}  // namespace

WeightsSeal seal_weights(const Checkpoint& weights, const std::optional<WeightsSeal>& known,
                         const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                         RingFactory make_ring) {
  WeightsSeal seal;
  seal.headers = weights.hash();
  for (const SafetensorsFile& file : weights.files()) seal.files.push_back(describe(file));
  const bool unchanged = known && known->headers == seal.headers && known->files == seal.files;
  seal.data = unchanged ? known->data : hash_of_data(weights, progress, std::move(make_ring));
  return seal;
}

}  // namespace spillway
