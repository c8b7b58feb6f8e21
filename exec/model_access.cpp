#include "exec/model_access.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/errors.hpp"
#include "exec/gpt_init.hpp"

namespace spillway {

namespace {

// Pieces are small, so that a model of any size is initialised and read in this much memory.
constexpr std::uint64_t piece_elements = 1 << 20;

}  // namespace

ModelAccess::ModelAccess(const Schedule& schedule, Device& device, SsdStore* store)
    : schedule_(schedule),
      device_(device),
      staging_(piece_elements * 4, "staging for initial values") {
  if (store) channel_ = std::make_unique<SsdStore::Channel>(*store);
}

std::byte* ModelAccess::memory_of(const Slice& where) {
  const BufferInfo& buffer = schedule_.buffers()[where.buffer.id];
  if (buffer.tier == Tier::ssd) return nullptr;
  const auto memory = buffer.tier == Tier::gpu ? device_.gpu_memory() : device_.host_memory();
  return memory.data() + buffer.offset + where.offset;
}

void ModelAccess::write(const Slice& where, std::uint64_t offset, const std::byte* from,
                        std::uint64_t bytes) {
  SPILLWAY_ASSERT(offset + bytes <= where.bytes);
  if (std::byte* const memory = memory_of(where)) {
    std::memcpy(memory + offset, from, bytes);
  } else {
    channel_->write(schedule_.buffers()[where.buffer.id].offset + where.offset + offset, from,
                    bytes);
  }
}

const std::byte* ModelAccess::read(const Slice& where, std::uint64_t offset, std::uint64_t bytes) {
  SPILLWAY_ASSERT(offset + bytes <= where.bytes);
  if (const std::byte* const memory = memory_of(where)) return memory + offset;
  channel_->read(schedule_.buffers()[where.buffer.id].offset + where.offset + offset,
                 staging_.data(), bytes);
  return staging_.data();
}

void ModelAccess::initialise(std::uint64_t seed) {
  float* const values = reinterpret_cast<float*>(staging_.data());
  for (const HomePart& home : schedule_.homes()) {
    for (std::uint64_t done = 0; done < home.elements; done += piece_elements) {
      const std::uint64_t count = std::min(piece_elements, home.elements - done);
      initial_values(schedule_.problem().model, home.unit, seed,
                     static_cast<std::int64_t>(home.first_element + done),
                     static_cast<std::int64_t>(count), values);
      // Parameters, or the master part of [master | m | v].
      write(home.where, done * 4, staging_.data(), count * 4);
      if (home.kind != BufferKind::optimizer_state) continue;
      std::fill_n(values, count, 0.0f);
      for (std::uint64_t moment = 1; moment <= 2; ++moment) {
        write(home.where, (moment * home.elements + done) * 4, staging_.data(), count * 4);
      }
    }
  }
}

void ModelAccess::read_master(
    std::int64_t unit, const std::function<void(std::uint64_t, std::span<const float>)>& take) {
  std::vector<const HomePart*> parts;
  for (const HomePart& home : schedule_.homes()) {
    if (home.unit == unit && home.kind == BufferKind::optimizer_state) parts.push_back(&home);
  }
  std::sort(parts.begin(), parts.end(), [](const HomePart* a, const HomePart* b) {
    return a->first_element < b->first_element;
  });
  for (const HomePart* home : parts) {
    for (std::uint64_t done = 0; done < home->elements; done += piece_elements) {
      const std::uint64_t count = std::min(piece_elements, home->elements - done);
      const std::byte* const bytes = read(home->where, done * 4, count * 4);
      take(home->first_element + done, {reinterpret_cast<const float*>(bytes), count});
    }
  }
}

std::uint64_t ModelAccess::weights_hash() {
  struct Deleter {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, Deleter> hash(XXH3_createState());
  XXH3_64bits_reset(hash.get());
  for (std::int64_t unit = 0; unit <= schedule_.problem().model.layers; ++unit) {
    read_master(unit, [&](std::uint64_t, std::span<const float> values) {
      XXH3_64bits_update(hash.get(), values.data(), values.size_bytes());
    });
  }
  return XXH3_64bits_digest(hash.get());
}

}  // namespace spillway
