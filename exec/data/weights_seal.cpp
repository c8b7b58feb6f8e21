#include "exec/data/weights_seal.hpp"

#include <sys/stat.h>

#include <cerrno>

#include "base/errors.hpp"

namespace spillway {

namespace {

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

}  // namespace

WeightsSeal describe_files(const Checkpoint& weights) {
  WeightsSeal seal;
  seal.headers = weights.hash();
  for (const SafetensorsFile& file : weights.files()) seal.files.push_back(describe(file));
  return seal;
}

WeightsSeal seal_weights(Checkpoint& weights, const std::optional<WeightsSeal>& known) {
  WeightsSeal seal = describe_files(weights);
  seal.data = known && known->of_same_files(seal) ? known->data : weights.data_hash();
  return seal;
}

}  // namespace spillway
