// The moves of a search: one field each, or a few that go together.
#include <algorithm>
#include <cmath>

#include "experiments/tune/plan_space.hpp"

namespace spillway {

namespace {

using Apply = std::function<bool(const PlanSpace& space, Plan& plan)>;

// Sets a field; false where it has that value.
template <class Field, class Value>
bool set(Field& field, const Value& value) {
  if (field == Field(value)) return false;
  field = Field(value);
  return true;
}

bool shift(int& field, int by, int least, int most) {
  return set(field, std::clamp(field + by, least, most));
}

double on_grid(double fraction) { return std::round(std::clamp(fraction, 0.0, 1.0) * 1000) / 1000; }

double mean(const ByLayer<double>& values, int layers) {
  double sum = 0;
  for (int layer = 0; layer < layers; ++layer) sum += values.at(layer, layers);
  return sum / layers;
}

void add_order(std::vector<Move>& all, double step) {
  all.push_back({"order.snake", [](const PlanSpace& space, Plan& plan) {
                   return space.micro_batches > 1 && plan.order.row != 1 &&
                          set(plan.order.snake, !plan.order.snake);
                 }});
  for (const int by : {-1, 1}) {
    all.push_back({"order.row", [=](const PlanSpace& space, Plan& plan) {
                     if (space.micro_batches < 3) return false;
                     const int now = plan.order.row == 0 ? space.micro_batches : plan.order.row;
                     const int next =
                         by > 0 ? now + std::max(1, now / 2) : now - std::max(1, now / 3);
                     if (next < 1 || now >= space.micro_batches + (by < 0 ? 1 : 0)) return false;
                     plan.order.row = next >= space.micro_batches ? 0 : next;
                     if (next > 1) plan.saved.slots = 0;
                     return true;
                   }});
  }
  for (const UpdateOrder updates :
       {UpdateOrder::within, UpdateOrder::ascending, UpdateOrder::descending}) {
    all.push_back({"order.updates",
                   [=](const PlanSpace&, Plan& plan) { return set(plan.order.updates, updates); }});
  }
  all.push_back(
      {"order.waits", [](const PlanSpace&, Plan& plan) { return set(plan.order.waits, false); }});
  for (const double by : {step, -step}) {
    all.push_back({"order.delayed", [=](const PlanSpace& space, Plan& plan) {
                     const double now = mean(plan.order.delayed, space.layers);
                     return set(plan.order.delayed, on_grid(now + by));
                   }});
  }
  // The lowest layers are used first in the next step, and have least time for what is delayed.
  for (const double share : {step, 2 * step}) {
    all.push_back({"order.delayed by layer", [=](const PlanSpace& space, Plan& plan) {
                     const double now = mean(plan.order.delayed, space.layers);
                     const int lowest = static_cast<int>(share * space.layers);
                     if (now == 0 || lowest < 1 || lowest >= space.layers) return false;
                     return set(plan.order.delayed,
                                ByLayer<double>(std::vector<ByLayer<double>::Run>{
                                    {0, lowest}, {now, ByLayer<double>::others}}));
                   }});
  }
}

// More or fewer layers of a kind that is always on the GPU: the highest, which are used again
// first.
void add_layers_on_gpu(std::vector<Move>& all, double by) {
  const auto change = [by](const PlanSpace& space, ByLayer<Share>& rest) {
    const int more = std::max(1, static_cast<int>(std::abs(by) * space.layers));
    const int now = layers_on_gpu(rest, space.layers);
    const int next = std::clamp(now + (by > 0 ? more : -more), 0, space.layers);
    rest = with_layers_on_gpu(rest, space.layers, next);
    return next != now;
  };
  all.push_back({"parameters of layers on the GPU", [=](const PlanSpace& space, Plan& plan) {
                   return plan.optimizer.gpu_stride == 0 &&
                          layers_on_gpu(plan.optimizer_state.rest, space.layers) == 0 &&
                          change(space, plan.parameters.rest);
                 }});
  // The GPU updates a layer whose state is there, and its parameters with it.
  all.push_back({"optimizer_state of layers on the GPU", [=](const PlanSpace& space, Plan& plan) {
                   if (plan.optimizer.gpu_stride > 0 || !change(space, plan.optimizer_state.rest))
                     return false;
                   const int count = layers_on_gpu(plan.optimizer_state.rest, space.layers);
                   auto& parameters = plan.parameters.rest;
                   if (layers_on_gpu(parameters, space.layers) < count)
                     parameters = with_layers_on_gpu(parameters, space.layers, count);
                   return true;
                 }});
  all.push_back({"checkpoints of layers on the GPU", [=](const PlanSpace& space, Plan& plan) {
                   return change(space, plan.checkpoints.rest);
                 }});
  all.push_back({"saved of layers on the GPU", [=](const PlanSpace& space, Plan& plan) {
                   if (!plan.saved.rest) plan.saved.rest = plan.checkpoints.rest;
                   return change(space, *plan.saved.rest);
                 }});
}

// More or less of a kind on the SSD; the others make room in host memory, or use what is freed.
void add_places(std::vector<Move>& all, double step) {
  for (const double by : {step, -step, 1.0, -1.0}) {
    all.push_back({"parameters.rest", [=](const PlanSpace& space, Plan& plan) {
                     auto& rest = plan.parameters.rest;
                     const auto before = rest;
                     set_fraction_on_ssd(rest, space.layers,
                                         on_grid(fraction_on_ssd(rest, space.layers) + by));
                     return rest != before;
                   }});
    all.push_back({"optimizer_state.rest", [=](const PlanSpace& space, Plan& plan) {
                     auto& rest = plan.optimizer_state.rest;
                     const auto before = rest;
                     set_fraction_on_ssd(rest, space.layers,
                                         on_grid(fraction_on_ssd(rest, space.layers) + by));
                     return rest != before;
                   }});
    all.push_back({"checkpoints.rest", [=](const PlanSpace& space, Plan& plan) {
                     auto& rest = plan.checkpoints.rest;
                     const auto before = rest;
                     set_fraction_on_ssd(rest, space.layers,
                                         on_grid(fraction_on_ssd(rest, space.layers) + by));
                     return rest != before;
                   }});
    all.push_back({"saved.rest", [=](const PlanSpace& space, Plan& plan) {
                     auto rest = plan.saved.rest.value_or(plan.checkpoints.rest);
                     const auto before = rest;
                     set_fraction_on_ssd(rest, space.layers,
                                         on_grid(fraction_on_ssd(rest, space.layers) + by));
                     plan.saved.rest = rest;
                     return rest != before;
                   }});
  }
  // A swap of two kinds in host memory.
  for (const double by : {step, -step}) {
    all.push_back({"parameters for optimizer_state", [=](const PlanSpace& space, Plan& plan) {
                     auto& states = plan.optimizer_state.rest;
                     auto& parameters = plan.parameters.rest;
                     const auto before = parameters;
                     const double now = fraction_on_ssd(parameters, space.layers);
                     set_fraction_on_ssd(parameters, space.layers, on_grid(now + by));
                     if (parameters == before) return false;
                     const double bytes =
                         (fraction_on_ssd(parameters, space.layers) - now) * space.parameters;
                     set_fraction_on_ssd(
                         states, space.layers,
                         fraction_on_ssd(states, space.layers) - bytes / space.optimizer_state);
                     return true;
                   }});
  }
  all.push_back({"checkpoints.rest=gpu", [](const PlanSpace&, Plan& plan) {
                   return set(plan.checkpoints.rest, ByLayer<Share>(Share{.gpu = 1}));
                 }});
  all.push_back({"parameters.rest=gpu", [](const PlanSpace&, Plan& plan) {
                   return set(plan.parameters.rest, ByLayer<Share>(Share{.gpu = 1}));
                 }});
  for (const double by : {step, -step}) add_layers_on_gpu(all, by);
  for (const double to : {0.0, 0.5, 1.0}) {
    all.push_back({"activation_gradients.on_gpu", [=](const PlanSpace&, Plan& plan) {
                     return set(plan.activation_gradients.on_gpu, to);
                   }});
  }
}

void add_saved(std::vector<Move>& all, double step) {
  for (const double by : {4 * step, step, -step, -4 * step}) {
    all.push_back({"saved.saves", [=](const PlanSpace& space, Plan& plan) {
                     const double level = space.saved.level_of(plan.saved.saves) + by;
                     return set(plan.saved.saves, space.saved.at(level));
                   }});
  }
  all.push_back({"saved.saves=all", [](const PlanSpace& space, Plan& plan) {
                   return set(plan.saved.saves, space.saved.at(space.saved.most()));
                 }});
  all.push_back({"saved.recomputes_output", [](const PlanSpace&, Plan& plan) {
                   return set(plan.saved.recomputes_output, false);
                 }});
  for (const int slots : {0, 2, 3}) {
    all.push_back({"saved.slots", [=](const PlanSpace&, Plan& plan) {
                     return (slots == 0 || plan.order.row == 1) && set(plan.saved.slots, slots);
                   }});
  }
}

void add_distances(std::vector<Move>& all) {
  for (const int by : {1, -1, 4}) {
    all.push_back({"parameters.host_ahead", [=](const PlanSpace&, Plan& plan) {
                     return shift(plan.parameters.host_ahead, by, 0, 64);
                   }});
    all.push_back({"parameters.gpu_ahead", [=](const PlanSpace&, Plan& plan) {
                     return shift(plan.parameters.gpu_ahead, by, 0, 64);
                   }});
    all.push_back({"checkpoints.gpu_ahead", [=](const PlanSpace&, Plan& plan) {
                     return shift(plan.checkpoints.gpu_ahead, by, 0, 64);
                   }});
    all.push_back({"optimizer_state.ahead", [=](const PlanSpace& space, Plan& plan) {
                     const int most = std::max(16, 2 * space.micro_batches);
                     return shift(plan.optimizer_state.ahead, by, 0, most);
                   }});
    all.push_back({"optimizer_state.slots", [=](const PlanSpace&, Plan& plan) {
                     return shift(plan.optimizer_state.slots, by, 0, 32);
                   }});
  }
  all.push_back({"checkpoints.host_ahead", [](const PlanSpace&, Plan& plan) {
                   return set(plan.checkpoints.host_ahead, plan.checkpoints.host_ahead * 2 + 1);
                 }});
  all.push_back({"checkpoints.host_ahead", [](const PlanSpace&, Plan& plan) {
                   return set(plan.checkpoints.host_ahead, plan.checkpoints.host_ahead / 2);
                 }});
  for (const int margin : {0, 1, 2, 4}) {
    all.push_back({"checkpoints.margin", [=](const PlanSpace& space, Plan& plan) {
                     return fraction_on_ssd(plan.checkpoints.rest, space.layers) > 0 &&
                            set(plan.checkpoints.margin, margin);
                   }});
  }
  for (const int to : {-1, 0, 1, 2}) {
    all.push_back({"parameters.backward_gpu_ahead", [=](const PlanSpace&, Plan& plan) {
                     const std::optional<int> value =
                         to < 0 ? std::nullopt : std::optional<int>(to);
                     return set(plan.parameters.backward_gpu_ahead, value);
                   }});
  }
}

void add_gradients(std::vector<Move>& all) {
  all.push_back({"gradients.on_gpu", [](const PlanSpace& space, Plan& plan) {
                   return space.micro_batches > 1 &&
                          set(plan.gradients.on_gpu, !plan.gradients.on_gpu);
                 }});
  for (const int by : {1, -1}) {
    all.push_back({"gradients.gpu_ahead", [=](const PlanSpace&, Plan& plan) {
                     return !plan.gradients.on_gpu && shift(plan.gradients.gpu_ahead, by, 0, 16);
                   }});
  }
  all.push_back({"gradients.head_waits", [](const PlanSpace&, Plan& plan) {
                   return set(plan.gradients.head_waits,
                              plan.gradients.head_waits == Tier::gpu ? Tier::host : Tier::gpu);
                 }});
  all.push_back({"gradients to host memory", [](const PlanSpace&, Plan& plan) {
                   plan.gradients.bucket = 0;
                   return set(plan.gradients.on_ssd, false);
                 }});
}

void add_optimizer(std::vector<Move>& all) {
  all.push_back({"optimizer.early", [](const PlanSpace&, Plan& plan) {
                   return set(plan.optimizer.early, !plan.optimizer.early);
                 }});
  all.push_back({"optimizer in the order of work", [](const PlanSpace&, Plan& plan) {
                   plan.optimizer.blocking = false;
                   return set(plan.optimizer.own_phase, false);
                 }});
  for (const UpdateGroup group : {UpdateGroup::calls, UpdateGroup::shares}) {
    all.push_back({"optimizer.group", [=](const PlanSpace& space, Plan& plan) {
                     if (!set(plan.optimizer.group, group)) return false;
                     plan.optimizer.elements = 0;
                     if (group == UpdateGroup::shares) {
                       plan.optimizer_state.slots = 0;
                       plan.optimizer_state.ahead = space.micro_batches;
                     }
                     return true;
                   }});
  }
  for (const double parts : {2.0, 4.0, 16.0}) {
    all.push_back({"optimizer.group=at_most", [=](const PlanSpace& space, Plan& plan) {
                     const double elements = space.parameters / space.layers /
                                             static_cast<double>(space.parameter_bytes);
                     plan.optimizer.group = UpdateGroup::at_most;
                     return set(plan.optimizer.elements,
                                static_cast<std::uint64_t>(elements / parts));
                   }});
  }
  for (const int by : {1, -1}) {
    all.push_back({"optimizer.gpu_stride", [=](const PlanSpace& space, Plan& plan) {
                     if (layers_on_gpu(plan.parameters.rest, space.layers) < space.layers)
                       return false;
                     int& stride = plan.optimizer.gpu_stride;
                     const int before = stride;
                     stride = before == 0 ? 2 : before + by < 2 ? 0 : before + by;
                     plan.optimizer.own_phase = stride > 0;
                     plan.gradients.head_waits = Tier::gpu;
                     plan.order.updates = UpdateOrder::ascending;
                     plan.order.delayed = 0;
                     plan.optimizer_state.rest = Share{.host = 1};
                     return stride != before;
                   }});
  }
  all.push_back({"optimizer_state.gpu_slots", [](const PlanSpace&, Plan& plan) {
                   return plan.optimizer.gpu_stride > 1 &&
                          set(plan.optimizer_state.gpu_slots, 3 - plan.optimizer_state.gpu_slots);
                 }});
  all.push_back({"optimizer_state.writes_behind", [](const PlanSpace&, Plan& plan) {
                   auto& state = plan.optimizer_state;
                   state.writes_at_once = !state.writes_behind || state.writes_at_once;
                   return set(state.writes_behind, !state.writes_behind);
                 }});
  all.push_back({"optimizer_state.writes_at_once", [](const PlanSpace&, Plan& plan) {
                   return set(plan.optimizer_state.writes_at_once,
                              !plan.optimizer_state.writes_at_once);
                 }});
  all.push_back({"optimizer_state.embedding=host", [](const PlanSpace&, Plan& plan) {
                   return plan.optimizer.gpu_stride == 0 &&
                          set(plan.optimizer_state.embedding, Share{.host = 1});
                 }});
}

void add_retention(std::vector<Move>& all) {
  RetentionByKind kinds;
  for_kinds(kinds, [&](const std::string& kind, const Retention&) {
    all.push_back({"retention." + kind, [kind](const PlanSpace&, Plan& plan) {
                     for_kinds(plan.retention, [&](const std::string& name, Retention& one) {
                       if (name == kind)
                         one =
                             one == Retention::never() ? Retention::nearest() : Retention::never();
                     });
                     return true;
                   }});
  });
  for (const Retention to : {Retention::nearest(), Retention::never()}) {
    all.push_back({"retention", [to](const PlanSpace&, Plan& plan) {
                     const RetentionByKind before = plan.retention;
                     for_kinds(plan.retention,
                               [&](const std::string&, Retention& one) { one = to; });
                     return plan.retention != before;
                   }});
  }
}

}  // namespace

std::vector<Move> moves(double step) {
  std::vector<Move> all;
  add_order(all, step);
  add_places(all, step);
  add_saved(all, step);
  add_distances(all);
  add_gradients(all);
  add_optimizer(all);
  add_retention(all);
  for (Move& move : all) {
    for (const char* name :
         {"saved.saves", "saved.saves=all", "saved of layers on the GPU", "order.delayed",
          "optimizer_state.rest", "optimizer_state.slots", "checkpoints.gpu_ahead", "retention"})
      move.is_main = move.is_main || move.name == name;
  }
  return all;
}

}  // namespace spillway
