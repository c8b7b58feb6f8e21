#include "policies/movement/step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/stages.hpp"
#include "policies/model/tensors.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

// Why there is no such visit; empty: there is.
std::string not_there(int layer, int layers, int micro_batch, int micro_batches) {
  if (layer < 0 || layer >= layers) return fmt::format("layers are 0 to {}", layers - 1);
  if (micro_batch < 0 || micro_batch >= micro_batches)
    return fmt::format("micro-batches are 0 to {}", micro_batches - 1);
  return {};
}

}  // namespace

std::uint64_t on_grid(std::uint64_t elements, double fraction) {
  const auto grid = static_cast<std::uint64_t>(element_alignment);
  const double cells = static_cast<double>(elements / grid) * fraction;
  return std::min(elements, static_cast<std::uint64_t>(std::llround(cells)) * grid);
}

Step::Step(const Problem& problem, const Plan& plan, bool evaluates)
    : problem_(problem),
      plan_(plan),
      layers_(static_cast<int>(problem.model.layers)),
      micro_batches_(static_cast<int>(problem.workload.micro_batches())),
      head_(static_cast<int>(head_unit(problem.model))),
      has_head_(has_head(problem.model)),
      may_split_(problem.workload.pipeline > 1 && plan.gradients.bucket == 0 &&
                 plan.saved.slots == 0),
      shards_(problem, plan),
      up_(static_cast<std::size_t>(micro_batches_)),
      down_(static_cast<std::size_t>(micro_batches_)),
      done_(static_cast<std::size_t>(layers_)),
      summed_(static_cast<std::size_t>(layers_)),
      owed_(static_cast<std::size_t>(layers_) * static_cast<std::size_t>(micro_batches_)),
      begun_(static_cast<std::size_t>(layers_)),
      gradients_(static_cast<std::size_t>(head_) + 1),
      cuts_(static_cast<std::size_t>(head_) + 1),
      first_backward_(static_cast<int>(first_backward_layer(problem.model))) {
  const auto trained = [&](int unit) { return shards_.most_updated(unit); };
  layer_elements_ = trained(layers_ - 1);
  outer_elements_ = {trained(embedding()), trained(head_)};
  work_.evaluates = evaluates;
}

// A policy may be anybody's: what its order cannot be is said to who wrote it.
void Step::fail(const char* call, int layer, int micro_batch, const std::string& why) const {
  const std::string of_batch = micro_batch < 0 ? "" : fmt::format(", micro-batch {}", micro_batch);
  throw InputError(fmt::format("the policy's order of work: step {}: {} of layer {}{}: {}", step_,
                               call, layer, of_batch, why),
                   "what a call of Step needs has been computed by the calls before it");
}

void Step::begin(int step) {
  step_ = step;
  std::fill(up_.begin(), up_.end(), 0);
  std::fill(down_.begin(), down_.end(), layers_ - 1);
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(summed_.begin(), summed_.end(), 0);
  std::fill(begun_.begin(), begun_.end(), false);
  begin_ = {static_cast<VisitId>(work_.visits.size()), work_.updates.size()};
}

void Step::end() {
  finish_shares();
  for (int m = 0; m < micro_batches_; ++m) {
    if (down_[static_cast<std::size_t>(m)] >= 0)
      fail("backward", down_[static_cast<std::size_t>(m)], m, "it is missing");
  }
  if (const auto owed = std::find(owed_.begin(), owed_.end(), true); owed != owed_.end()) {
    const auto at = static_cast<int>(owed - owed_.begin());
    fail("weight_gradient", at / micro_batches_, at % micro_batches_, "it is missing");
  }
  ++work_.steps;
}

void Step::add(VisitKind kind, int layer, int micro_batch, bool weights_later) {
  Visit visit;
  visit.kind = kind;
  visit.weights_later = weights_later;
  visit.step = step_;
  visit.layer = layer;
  visit.micro_batch = micro_batch;
  note_sum(visit);
  work_.visits.push_back(visit);
  if (!adds_gradient(visit)) return;
  for (Shared& update : shared_) {
    if (update.unit == layer + 2) apply_share(update, static_cast<VisitId>(work_.visits.size()));
  }
}

// Its place among those that add to the same sums.
void Step::note_sum(Visit& visit) {
  const auto layer = static_cast<std::size_t>(visit.layer);
  const auto count = [&](int& done, bool& first, bool& last) {
    first = done == 0;
    last = ++done == micro_batches_;
  };
  if (is_backward(visit)) count(done_[layer], visit.first_backward, visit.last_backward);
  if (adds_gradient(visit)) count(summed_[layer], visit.starts_sum, visit.completes_sum);
  require_applied(visit);
  if (visit.completes_sum) gradients_[layer] = {step_, {}};
  for (const int unit : outer()) {
    if (visit.last_backward && visit.layer == layer_with(unit, layers_))
      gradients_[static_cast<std::size_t>(unit)] = {step_, {}};
  }
}

// The gradients that a visit begins anew.
void Step::require_applied(const Visit& visit) const {
  const auto require = [&](int unit, const char* whose) {
    const Gradient& gradient = gradients_[static_cast<std::size_t>(unit)];
    if (gradient.step < 0 || gradient.applied.size() == elements(unit)) return;
    fail(visit.kind == VisitKind::weights ? "weight_gradient" : "backward", visit.layer,
         visit.micro_batch, fmt::format("{} last gradient was not applied", whose));
  };
  if (visit.starts_sum) require(visit.layer, "its");
  if (!visit.first_backward) return;
  // The head's sum begins with the loss; a tied head's is the embedding's.
  if (has_loss(visit.layer)) require(head(), "the head's");
  if (visit.layer == 0 && (head() != embedding() || !has_head_))
    require(embedding(), "the embedding's");
}

std::uint64_t Step::elements(int unit) const {
  if (unit < layers_) return unit < first_backward_ ? 0 : layer_elements_;
  return outer_elements_[static_cast<std::size_t>(unit - layers_)];
}

void Step::forward(int layer, int micro_batch) {
  const std::string none = not_there(layer, layers_, micro_batch, micro_batches_);
  if (!none.empty()) fail("forward", layer, micro_batch, none);
  int& next = up_[static_cast<std::size_t>(micro_batch)];
  if (next != layer) fail("forward", layer, micro_batch, fmt::format("layer {} is next", next));
  ++next;
  if (!begun_[static_cast<std::size_t>(layer)]) close_group_of(layer);
  begun_[static_cast<std::size_t>(layer)] = true;
  if (!has_loss(layer)) add(VisitKind::forward, layer, micro_batch, false);
}

void Step::backward(int layer, int micro_batch) { backward("backward", layer, micro_batch, false); }

void Step::input_gradient(int layer, int micro_batch) {
  backward("input_gradient", layer, micro_batch, may_split_);
  if (!work_.evaluates && layer >= first_backward_)
    owed_[static_cast<std::size_t>(layer * micro_batches_ + micro_batch)] = true;
}

void Step::weight_gradient(int layer, int micro_batch) {
  const std::string none = not_there(layer, layers_, micro_batch, micro_batches_);
  if (!none.empty()) fail("weight_gradient", layer, micro_batch, none);
  if (down_[static_cast<std::size_t>(micro_batch)] >= layer)
    fail("weight_gradient", layer, micro_batch, "the gradient of its input comes first");
  const auto at = static_cast<std::size_t>(layer * micro_batches_ + micro_batch);
  if (work_.evaluates || layer < first_backward_) return;
  if (!owed_[at]) fail("weight_gradient", layer, micro_batch, "it is there already");
  owed_[at] = false;
  if (may_split_) add(VisitKind::weights, layer, micro_batch, false);
}

void Step::backward(const char* call, int layer, int micro_batch, bool weights_later) {
  const std::string none = not_there(layer, layers_, micro_batch, micro_batches_);
  if (!none.empty()) fail(call, layer, micro_batch, none);
  int& next = down_[static_cast<std::size_t>(micro_batch)];
  if (up_[static_cast<std::size_t>(micro_batch)] != layers_)
    fail(call, layer, micro_batch, "its forward is not complete");
  if (next != layer) fail(call, layer, micro_batch, fmt::format("layer {} is next", next));
  --next;
  if (work_.evaluates) {
    if (has_loss(layer)) add(VisitKind::loss, layer, micro_batch, false);
    return;
  }
  if (layer < first_backward_) return;
  add(has_loss(layer) ? VisitKind::last_layer : VisitKind::backward, layer, micro_batch,
      weights_later);
  work_.splits = work_.splits || weights_later;
}

void Step::update(int unit, Portion portion) {
  if (unit < 0 || unit > head_)
    fail("update", unit, -1, fmt::format("layers and the units after them are 0 to {}", head_));
  if (!(0 <= portion.from && portion.from <= portion.to && portion.to <= 1))
    fail("update", unit, -1,
         fmt::format("{} to {} is no part of it, from 0 to 1", portion.from, portion.to));
  if (work_.evaluates) return;
  if (plan_.optimizer.group != UpdateGroup::shares) return update_portion(unit, portion);
  if (unit >= layers_) {
    finish_shares();
    return update_portion(unit, portion);
  }
  Shared update{unit, portion, 0};
  if (gradients_[static_cast<std::size_t>(unit)].step == step_) {
    shared_.push_back(update);
    return;
  }
  const auto now = static_cast<VisitId>(work_.visits.size());
  for (VisitId v = begin_.visit; v < now; ++v) {
    const Visit& visit = work_.visits[v];
    if (visit.kind == VisitKind::forward && visit.layer == unit - 2) apply_share(update, v + 1);
  }
  while (update.done < micro_batches_) apply_share(update, unit < 2 ? begin_.visit : now);
}

void Step::apply_share(Shared& update, VisitId at) {
  if (update.done == micro_batches_) return;
  const auto end_of = [&](int shares) {
    const auto& [from, to] = update.portion;
    return shares == micro_batches_ ? to : from + (to - from) * shares / micro_batches_;
  };
  const std::size_t updates = work_.updates.size();
  update_portion(update.unit, {end_of(update.done), end_of(update.done + 1)});
  if (work_.updates.size() > updates) work_.updates.back().at = at;
  ++update.done;
}

void Step::finish_shares() {
  close_group();
  for (Shared& update : shared_) {
    while (update.done < micro_batches_)
      apply_share(update, static_cast<VisitId>(work_.visits.size()));
  }
  shared_.clear();
  if (plan_.optimizer.group != UpdateGroup::shares) return;
  // Shares were put after visits that were past.
  std::stable_sort(work_.updates.begin() + static_cast<std::ptrdiff_t>(begin_.update),
                   work_.updates.end(),
                   [](const Update& a, const Update& b) { return a.at < b.at; });
}

void Step::update_portion(int unit, Portion portion) {
  const Gradient& gradient = gradients_[static_cast<std::size_t>(unit)];
  const std::uint64_t first = on_grid(elements(unit), portion.from);
  const std::uint64_t last = on_grid(elements(unit), portion.to);
  if (first == last) return;
  note_cut(unit, first);
  note_cut(unit, last);
  if (gradient.step < step_) work_.delayed.push_back({step_, {unit, first, last - first}});
  if (gradient.step < 0) return;
  if (gradient.step < step_ && begun_[static_cast<std::size_t>(layer_with(unit, layers_))])
    fail("update", unit, -1, "forward has begun with the parameters as they were before");
  if (gradient.applied.holds_any_of(first, last))
    fail("update", unit, -1, "a part of it was updated already");
  apply(unit, first, last - first);
}

void Step::note_cut(int unit, std::uint64_t element) {
  std::vector<std::uint64_t>& cuts = cuts_[static_cast<std::size_t>(unit)];
  const auto at = std::lower_bound(cuts.begin(), cuts.end(), element);
  if (at == cuts.end() || *at != element) cuts.insert(at, element);
}

// Of a tensor each rank updates its part, so that a shard has the unit's tensors in small.
std::uint64_t Step::in_shard(int unit, std::uint64_t element) const {
  const std::uint64_t whole = shards_.whole(unit);
  return element >= whole
             ? elements(unit)
             : on_grid(elements(unit), static_cast<double>(element) / static_cast<double>(whole));
}

void Step::apply(int unit, std::uint64_t first, std::uint64_t count) {
  Gradient& gradient = gradients_[static_cast<std::size_t>(unit)];
  gradient.applied.add(first, first + count);
  switch (plan_.optimizer.group) {
    case UpdateGroup::calls:
    case UpdateGroup::shares:
      add_range({unit, first, count}, gradient.step);
      close_group();
      return;
    case UpdateGroup::tensors:
      for (const TensorRange& tensor : unit_tensors(problem_.model, unit)) {
        const std::uint64_t from = std::max(first, in_shard(unit, tensor.first));
        const std::uint64_t to =
            std::min(first + count, in_shard(unit, tensor.first + tensor.elements));
        if (from >= to) continue;
        add_range({unit, from, to - from}, gradient.step);
        if (group_elements_ >= plan_.optimizer.elements) close_group();
      }
      return;
    case UpdateGroup::at_most:
      break;
  }
  const std::uint64_t most = plan_.optimizer.elements;
  if (group_elements_ + count > most) close_group();
  const std::uint64_t pieces = (count + most - 1) / most;
  constexpr std::uint64_t most_groups = 1'000'000;
  if (work_.updates.size() + pieces > most_groups) {
    throw InputError(
        fmt::format("groups of {} elements are too many for the {} parameters of model {}: more "
                    "than {}",
                    most, problem_.model.parameters(), problem_.model.name, most_groups),
        "make groups larger, or leave the option out");
  }
  const auto grid = static_cast<std::uint64_t>(element_alignment);
  const std::uint64_t size =
      std::max<std::uint64_t>(1, (count / grid + pieces - 1) / pieces) * grid;
  for (std::uint64_t at = 0; at < count; at += size) {
    if (at > 0) close_group();
    add_range({unit, first + at, std::min(size, count - at)}, gradient.step);
  }
}

void Step::add_range(const UpdateRange& range, int gradient_step) {
  // An update runs in one place.
  const auto on_gpu = [&](int unit) { return state_rests_on_gpu(plan_, unit, layers_); };
  if (group_elements_ > 0 && (group_gradient_step_ != gradient_step ||
                              on_gpu(work_.ranges.back().unit) != on_gpu(range.unit)))
    close_group();
  if (group_elements_ == 0) group_begin_ = work_.ranges.size();
  group_gradient_step_ = gradient_step;
  group_at_ = static_cast<VisitId>(work_.visits.size());
  work_.ranges.push_back(range);
  group_elements_ += range.elements;
}

void Step::close_group() {
  if (group_elements_ == 0) return;
  Update update;
  update.step = step_;
  update.gradient_step = group_gradient_step_;
  update.at = group_at_;
  update.first_range = static_cast<std::uint32_t>(group_begin_);
  update.range_count = static_cast<std::uint32_t>(work_.ranges.size() - group_begin_);
  work_.updates.push_back(update);
  group_elements_ = 0;
}

// The forward of a layer uses what updates before it made: no more joins them.
void Step::close_group_of(int layer) {
  if (group_elements_ == 0) return;
  const auto begin = work_.ranges.begin() + static_cast<std::ptrdiff_t>(group_begin_);
  const bool holds = std::any_of(begin, work_.ranges.end(), [&](const UpdateRange& range) {
    return layer_with(range.unit, layers_) == layer;
  });
  if (holds) close_group();
}

void Step::wait() {
  if (work_.evaluates) return;
  finish_shares();
  begin_ = {static_cast<VisitId>(work_.visits.size()), work_.updates.size()};
  work_.waits.push_back({step_, begin_.visit, static_cast<std::uint32_t>(begin_.update)});
}

OrderOfWork Step::finish() {
  step_ = work_.steps;
  for (int unit = 0; unit <= head_; ++unit) {
    const Gradient& gradient = gradients_[static_cast<std::size_t>(unit)];
    if (gradient.step < 0) continue;
    // In the parts in which the policy names it.
    for (auto [first, last] : gradient.applied.missing(elements(unit))) {
      for (const std::uint64_t cut : cuts_[static_cast<std::size_t>(unit)]) {
        if (cut <= first || cut >= last) continue;
        apply(unit, first, cut - first);
        first = cut;
      }
      apply(unit, first, last - first);
    }
  }
  close_group();
  return std::move(work_);
}

void Step::in_order_of_plan() {
  const auto& order = plan_.order;
  const int row = order.row == 0 ? micro_batches_ : std::min(order.row, micro_batches_);
  const bool within = order.updates == UpdateOrder::within;
  const bool has_head = head() != embedding();
  const auto delayed = [&](int layer) { return order.delayed.at(layer, layers_); };
  const Sequence micro_batches = ascending();
  for (int first = 0; first < micro_batches_; first += row) {
    const int count = std::min(row, micro_batches_ - first);
    const bool is_last = first + count == micro_batches_;
    const auto in_row = [&](int layer) {
      const bool down = order.snake && layer % 2 == 1;
      return Sequence(down ? first + count - 1 : first, count, down);
    };
    for (const int layer : upward()) {
      if (first == 0) update(layer, {0, delayed(layer)});
      for (const int m : in_row(layer)) forward(layer, micro_batches[m]);
    }
    for (const int layer : downward()) {
      for (const int m : in_row(layer)) backward(layer, micro_batches[m]);
      if (is_last && within && has_head && layer + 1 == layers_) update(head());
      if (is_last && within) update(layer, {delayed(layer), 1});
    }
  }
  if (!within) {
    if (order.waits) wait();
    const bool up = order.updates == UpdateOrder::ascending;
    if (has_head && !up) update(head());
    for (const int layer : up ? upward() : downward()) update(layer, {delayed(layer), 1});
    if (has_head && up) update(head());
  }
  update(embedding());
  if (!within && order.waits) wait();
}

}  // namespace spillway
