#include "policies/movement/activations.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/scratch.hpp"

namespace spillway {

namespace {

// The share `fraction` of `of`, to the nearest whole.
int share(double fraction, int of) { return of <= 0 ? 0 : static_cast<int>(fraction * of + 0.5); }

}  // namespace

Activations::Activations(Program& program, const Plan& plan, const OrderOfWork& work,
                         const Timetable& times, const DriveShares& drives)
    : program_(program),
      plan_(plan),
      work_(work),
      uses_(times.uses()),
      retained_(times.retained()),
      drives_(drives),
      layers_(static_cast<int>(program.problem().model.layers)),
      micro_batches_(static_cast<int>(program.problem().workload.micro_batches())),
      first_backward_(work.evaluates
                          ? layers_
                          : static_cast<int>(first_backward_layer(program.problem().model))),
      checkpoint_bytes_(checkpoint_bytes(program.problem())),
      checkpoints_(index(layers_, 0)),
      gradients_(static_cast<std::size_t>(micro_batches_)) {
  const Problem& problem = program.problem();
  for (int layer = 0; layer < layers_; ++layer) {
    saves_.push_back(layer < first_backward_ ? saved_none : plan.saved.saves.at(layer, layers_));
    layouts_.push_back(saved_layout(problem, saves(layer), problem.workload.micro_batch));
  }
  const auto saves_nothing = [](const auto& layout) { return layout.empty(); };
  if (!std::all_of(layouts_.begin(), layouts_.end(), saves_nothing))
    saved_.resize(index(layers_, 0));
  whole_rows_ = std::all_of(
      times.uses().turns().begin(), times.uses().turns().end(),
      [&](const Turn& turn) { return static_cast<int>(turn.end - turn.begin) == micro_batches_; });
  if (work.splits) operands_.resize(index(layers_, 0));
  place_on_ssd();
  if (plan.saved.slots == 0) return;
  std::uint64_t most = 0;
  for (int layer = 0; layer < layers_; ++layer)
    most = std::max(most, saved_bytes(problem, saves(layer)));
  for (int slot = 0; most > 0 && slot < std::min(plan.saved.slots, layers_); ++slot)
    slots_.push_back(program.persistent(Tier::gpu, most, BufferKind::saved));
}

// The place in its row at which the input of a layer is made.
int Activations::position(int layer, int m) const {
  const VisitId made = made_in(0, layer, m);
  return static_cast<int>(made - uses_.turns()[uses_.turn_of(made)].begin);
}

bool Activations::is_inner(const Share& rest, int layer, int m) const {
  const int margin = plan_.checkpoints.margin;
  const VisitId made = made_in(0, layer, m);
  const Turn& turn = uses_.turns()[uses_.turn_of(made)];
  const int inner = static_cast<int>(turn.end - turn.begin) - 2 * margin;
  const int at = position(layer, m);
  return at >= margin && at < margin + share(rest.ssd, inner);
}

// Where several micro-batches of a layer run in a row, the inner ones rest on the SSD: those at the
// ends of the row are used again first, or still on their way. Where they run one by one, the
// layers that were first do: backward uses them last (Ratel, ICDE 2025, section IV-D). A tensor
// goes as a whole.
void Activations::place_on_ssd() {
  const auto on_ssd = [](const Share& share) { return share.ssd > 0; };
  const bool apart = plan_.saved.rest.has_value();
  if (!plan_.checkpoints.rest.any(on_ssd) && !(apart && plan_.saved.rest->any(on_ssd))) return;
  inputs_on_ssd_.assign(index(layers_, 0), 0);
  saved_on_ssd_.assign(index(layers_, 0), 0);
  const bool in_rows =
      std::any_of(uses_.turns().begin(), uses_.turns().end(), [](const Turn& turn) {
        return turn.step == 0 && !turn.backward && turn.end - turn.begin > 1;
      });
  if (!in_rows) {
    place_first_layers(plan_.checkpoints.rest, true, !apart);
    if (apart) place_first_layers(*plan_.saved.rest, false, true);
    return;
  }
  for (int layer = first_backward_; layer < ordinary_layers(); ++layer) {
    const auto tensors =
        static_cast<std::uint8_t>(layouts_[static_cast<std::size_t>(layer)].size());
    for (int m = 0; m < micro_batches_; ++m) {
      inputs_on_ssd_[index(layer, m)] = is_inner(rest_of_inputs(layer), layer, m);
      if (is_inner(rest_of_saved(layer), layer, m)) saved_on_ssd_[index(layer, m)] = tensors;
    }
  }
}

// Of the inputs of layers, what they save, or both, a share of their bytes, in each run of layers
// that have the same.
void Activations::place_first_layers(const ByLayer<Share>& rest, bool inputs, bool saved) {
  struct Item {
    int layer = 0;
    bool is_input = false;
    double bytes = 0;
  };
  const auto place = [&](const std::vector<Item>& items, double on_ssd) {
    double all = 0, before = 0;
    for (const Item& item : items) all += item.bytes;
    for (const Item& item : items) {
      if (on_ssd == 0 || before + item.bytes / 2 > on_ssd * all) break;
      for (int m = 0; m < micro_batches_; ++m)
        ++(item.is_input ? inputs_on_ssd_ : saved_on_ssd_)[index(item.layer, m)];
      before += item.bytes;
    }
  };
  std::vector<Item> items;
  for (int layer = first_backward_; layer < ordinary_layers(); ++layer) {
    if (layer > first_backward_ && !(rest.at(layer, layers_) == rest.at(layer - 1, layers_))) {
      place(items, rest.at(layer - 1, layers_).ssd);
      items.clear();
    }
    if (inputs) items.push_back({layer, true, static_cast<double>(checkpoint_bytes_)});
    if (!saved) continue;
    for (const SavedLayout& tensor : layouts_[static_cast<std::size_t>(layer)])
      items.push_back({layer, false, static_cast<double>(tensor.bytes)});
  }
  if (ordinary_layers() > 0) place(items, rest.at(ordinary_layers() - 1, layers_).ssd);
}

// One buffer a layer, so that what is dead together can be lent together.
bool Activations::has_resting_places() const {
  const bool leaves = plan_.checkpoints.rest.any([](const Share& rest) { return rest.gpu == 0; });
  return whole_rows_ && leaves && (micro_batches_ > 1 || !work_.delayed.empty());
}

std::vector<int> Activations::resting(int layer) const {
  std::vector<int> micro_batches;
  const Share& rest = rest_of_inputs(layer);
  if (layer == 0 || takes_input(layer) || layer < first_backward_ || !has_resting_places() ||
      rest.gpu > 0)
    return micro_batches;
  for (int m = 0; m < micro_batches_; ++m) {
    if (!is_inner(rest, layer, m)) micro_batches.push_back(m);
  }
  return micro_batches;
}

std::uint64_t Activations::resting_bytes(int layer) const {
  return resting(layer).size() * checkpoint_bytes_;
}

void Activations::take_resting_places() {
  if (!has_resting_places()) return;
  resting_places_.resize(static_cast<std::size_t>(layers_));
  places_.resize(index(layers_, 0));
  for (int layer = 1; layer < layers_; ++layer) {
    const std::vector<int> micro_batches = resting(layer);
    if (micro_batches.empty()) continue;
    Slice& all = resting_places_[static_cast<std::size_t>(layer)];
    all = program_.persistent(Tier::host, resting_bytes(layer), BufferKind::checkpoint, layer);
    for (std::size_t k = 0; k < micro_batches.size(); ++k)
      places_[index(layer, micro_batches[k])] = all.part(k * checkpoint_bytes_, checkpoint_bytes_);
  }
}

bool Activations::is_peak(VisitId v) const {
  const Visit& visit = work_.visits[v];
  return visit.kind == VisitKind::last_layer && visit.last_backward && layers_ > 1 &&
         (saves(layers_ - 1) & ~saves(layers_ - 2)) != 0;
}

Slice Activations::gpu_buffer(BufferKind kind, int layer, int micro_batch) {
  return program_.buffer(Tier::gpu, checkpoint_bytes_, kind, layer, micro_batch);
}

bool Activations::gradient_stays(int micro_batch) const {
  const int on_gpu = share(plan_.activation_gradients.on_gpu, micro_batches_);
  // Those at the ends of a row are handed from layer to layer anyway.
  return (micro_batch + micro_batches_ - 1) % micro_batches_ < on_gpu;
}

// -- results --------------------------------------------------------------------------------------

Slice Activations::make_input(VisitId v) {
  const Visit& visit = work_.visits[v];
  return make_checkpoint(v, 0, visit.micro_batch);
}

Slice Activations::make_output(VisitId v) {
  const Visit& visit = work_.visits[v];
  if (visit.kind == VisitKind::forward && hands_on(visit.layer)) {
    outputs_.resize(static_cast<std::size_t>(micro_batches_));
    return outputs_[micro_batch(v)] =
               gpu_buffer(BufferKind::checkpoint, visit.layer + 1, visit.micro_batch);
  }
  if (visit.kind == VisitKind::forward)
    return make_checkpoint(v, visit.layer + 1, visit.micro_batch);
  Tensor& gradient = gradients_[micro_batch(v)];
  gradient = {};
  gradient.gpu = gpu_buffer(BufferKind::checkpoint, visit.layer + 1, visit.micro_batch);
  return gradient.gpu;
}

Slice Activations::make_checkpoint(VisitId v, int layer, int m) {
  Tensor& made = checkpoints_[index(layer, m)];
  made = {};
  made.gpu = gpu_buffer(BufferKind::checkpoint, layer, m);
  note_leaving(v, layer, m);
  return made.gpu;
}

// The input of a layer is made in visit v.
void Activations::note_leaving(VisitId v, int layer, int m) {
  const VisitId forward = uses_.forward(work_.visits[v].step, layer, m);
  const bool until_forward = forward == v || retained_.output(v);
  const bool until_backward = layer < first_backward_ ||
                              work_.visits[forward].kind == VisitKind::last_layer ||
                              retained_.input(forward);
  if (!until_forward || !until_backward)
    leaving_.push_back({What::checkpoint, layer, m, v, checkpoints_[index(layer, m)].gpu});
}

// -- between stages -------------------------------------------------------------------------------

void Activations::exchange(const Meeting& meeting) {
  meeting.sends ? send_from(meeting.visit) : receive_for(meeting.visit);
}

void Activations::receive_for(VisitId v) {
  const Visit& visit = work_.visits[v];
  const Problem& problem = program_.problem();
  const int stages = static_cast<int>(problem.workload.pipeline);
  if (visit.kind == VisitKind::backward) {
    const int after = (problem.rank + 1) % stages;
    Tensor& gradient = gradients_[micro_batch(v)];
    gradient = {};
    gradient.gpu = gpu_buffer(BufferKind::activation_gradient, visit.layer, visit.micro_batch);
    program_.receive(Lane::stage_gradient_in, after, gradient.gpu, visit.layer, visit.micro_batch);
    return;
  }
  const int before = (problem.rank + stages - 1) % stages;
  Tensor& input = checkpoints_[index(visit.layer, visit.micro_batch)];
  input = {};
  input.gpu = gpu_buffer(BufferKind::checkpoint, visit.layer, visit.micro_batch);
  program_.receive(Lane::stage_in, before, input.gpu, visit.layer, visit.micro_batch);
}

Slice Activations::received_input(VisitId v) {
  const Visit& visit = work_.visits[v];
  note_leaving(v, visit.layer, visit.micro_batch);
  return checkpoint(v).gpu;
}

void Activations::send_from(VisitId v) {
  const Visit& visit = work_.visits[v];
  const Problem& problem = program_.problem();
  const int stages = static_cast<int>(problem.workload.pipeline);
  if (visit.kind == VisitKind::forward) {
    Slice& output = outputs_[micro_batch(v)];
    program_.send(Lane::stage_out, (problem.rank + 1) % stages, output, visit.layer,
                  visit.micro_batch);
    output = {};
    return;
  }
  Slice& gradient = gradients_[micro_batch(v)].gpu;
  program_.send(Lane::stage_gradient_out, (problem.rank + stages - 1) % stages, gradient,
                visit.layer, visit.micro_batch);
  gradient = {};
}

Slice Activations::make_saved(VisitId v) {
  const Visit& visit = work_.visits[v];
  const SavedMask mask = saves(visit.layer);
  if (mask == saved_none) return {};
  Saved& made = saved_[index(visit.layer, visit.micro_batch)];
  made = {};
  const bool is_kept = visit.kind == VisitKind::forward && retained_.saved(v);
  made.gpu = saved_memory(visit.layer, visit.micro_batch, is_kept);
  if (visit.kind == VisitKind::forward && !is_kept)
    leaving_.push_back({What::saved, visit.layer, visit.micro_batch, v, made.gpu});
  return made.gpu;
}

Slice Activations::make_operands(VisitId v) {
  const Visit& visit = work_.visits[v];
  return operands_[index(visit.layer, visit.micro_batch)] =
             program_.buffer(Tier::gpu, program_.weight_operand_bytes(saves(visit.layer)),
                             BufferKind::saved, visit.layer, visit.micro_batch);
}

Slice Activations::saved_memory(int layer, int m, bool is_kept) {
  const std::uint64_t bytes = saved_bytes(program_.problem(), saves(layer));
  if (slots_.empty() || is_kept)
    return program_.buffer(Tier::gpu, bytes, BufferKind::saved, layer, m);
  return slots_[static_cast<std::size_t>(layer) % slots_.size()].part(0, bytes);
}

Slice Activations::saved(VisitId v) const {
  const Visit& visit = work_.visits[v];
  if (saves(visit.layer) == saved_none) return {};
  return saved_[index(visit.layer, visit.micro_batch)].gpu;
}

// -- leaving the GPU ------------------------------------------------------------------------------

void Activations::leave(VisitId v) {
  while (!leaving_.empty() && (v == no_visit || leaving_.front().made < v)) send(0);
  if (v == no_visit) return;
  const Visit& visit = work_.visits[v];
  if (visit.kind == VisitKind::weights) return forget(v);
  if (visit.kind != VisitKind::forward) {
    Tensor& gradient = gradients_[micro_batch(v)];
    if (visit.layer > first_backward_ && !takes_input(visit.layer) &&
        !gradient_stays(visit.micro_batch) && !retained_.activation_gradient(v)) {
      leaving_.push_back({What::gradient, visit.layer - 1, visit.micro_batch, v, gradient.gpu});
      gradient.gpu = {};
    }
    if (!visit.weights_later) forget(v);
    return;
  }
  const VisitId backward = uses_.backward(visit.step, visit.layer, visit.micro_batch);
  Tensor& input = checkpoints_[index(visit.layer, visit.micro_batch)];
  if (visit.layer < first_backward_) {
    input = {};
    return;
  }
  if (!retained_.input(v)) input.gpu = {};
  if (input.ssd.valid() && !is_read_by(v, backward)) input.host = {};
}

// What a layer's backward needed.
void Activations::forget(VisitId v) {
  const Visit& visit = work_.visits[v];
  const std::size_t at = index(visit.layer, visit.micro_batch);
  checkpoints_[at] = {};
  if (!saved_.empty()) saved_[at] = {};
  if (!operands_.empty()) operands_[at] = {};
}

void Activations::send_if_leaving(What what, int layer, int micro_batch) {
  for (std::size_t k = 0; k < leaving_.size(); ++k) {
    const Leaving& one = leaving_[k];
    if (one.what == what && one.layer == layer && one.micro_batch == micro_batch) return send(k);
  }
}

void Activations::send(std::size_t k) {
  const Leaving one = leaving_[k];
  leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(k));
  const int step = work_.visits[one.made].step;
  if (one.what == What::gradient) {
    gradients_[static_cast<std::size_t>(one.micro_batch)].host =
        to_host(one.gpu, BufferKind::activation_gradient, one.layer, one.micro_batch);
    return;
  }
  const std::size_t at = index(one.layer, one.micro_batch);
  const VisitId backward = uses_.backward(step, one.layer, one.micro_batch);
  if (one.what == What::checkpoint) {
    Tensor& tensor = checkpoints_[at];
    if (!places_.empty() && places_[at].valid()) {
      tensor.host = places_[at];
      program_.copy(one.gpu, tensor.host, one.layer, one.micro_batch);
    } else {
      tensor.host = to_host(one.gpu, BufferKind::checkpoint, one.layer, one.micro_batch);
    }
    const VisitId forward = uses_.forward(step, one.layer, one.micro_batch);
    // Not to the SSD if nothing would be read back: it is used soon, or stays on the GPU from its
    // next use on.
    const bool rests_on_ssd = !inputs_on_ssd_.empty() && inputs_on_ssd_[at] > 0;
    if (!rests_on_ssd || is_read_by(forward, backward) || retained_.input(forward)) return;
    tensor.ssd = to_ssd(tensor.host, BufferKind::checkpoint, one.layer, one.micro_batch);
    if (forward <= one.made) tensor.host = {};
    return;
  }
  Saved& saved = saved_[at];
  const std::size_t on_ssd = saved_on_ssd_.empty() ? 0 : saved_on_ssd_[at];
  for (const SavedLayout& part : layouts_[static_cast<std::size_t>(one.layer)]) {
    Tensor tensor;
    tensor.host = to_host(one.gpu.part(part.offset, part.bytes), BufferKind::saved, one.layer,
                          one.micro_batch);
    saved.parts.push_back(tensor);
    if (saved.parts.size() > on_ssd || is_read_by(one.made, backward)) continue;
    saved.parts.back().ssd = to_ssd(tensor.host, BufferKind::saved, one.layer, one.micro_batch);
    saved.parts.back().host = {};
  }
  saved.gpu = {};
}

Slice Activations::to_host(Slice from, BufferKind kind, int layer, int micro_batch) {
  const Slice host = program_.buffer(Tier::host, from.bytes, kind, layer, micro_batch);
  program_.copy(from, host, layer, micro_batch);
  return host;
}

Activations::OnDrives Activations::to_ssd(Slice from, BufferKind kind, int layer, int micro_batch) {
  OnDrives ssd;
  drives_.for_parts(from.bytes, buffer_alignment, [&](int set, std::uint64_t at, std::uint64_t n) {
    Slice& part = ssd.parts[static_cast<std::size_t>(set)];
    part = program_.buffer(drives_tier(set), n, kind, layer, micro_batch).part(0, n);
    program_.copy(from.part(at, n), part, layer, micro_batch);
  });
  return ssd;
}

// -- coming back ----------------------------------------------------------------------------------

void Activations::fetch(VisitId v) { fetch_until(v, !is_peak(v)); }

void Activations::fetch_until(VisitId v, bool ahead) {
  const auto end = static_cast<VisitId>(work_.visits.size());
  const VisitId on_gpu = v + (ahead ? static_cast<VisitId>(plan_.checkpoints.gpu_ahead) : 0);
  const VisitId in_host = on_gpu + static_cast<VisitId>(plan_.checkpoints.host_ahead);
  for (; next_read_ < end && next_read_ <= in_host; ++next_read_) read_for(next_read_);
  const auto arrives = [&](VisitId visit) { return fetch_for(visit, v); };
  late_.erase(std::remove_if(late_.begin(), late_.end(), arrives), late_.end());
  for (; next_fetch_ < end && next_fetch_ <= on_gpu; ++next_fetch_) {
    if (!arrives(next_fetch_)) late_.push_back(next_fetch_);
  }
}

void Activations::read(Tensor& tensor, BufferKind kind, int layer, int micro_batch) {
  if (!tensor.ssd.valid() || tensor.host.valid()) return;
  tensor.host = program_.buffer(Tier::host, tensor.ssd.bytes(), kind, layer, micro_batch);
  std::uint64_t begin = 0;
  for (const Slice& part : tensor.ssd.parts) {
    if (!part.valid()) continue;
    program_.copy(part, tensor.host.part(begin, part.bytes), layer, micro_batch);
    begin += part.bytes;
  }
}

void Activations::read_for(VisitId v) {
  const Visit& visit = work_.visits[v];
  if (visit.kind != VisitKind::backward) return;
  const std::size_t at = index(visit.layer, visit.micro_batch);
  if (!checkpoints_[at].gpu.valid())
    read(checkpoints_[at], BufferKind::checkpoint, visit.layer, visit.micro_batch);
  if (saved_.empty()) return;
  for (Tensor& part : saved_[at].parts)
    read(part, BufferKind::saved, visit.layer, visit.micro_batch);
}

// What visit `v` needs and is not on the GPU; false where some of it is still to be made, by a
// visit from `now` on.
bool Activations::fetch_for(VisitId v, VisitId now) {
  const Visit& visit = work_.visits[v];
  if (visit.kind == VisitKind::weights) return true;  // all of it stayed
  const int l = visit.layer, m = visit.micro_batch;
  const std::size_t at = index(l, m);
  const auto bring = [&](Tensor& tensor, BufferKind kind) {
    read(tensor, kind, l, m);
    SPILLWAY_ASSERT(tensor.host.valid(), "an activation that is needed is somewhere");
    tensor.gpu = gpu_buffer(kind, l, m);
    program_.copy(tensor.host, tensor.gpu, l, m);
  };
  if (visit.kind != VisitKind::backward) {
    if (l == 0 || takes_input(l)) return true;
    const VisitId made = uses_.forward(visit.step, l - 1, m);
    if (retained_.output(made)) return true;
    if (made >= now) return false;
    send_if_leaving(What::checkpoint, l, m);
    bring(checkpoints_[at], BufferKind::checkpoint);
    return true;
  }
  const VisitId forward = uses_.forward(visit.step, l, m);
  const VisitId above = hands_on(l) ? no_visit : uses_.backward(visit.step, l + 1, m);
  const bool gradient_is_there =
      above == no_visit || gradient_stays(m) || retained_.activation_gradient(above);
  if (forward >= now || (above >= now && !gradient_is_there)) return false;
  if (!retained_.input(forward)) {
    send_if_leaving(What::checkpoint, l, m);
    if (!checkpoints_[at].gpu.valid()) bring(checkpoints_[at], BufferKind::checkpoint);
  }
  if (saves(l) != saved_none && !retained_.saved(forward)) {
    send_if_leaving(What::saved, l, m);
    if (!saved_[at].gpu.valid()) {
      saved_[at].gpu = saved_memory(l, m, false);
      std::size_t k = 0;
      for (const SavedLayout& part : layouts_[static_cast<std::size_t>(l)]) {
        Tensor& tensor = saved_[at].parts[k++];
        read(tensor, BufferKind::saved, l, m);
        program_.copy(tensor.host, saved_[at].gpu.part(part.offset, part.bytes), l, m);
      }
    }
  }
  if (!gradient_is_there) {
    send_if_leaving(What::gradient, l, m);
    Tensor& gradient = gradients_[static_cast<std::size_t>(m)];
    if (!gradient.gpu.valid()) {
      bring(gradient, BufferKind::activation_gradient);
      gradient.host = {};
    }
  }
  return true;
}

}  // namespace spillway
