#include "policies/schedule/task.hpp"

#include <array>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

const char* to_string(Tier tier) {
  switch (tier) {
    case Tier::gpu:
      return "gpu";
    case Tier::host:
      return "host";
    case Tier::ssd:
      break;
  }
  SPILLWAY_ASSERT(static_cast<int>(tier) < tier_count);
  return drive_set_name(drive_set(tier));
}

const char* to_string(Lane lane) {
  switch (lane) {
    case Lane::gpu_compute:
      return "gpu.compute";
    case Lane::pcie_h2d:
      return "pcie.h2d";
    case Lane::pcie_d2h:
      return "pcie.d2h";
    case Lane::ssd_read:
      return "ssd.read";
    case Lane::ssd_write:
      return "ssd.write";
    case Lane::cpu_optimizer:
      return "cpu.optimizer";
    case Lane::host_sync:
      return "host.sync";
    case Lane::ranks_gather:
      return "ranks.gather";
    case Lane::ranks_reduce:
      return "ranks.reduce";
    case Lane::ranks_spread:
      return "ranks.spread";
    case Lane::stage_in:
      return "stage.in";
    case Lane::stage_out:
      return "stage.out";
    case Lane::stage_gradient_in:
      return "stage.grad_in";
    case Lane::stage_gradient_out:
      return "stage.grad_out";
  }
  static_assert(most_drive_sets == 4);
  constexpr std::array<const char*, 2 * (most_drive_sets - 1)> of_more_drives = {
      "ssd2.read", "ssd2.write", "ssd3.read", "ssd3.write", "ssd4.read", "ssd4.write"};
  SPILLWAY_ASSERT(static_cast<int>(lane) < lane_count);
  return of_more_drives[static_cast<std::size_t>(lane) - lane_count_of_stages];
}

const Route* find_route(Tier from, Tier to) {
  // By the number of memories, so that a look-up is two steps.
  static const auto routes = [] {
    std::array<std::array<Route, tier_count>, tier_count> all{};
    std::array<std::array<bool, tier_count>, tier_count> known{};
    const auto add = [&](const Route& route) {
      all[static_cast<std::size_t>(route.from)][static_cast<std::size_t>(route.to)] = route;
      known[static_cast<std::size_t>(route.from)][static_cast<std::size_t>(route.to)] = true;
    };
    add({Tier::host, Tier::gpu, TaskKind::h2d, Lane::pcie_h2d});
    add({Tier::gpu, Tier::host, TaskKind::d2h, Lane::pcie_d2h});
    for (int set = 0; set < most_drive_sets; ++set) {
      add({drives_tier(set), Tier::host, TaskKind::read, read_lane(set)});
      add({Tier::host, drives_tier(set), TaskKind::write, write_lane(set)});
    }
    return std::pair(all, known);
  }();
  const auto at = [&](const auto& table) {
    return &table[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  };
  return *at(routes.second) ? at(routes.first) : nullptr;
}

const char* to_string(TaskKind kind) {
  switch (kind) {
    case TaskKind::embed_forward:
      return "embed_forward";
    case TaskKind::forward:
      return "forward";
    case TaskKind::head:
      return "head";
    case TaskKind::backward:
      return "backward";
    case TaskKind::embed_backward:
      return "embed_backward";
    case TaskKind::optimizer:
      return "optimizer";
    case TaskKind::h2d:
      return "h2d";
    case TaskKind::d2h:
      return "d2h";
    case TaskKind::read:
      return "read";
    case TaskKind::write:
      return "write";
    case TaskKind::barrier:
      return "barrier";
    case TaskKind::gradient_norm:
      return "gradient_norm";
    case TaskKind::all_gather:
      return "all_gather";
    case TaskKind::broadcast:
      return "broadcast";
    case TaskKind::reduce_scatter:
      return "reduce_scatter";
    case TaskKind::all_reduce:
      return "all_reduce";
    case TaskKind::norms_reduce:
      return "norms_reduce";
    case TaskKind::gradient_add:
      return "gradient_add";
    case TaskKind::send:
      return "send";
    case TaskKind::input_gradient:
      return "input_gradient";
    case TaskKind::weight_gradient:
      return "weight_gradient";
    case TaskKind::receive:
      return "receive";
  }
  SPILLWAY_ASSERT(false);
}

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    case Phase::optimizer:
      return "optimizer";
    case Phase::epilogue:
      return "epilogue";
  }
  SPILLWAY_ASSERT(false);
}

const char* to_string(BufferKind kind) {
  switch (kind) {
    case BufferKind::parameters:
      return "parameters";
    case BufferKind::gradient:
      return "gradient";
    case BufferKind::head_gradient:
      return "head_gradient";
    case BufferKind::optimizer_state:
      return "optimizer_state";
    case BufferKind::checkpoint:
      return "checkpoint";
    case BufferKind::saved:
      return "saved";
    case BufferKind::activation_gradient:
      return "activation_gradient";
    case BufferKind::scratch:
      return "scratch";
    case BufferKind::norms:
      return "norms";
  }
  SPILLWAY_ASSERT(false);
}

}  // namespace spillway
