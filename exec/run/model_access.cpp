#include "exec/run/model_access.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "exec/cpu/initial_values.hpp"
#include "exec/cpu/kernels_cpu.hpp"
#include "exec/store/committer.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

// Pieces are small, so that a model of any size is written and read in this much memory.
constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;
// Values of a home in bf16: enough for all processors to draw a part of them.
constexpr std::uint64_t rounded_at_once = std::uint64_t{1} << 20;

// `count` values of a home from element `from` of it on, as they rest: fp32, or rounded to bf16
// where a value has two bytes.
void fill(const HomePart& home, int moment, std::uint64_t width, const StateValues& values,
          std::uint64_t from, std::uint64_t count, std::byte* out) {
  const auto draw = [&](std::uint64_t at, std::uint64_t some, float* to) {
    values(home.unit, moment, home.first_element + at, some, to);
  };
  if (width == sizeof(float)) return draw(from, count, reinterpret_cast<float*>(out));
  SPILLWAY_ASSERT(width == sizeof(bf16));
  const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
  std::vector<float> exact(std::min(rounded_at_once, count));
  for (std::uint64_t done = 0; done < count; done += rounded_at_once) {
    const std::uint64_t some = std::min(rounded_at_once, count - done);
    draw(from + done, some, exact.data());
    kernels.round_to_bf16(exact.data(), reinterpret_cast<bf16*>(out + done * width),
                          static_cast<std::int64_t>(some));
  }
}

// Bytes [from, to) of a home, which holds [parameters] or [master | m | v], the latter `widths`
// bytes each.
void fill_bytes(const HomePart& home, std::span<const std::uint64_t> widths,
                const StateValues& values, std::uint64_t from, std::uint64_t to, std::byte* out) {
  std::uint64_t begin = 0;
  for (std::size_t moment = 0; moment < widths.size(); ++moment) {
    const std::uint64_t width = widths[moment], end = begin + home.elements * width;
    const std::uint64_t first = std::max(from, begin), last = std::min(to, end);
    if (first < last)
      fill(home, static_cast<int>(moment), width, values, (first - begin) / width,
           (last - first) / width, out + (first - from));
    begin = end;
  }
}

}  // namespace

StateValues initial_state(const ModelSpec& model, std::uint64_t seed) {
  return [model, seed](std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count,
                       float* to) {
    if (moment == 0) {
      // Every value comes from its place alone, so all processors may draw at once.
      constexpr std::uint64_t worth_a_thread = 1 << 16;  // over a millisecond
      const std::uint64_t threads = std::clamp<std::uint64_t>(
          count / worth_a_thread, 1, std::max(1u, std::thread::hardware_concurrency()));
      const std::uint64_t share = (count / threads + 3) / 4 * 4;
      std::vector<std::jthread> others;
      const auto draw = [&](std::uint64_t from, std::uint64_t end) {
        initial_values(model, unit, seed, static_cast<std::int64_t>(first + from),
                       static_cast<std::int64_t>(end - from), to + from);
      };
      for (std::uint64_t from = share; from < count; from += share)
        others.emplace_back(draw, from, std::min(count, from + share));
      draw(0, std::min(count, share));
    } else {
      std::fill_n(to, count, 0.0f);
    }
  };
}

StateValues starting_state(const ModelSpec& model, std::uint64_t seed,
                           std::shared_ptr<Checkpoint> weights,
                           std::shared_ptr<Checkpoint> adapter) {
  const StateValues drawn = initial_state(model, seed);
  return [model, drawn, weights = std::move(weights), adapter = std::move(adapter)](
             std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to) {
    if (moment > 0) {
      std::fill_n(to, count, 0.0f);
      return;
    }
    const std::uint64_t adapters =
        model.has_adapters() ? static_cast<std::uint64_t>(trained_elements(model, unit)) : 0;
    const std::uint64_t some = std::min(count, std::max(adapters, first) - first);
    const auto take = [&](const std::shared_ptr<Checkpoint>& from, std::uint64_t at,
                          std::uint64_t values, float* where) {
      if (values == 0) return;
      from ? from->read(unit, at, values, where) : drawn(unit, 0, at, values, where);
    };
    take(adapter, first, some, to);
    take(weights, first + some, count - some, to + some);
  };
}

ModelAccess::ModelAccess(const StateAtRest& state, int copy)
    : state_(state),
      copy_(copy),
      part_of_home_(parts_of_homes(state.schedule, state.parts)),
      staging_(piece_bytes, "staging for model states") {
  if (state.store) channel_ = std::make_unique<SsdStore::Channel>(*state.store);
}

ModelAccess::Place ModelAccess::place_of(std::size_t index) const {
  const HomePart& home = state_.schedule.homes()[index];
  const BufferInfo& buffer = state_.schedule.buffers()[home.where.buffer.id];
  const std::uint64_t offset = buffer.offset + home.where.offset;
  if (buffer.tier == Tier::host) return {buffer.tier, state_.device.host_memory().data() + offset};
  const std::int32_t part = part_of_home_[index];
  if (buffer.tier == Tier::gpu) return {buffer.tier, nullptr, offset};
  if (part < 0) {
    const bool skips = state_.frozen && buffer.tier == Tier::ssd;
    return {buffer.tier, nullptr,
            state_.store->begin_of(drive_set(buffer.tier)) +
                (skips ? state_.frozen->in_store(offset) : offset)};
  }
  return {buffer.tier, nullptr,
          state_.parts[static_cast<std::size_t>(part)].address[static_cast<std::size_t>(copy_)]};
}

template <class Take>
void ModelAccess::for_pieces(const Place& place, std::uint64_t bytes, const Take& take) {
  if (is_drives(place.tier))
    return for_chunk_runs(*state_.chunks, place.address, bytes, staging_.size(), take);
  for (std::uint64_t done = 0; done < bytes; done += staging_.size())
    take(place.address + done, std::min(staging_.size(), bytes - done));
}

void ModelAccess::write_home(std::size_t index, const StateValues& values) {
  held_.reset();
  const HomePart& home = state_.schedule.homes()[index];
  const bool is_state = home.kind == BufferKind::optimizer_state;
  const Problem& problem = state_.schedule.problem();
  const std::uint64_t moment = moment_bytes(problem.workload.moments);
  const std::array<std::uint64_t, 3> all = {is_state ? sizeof(float) : problem.parameter_bytes(),
                                            moment, moment};
  const auto widths = std::span(all).first(is_state ? 3 : 1);
  const std::uint64_t all_bytes =
      home.elements * std::accumulate(widths.begin(), widths.end(), std::uint64_t{0});
  SPILLWAY_ASSERT(home.where.bytes == all_bytes);
  const Place place = place_of(index);
  if (place.memory) return fill_bytes(home, widths, values, 0, all_bytes, place.memory);
  for_pieces(place, all_bytes, [&](std::uint64_t at, std::uint64_t bytes) {
    const std::uint64_t from = at - place.address;
    fill_bytes(home, widths, values, from, from + bytes, staging_.data());
    if (place.tier == Tier::gpu) {
      state_.device.upload(at, {staging_.data(), bytes});
    } else {
      channel_->write(at, staging_.data(), bytes);
    }
  });
}

void ModelAccess::write(const StateValues& values, Homes homes) {
  for (std::size_t i = 0; i < state_.schedule.homes().size(); ++i) {
    const HomePart& home = state_.schedule.homes()[i];
    const Tier tier = state_.schedule.buffers()[home.where.buffer.id].tier;
    if (homes == Homes::not_on_ssd_optimizer_state && is_drives(tier) &&
        home.kind == BufferKind::optimizer_state) {
      continue;
    }
    if (tier == Tier::ssd && home.frozen && state_.frozen) continue;
    write_home(i, values);
  }
}

void ModelAccess::capture(int copy) {
  held_.reset();
  capture_memory(*channel_, state_.parts, *state_.chunks, state_.device, copy, staging_);
}

void ModelAccess::commit(const StoreIdentity& identity, std::int64_t version, std::int64_t epoch) {
  commit_now(*channel_, identity, *state_.chunks, version, epoch);
}

void ModelAccess::read_master(std::int64_t unit, std::uint64_t first, std::uint64_t count,
                              float* to) {
  const std::uint64_t found = read_found(unit, first, count, to);
  SPILLWAY_ASSERT(found == count, "the state of every element has one home");
}

std::vector<StateRange> ModelAccess::own_ranges() const {
  std::vector<StateRange> ranges;
  for (const HomePart& home : state_.schedule.homes()) {
    if (home.kind == BufferKind::optimizer_state)
      ranges.push_back({home.unit, home.first_element, home.elements});
  }
  return ranges;
}

std::uint64_t ModelAccess::read_found(std::int64_t unit, std::uint64_t first, std::uint64_t count,
                                      float* to) {
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < state_.schedule.homes().size(); ++i) {
    const HomePart& home = state_.schedule.homes()[i];
    if (home.unit != unit || home.kind != BufferKind::optimizer_state) continue;
    const std::uint64_t begin = std::max(first, home.first_element);
    const std::uint64_t end = std::min(first + count, home.first_element + home.elements);
    if (begin >= end) continue;
    read_home(i, begin - home.first_element, end - begin, to + (begin - first));
    found += end - begin;
  }
  return found;
}

// Masters [first, first + count) of a home of optimizer state.
void ModelAccess::read_home(std::size_t index, std::uint64_t first, std::uint64_t count,
                            float* to) {
  const HomePart& home = state_.schedule.homes()[index];
  const Place place = place_of(index);
  const std::uint64_t from = first * sizeof(float), until = from + count * sizeof(float);
  if (place.memory) {
    std::memcpy(to, place.memory + from, until - from);
    return;
  }
  // On the ssd whole chunks are read, of which the last may hold the first of the moments, too.
  const bool on_gpu = place.tier == Tier::gpu;
  const std::uint64_t bytes_of_home = on_gpu ? home.elements * sizeof(float) : home.where.bytes;
  for_pieces(place, bytes_of_home, [&](std::uint64_t at, std::uint64_t bytes) {
    const std::uint64_t piece = at - place.address;
    const std::uint64_t begin = std::max(from, piece), end = std::min(until, piece + bytes);
    if (begin >= end) return;
    if (held_ != std::pair(index, at)) {
      held_.reset();  // nothing is there while the read may fail
      if (on_gpu) {
        state_.device.download(at, {staging_.data(), bytes});
      } else {
        channel_->read(at, staging_.data(), bytes);
      }
      held_ = std::pair(index, at);
    }
    std::memcpy(to + (begin - from) / sizeof(float), staging_.data() + (begin - piece),
                end - begin);
  });
}

std::uint64_t hash_of_weights(const ModelSpec& model, const StateValues& masters) {
  struct Deleter {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, Deleter> hash(XXH3_createState());
  XXH3_64bits_reset(hash.get());
  std::vector<float> values(piece_bytes / sizeof(float));
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    const auto elements = static_cast<std::uint64_t>(trained_elements(model, unit));
    for (std::uint64_t first = 0; first < elements; first += values.size()) {
      const std::uint64_t count = std::min<std::uint64_t>(values.size(), elements - first);
      masters(unit, 0, first, count, values.data());
      XXH3_64bits_update(hash.get(), values.data(), count * sizeof(float));
    }
  }
  return XXH3_64bits_digest(hash.get());
}

}  // namespace spillway
