#include "policies/common/activation_store.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

std::vector<Slice> saved_places(Program& program, const ActivationOptions& options) {
  std::uint64_t most = 0;
  for (const std::uint8_t mask : options.saves)
    most = std::max(most, saved_bytes(program.problem(), mask));
  std::vector<Slice> places;
  const std::size_t count = std::max<std::size_t>(options.activations_gpu_ahead + 1, 2);
  while (most > 0 && places.size() < std::min(count, options.saves.size()))
    places.push_back(program.persistent(Tier::gpu, most, BufferKind::saved));
  return places;
}

ActivationStore::ActivationStore(Program& program, const ActivationOptions& options)
    : program_(program),
      options_(options),
      layers_(static_cast<int>(program.problem().model.layers)),
      blocks_(static_cast<std::size_t>(layers_)) {
  SPILLWAY_ASSERT(options.checkpoints != Tier::ssd);
  SPILLWAY_ASSERT(options.checkpoints == Tier::host || options.places.empty());
  SPILLWAY_ASSERT(options.saves.empty() || options.saves.size() == blocks_.size());
  plan_overflow();
}

bool ActivationStore::stays(int layer) const {
  return options_.checkpoints == Tier::gpu || layer == layers_ - 1;
}

std::uint8_t ActivationStore::saves(int layer) const {
  return options_.saves.empty() ? saved_none : options_.saves[static_cast<std::size_t>(layer)];
}

std::vector<SavedLayout> ActivationStore::layout(int layer) const {
  const Problem& problem = program_.problem();
  return saved_layout(problem, saves(layer), problem.workload.micro_batch);
}

// In the order in which they are produced, until the fraction is reached: an item goes to the ssd
// if that brings the share there nearer to it.
void ActivationStore::plan_overflow() {
  const double checkpoint = static_cast<double>(checkpoint_bytes(program_.problem()));
  std::vector<std::pair<int, double>> items;  // block, bytes
  double all = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    if (stays(layer)) continue;
    items.emplace_back(layer, checkpoint);
    for (const SavedLayout& tensor : layout(layer))
      items.emplace_back(layer, static_cast<double>(tensor.bytes));
  }
  for (const auto& [layer, bytes] : items) all += bytes;
  double before = 0;
  for (const auto& [layer, bytes] : items) {
    if (before + bytes / 2 > options_.checkpoints_on_ssd * all) break;
    ++block(layer).on_ssd;
    before += bytes;
  }
}

void ActivationStore::begin_forward(int micro_batch) {
  micro_batch_ = micro_batch;
  for (Block& one : blocks_) {
    one.gpu = {};
    one.away.clear();
  }
}

void ActivationStore::keep_input(int layer, Slice input) {
  if (stays(layer)) {
    block(layer).gpu.input = input;
  } else {
    block(layer).away.push_back(put_away(layer, input, 0));
  }
}

Slice ActivationStore::saved_buffer(int layer) {
  Slice& saved = block(layer).gpu.saved;
  if (saves(layer) != saved_none) saved = place(layer);
  return saved;
}

Slice ActivationStore::place(int layer) {
  const std::uint64_t bytes = saved_bytes(program_.problem(), saves(layer));
  if (options_.places.empty())
    return program_.buffer(Tier::gpu, bytes, BufferKind::saved, layer, micro_batch_);
  return options_.places[static_cast<std::size_t>(layer) % options_.places.size()].part(0, bytes);
}

// What the block before saved is put away only now, so that this block's forward does not wait for
// its memory.
void ActivationStore::after_forward(int layer) {
  const int before = layer - 1;
  if (before < 0 || stays(before) || saves(before) == saved_none) return;
  const Slice saved = block(before).gpu.saved;
  for (const SavedLayout& tensor : layout(before)) {
    std::vector<Slice>& away = block(before).away;
    away.push_back(put_away(before, saved.part(tensor.offset, tensor.bytes), away.size()));
  }
}

Slice ActivationStore::put_away(int layer, Slice gpu, std::size_t item) {
  const BufferKind kind = item == 0 ? BufferKind::checkpoint : BufferKind::saved;
  const Slice host = program_.buffer(Tier::host, gpu.bytes, kind, layer, micro_batch_);
  program_.copy(gpu, host, layer, micro_batch_);
  if (item >= block(layer).on_ssd) return host;
  const Slice ssd = program_.buffer(Tier::ssd, gpu.bytes, kind, layer, micro_batch_);
  program_.copy(host, ssd, layer, micro_batch_);
  return ssd;
}

void ActivationStore::begin_backward() {
  const auto count = blocks_.size();
  const auto layer_of = [this](std::size_t k) { return layers_ - 1 - static_cast<int>(k); };
  host_.emplace(count, options_.activations_host_ahead,
                [this, layer_of](std::size_t k) { return to_host(layer_of(k)); });
  gpu_.emplace(count, options_.activations_gpu_ahead,
               [this, layer_of](std::size_t k) { return to_gpu(layer_of(k), host_->at(k)); });
}

ActivationStore::OnGpu ActivationStore::fetch(int layer) {
  return gpu_->at(static_cast<std::size_t>(layers_ - 1 - layer));
}

std::vector<Slice> ActivationStore::to_host(int layer) {
  std::vector<Slice> host = block(layer).away;
  for (std::size_t item = 0; item < std::min(host.size(), block(layer).on_ssd); ++item) {
    const Slice ssd = host[item];
    const BufferKind kind = item == 0 ? BufferKind::checkpoint : BufferKind::saved;
    host[item] = program_.buffer(Tier::host, ssd.bytes, kind, layer, micro_batch_);
    program_.copy(ssd, host[item], layer, micro_batch_);
  }
  return host;
}

ActivationStore::OnGpu ActivationStore::to_gpu(int layer, const std::vector<Slice>& host) {
  if (stays(layer)) return block(layer).gpu;
  OnGpu gpu;
  gpu.input =
      program_.buffer(Tier::gpu, host[0].bytes, BufferKind::checkpoint, layer, micro_batch_);
  program_.copy(host[0], gpu.input, layer, micro_batch_);
  if (saves(layer) == saved_none) return gpu;
  gpu.saved = place(layer);
  std::size_t item = 1;
  for (const SavedLayout& tensor : layout(layer)) {
    program_.copy(host[item++], gpu.saved.part(tensor.offset, tensor.bytes), layer, micro_batch_);
  }
  return gpu;
}

}  // namespace spillway
