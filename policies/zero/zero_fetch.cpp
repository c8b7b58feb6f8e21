#include "policies/zero/zero_fetch.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

std::uint64_t reuse_distance(const ModelSpec& model, int block, std::size_t tensor) {
  const std::vector<TensorRun> tensors = unit_tensors(model, block);
  const auto whole = elements_of(tensors);
  const auto blocks_after = static_cast<std::uint64_t>(model.layers - 1 - block);
  const std::uint64_t before = tensors[tensor].first;
  const std::uint64_t after = whole - before - tensors[tensor].elements;
  return after + blocks_after * whole + 2 * blocks_after * whole + before;
}

ParameterFetch::ParameterFetch(Program& program, const ModelState& state,
                               const FetchOptions& options, std::vector<Slice> slots)
    : program_(program),
      state_(state),
      options_(options),
      slots_(std::move(slots)),
      slot_used_(slots_.size(), false) {
  const ModelSpec& model = program.problem().model;
  const int blocks = static_cast<int>(model.layers);
  tensors_ = unit_tensors(model, 0);
  feed_forward_ = model.architecture == Architecture::gpt ? 2 : 4;
  kept_.resize(static_cast<std::size_t>(blocks));
  for (int block = 0; block < blocks; ++block) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const bool kept = reuse_distance(model, block, t) < options.max_reuse_distance;
      kept_[static_cast<std::size_t>(block)].push_back(kept);
    }
  }
  for (const bool backward : {false, true}) {
    for (int k = 0; k < blocks; ++k) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        trace_.push_back({backward ? blocks - 1 - k : k, t, backward});
      }
    }
  }
}

void ParameterFetch::begin_micro_step() {
  next_ = 0;
  available_ = 0;
  in_flight_ = 0;
  reads_under_way_ = false;
  std::fill(slot_used_.begin(), slot_used_.end(), false);
  residence_.assign(kept_.size(), std::vector<Residence>(tensors_.size()));
  for (auto& slices : gpu_) slices.assign(kept_.size(), {});
}

Slice ParameterFetch::fetch(int block, bool backward) {
  if (program_.tier(at_rest({block, 0, backward})) == Tier::gpu) {
    return state_.resident_parameters(block);
  }
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Use use{block, t, backward};
    if (t == 0 || t == feed_forward_) look_ahead(use);  // the norm: it fetches nothing itself
    Residence& here = residence(use);
    if (!here.on_gpu) copy_to_gpu(use);
    const auto blocks = static_cast<std::size_t>(kept_.size());
    const auto b = static_cast<std::size_t>(block);
    const std::size_t position = (backward ? 2 * blocks - 1 - b : b) * tensors_.size() + t;
    next_ = std::max(next_, position + 1);
    program_.barrier({Lane::pcie_h2d});
    if (here.in_flight) in_flight_ -= elements(use);
    here.in_flight = false;
    look_ahead(use);
    release(use);
  }
  return gpu_buffer(backward, block);
}

void ParameterFetch::look_ahead(const Use& current) {
  if (options_.prefetch_bucket == 0) return;
  prefetch_to_gpu(current);
  prefetch_from_ssd(current);
}

// Releasing gives the slot back and makes room for more on the GPU; the buffer itself lives until
// the block has computed.
void ParameterFetch::release(const Use& use) {
  Residence& here = residence(use);
  if (here.slot != no_slot) slot_used_[here.slot] = false;
  here.slot = no_slot;
  here.host = {};
  if (!use.backward && is_kept(use)) return;
  here.on_gpu = false;
  available_ -= elements(use);
}

void ParameterFetch::copy_to_gpu(const Use& use) {
  make_host_resident(use);
  Residence& here = residence(use);
  const TensorRun& tensor = tensors_[use.tensor];
  const std::uint64_t width = program_.problem().parameter_bytes();
  const Slice gpu = gpu_buffer(use.backward, use.block);
  program_.copy(here.host, gpu.part(tensor.first * width, tensor.elements * width), use.block);
  here.on_gpu = true;
  available_ += tensor.elements;
}

void ParameterFetch::make_host_resident(const Use& use) {
  Residence& here = residence(use);
  if (program_.tier(at_rest(use)) == Tier::host) {
    here.host = at_rest(use);
    return;
  }
  if (!here.host.valid()) start_read(use);
  if (reads_under_way_) program_.barrier({Lane::ssd_read});
  reads_under_way_ = false;
}

void ParameterFetch::start_read(const Use& use) {
  Residence& here = residence(use);
  here.slot = free_slot();
  SPILLWAY_ASSERT(here.slot != no_slot, "a tensor is read ahead of the one that is needed");
  slot_used_[here.slot] = true;
  here.host = slots_[here.slot].part(0, at_rest(use).bytes);
  program_.copy(at_rest(use), here.host, use.block);
  reads_under_way_ = true;
}

// Beyond the turn: what is released after its use in forward is fetched again only then.
bool ParameterFetch::ends_look_ahead(const Use& current, const Use& use) const {
  return use.backward && !current.backward && use.block >= current.block && !is_kept(use);
}

void ParameterFetch::prefetch_to_gpu(const Use& current) {
  const std::uint64_t room = options_.max_live > available_ ? options_.max_live - available_ : 0;
  const std::uint64_t budget = std::min(options_.prefetch_bucket, room);
  for (std::uint64_t prefetched = 0; next_ < trace_.size() && prefetched < budget; ++next_) {
    const Use& use = trace_[next_];
    if (ends_look_ahead(current, use)) return;
    Residence& here = residence(use);
    if (here.on_gpu) continue;
    if (program_.tier(at_rest(use)) == Tier::ssd && !here.host.valid()) return;
    copy_to_gpu(use);
    here.in_flight = true;
    in_flight_ += elements(use);
    prefetched += elements(use);
  }
}

void ParameterFetch::prefetch_from_ssd(const Use& current) {
  std::uint64_t considered = 0;
  for (std::size_t k = next_; k < trace_.size(); ++k) {
    const Use& use = trace_[k];
    if (considered > 2 * in_flight_ || free_slot() == no_slot || ends_look_ahead(current, use)) {
      return;
    }
    Residence& here = residence(use);
    const bool on_ssd = program_.tier(at_rest(use)) == Tier::ssd;
    if (on_ssd && !here.on_gpu && !here.host.valid()) start_read(use);
    considered += elements(use);
  }
}

std::uint64_t ParameterFetch::elements(const Use& use) const {
  return tensors_[use.tensor].elements;
}

Slice ParameterFetch::at_rest(const Use& use) const {
  const ModelState::Runs& runs = state_.parameters_at_rest(use.block);
  return runs.size() == 1 ? runs.front().where : runs[use.tensor].where;
}

bool ParameterFetch::is_kept(const Use& use) const {
  return kept_[static_cast<std::size_t>(use.block)][use.tensor];
}

ParameterFetch::Residence& ParameterFetch::residence(const Use& use) {
  return residence_[static_cast<std::size_t>(use.block)][use.tensor];
}

// Forward and backward have a buffer each, unless something is kept from one to the other.
Slice& ParameterFetch::gpu_buffer(bool backward, int block) {
  const auto b = static_cast<std::size_t>(block);
  Slice& slice = gpu_[backward ? 1 : 0][b];
  if (slice.valid()) return slice;
  const bool keeps = std::find(kept_[b].begin(), kept_[b].end(), true) != kept_[b].end();
  if (backward && keeps) {
    slice = gpu_[0][b];
  } else {
    const std::uint64_t bytes = state_.elements(block) * program_.problem().parameter_bytes();
    slice = program_.buffer(Tier::gpu, bytes, BufferKind::parameters, block).part(0, bytes);
  }
  return slice;
}

std::size_t ParameterFetch::free_slot() const {
  const auto found = std::find(slot_used_.begin(), slot_used_.end(), false);
  return found == slot_used_.end() ? no_slot : static_cast<std::size_t>(found - slot_used_.begin());
}

}  // namespace spillway
