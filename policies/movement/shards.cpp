#include "policies/movement/shards.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

// A mesh that a plan leaves open is the one given.
Mesh or_else(const Mesh& mesh, const Mesh& usual) { return mesh.size() > 0 ? mesh : usual; }

bool divides(const Mesh& inner, const Mesh& outer) {
  return outer.inside % inner.inside == 0 && outer.across % inner.across == 0;
}

void require_mesh(const char* name, const Mesh& mesh, const char* of, const Mesh& around) {
  if (!divides(mesh, around)) {
    throw InputError(fmt::format("shards of {} among {} do not divide {} among {}", name,
                                 to_string(mesh), of, to_string(around)),
                     "a mesh is GPUs of a node x nodes, each a divisor of the one around it: "
                     "parameters, gradients, optimizer state, ranks");
  }
  // AMSP, equation 7.
  if (mesh.across > 1 && mesh.inside != around.inside) {
    throw InputError(
        fmt::format("shards of {} among {} span nodes without filling one", name, to_string(mesh)),
        fmt::format("use {}x{}, or fewer nodes", around.inside, mesh.across));
  }
}

}  // namespace

ElementRange shard_of(const ElementRange& whole, int parts, int place) {
  const auto grid = static_cast<std::uint64_t>(element_alignment);
  SPILLWAY_ASSERT(whole.elements % grid == 0 && place < parts);
  const std::uint64_t cells = whole.elements / grid, count = static_cast<std::uint64_t>(parts),
                      at = static_cast<std::uint64_t>(place);
  const std::uint64_t even = cells / count, more = cells % count;
  return {whole.first + (even * at + std::min(at, more)) * grid,
          (even + (at < more ? 1 : 0)) * grid};
}

std::vector<std::uint64_t> part_elements(const RankGroup& group, std::uint64_t whole) {
  const int first = group.inner.size();
  std::vector<std::uint64_t> parts;
  for (int i = 0; i < first; ++i) {
    const ElementRange outer = shard_of({0, whole}, first, i);
    for (int k = 0; k < group.size() / first; ++k)
      parts.push_back(shard_of(outer, group.size() / first, k).elements);
  }
  return parts;
}

ElementRange updated_by_rank(const GradientMeshes& meshes, int state, bool is_layer,
                             std::uint64_t elements, int rank) {
  ElementRange shard{0, elements};
  int done = 1;
  const auto cut_to = [&](int among) {
    if (among > done) shard = shard_of(shard, among / done, rank / done % (among / done));
    done = std::max(done, among);
  };
  if (is_layer) {
    for (const int among : {meshes.parameters, meshes.gradients}) cut_to(among);
  }
  cut_to(state);
  return shard;
}

std::uint64_t largest_shard(const Problem& problem, std::int64_t elements) {
  const auto all = static_cast<std::uint64_t>(elements);
  return problem.workload.ranks == 1 ? all : shard_of({0, all}, problem.ranks().size(), 0).elements;
}

void fetch_by_layer(const Problem& problem, Plan& plan) {
  if (problem.workload.ranks == 1 || !plan.parameters.by_tensor) return;
  plan.parameters.by_tensor = false;
  plan.parameters.host_ahead = std::max(plan.parameters.host_ahead, 1);
  plan.parameters.gpu_ahead = std::max(plan.parameters.gpu_ahead, 1);
}

Shards::Shards(const Problem& problem, const Plan& plan)
    : problem_(problem),
      plan_(plan),
      layers_(static_cast<int>(problem.model.layers)),
      ranks_(problem.ranks()),
      gradients_(or_else(plan.shards.gradients, {})),
      state_(or_else(plan.shards.optimizer_state, problem.ranks())),
      second_(plan.shards.second_parameters) {
  if (!any()) {
    state_ = gradients_ = {};
    second_ = {0, 0};
    return;
  }
  require_mesh("optimizer state", state_, "the ranks", ranks_);
  require_mesh("gradients", gradients_, "those of optimizer state", state_);
  for (int unit = 0; unit < static_cast<int>(unit_count(problem.model)); ++unit) {
    require_mesh("parameters", parameters(unit), "those of optimizer state", state_);
    if (reduces_each(unit))
      require_mesh("parameters", parameters(unit), "those of gradients", gradients_);
    if (keeps_second(unit)) {
      require_mesh("second parameters", second_, "those of parameters", parameters(unit));
      if (gradients_ != parameters(unit))
        throw InputError(fmt::format("second parameters need gradients in the shards of "
                                     "parameters: {}, not {}",
                                     to_string(parameters(unit)), to_string(gradients_)),
                         "a shard of both is part of the second one");
    }
    require_cells("parameters", whole(unit), state_);
    require_cells("frozen parameters", frozen(unit).elements, parameters(unit));
  }
}

// Of elements that there are any of, a cell or more for each shard.
void Shards::require_cells(const char* what, std::uint64_t elements, const Mesh& mesh) const {
  constexpr auto cell = static_cast<std::uint64_t>(element_alignment);
  const auto shards = static_cast<std::uint64_t>(mesh.size());
  if (elements == 0 || elements / cell >= shards) return;
  const std::uint64_t cells = elements / cell;
  const std::string fewer = fmt::format("use {} rank{}", cells, cells == 1 ? "" : "s at most");
  const bool of_adapters = problem_.model.has_adapters() && elements == trained(0).elements;
  const auto rank = static_cast<std::uint64_t>(problem_.model.lora_rank);
  throw InputError(
      fmt::format("{} ranks are too many for the {} {} of a unit of model {}: a shard is {} at the "
                  "least",
                  shards, elements, what, problem_.model.name, cell),
      of_adapters
          ? fmt::format("{}, or adapters of rank {}", fewer, (rank * shards - 1) / cells + 1)
          : fewer + ", or a larger model");
}

GradientMeshes Shards::meshes() const {
  if (!any()) return {};
  // What a layer's elements are cut among first: the second shards are parts of the first ones.
  const auto first_cut = [&](int layer) {
    return keeps_second(layer) ? second_.size() : parameters(layer).size();
  };
  GradientMeshes meshes{state_.size(), gradients_.size(), first_cut(0), plan_.shards.all_reduce};
  for (int layer = 1; layer < layers_; ++layer) {
    if (first_cut(layer) != meshes.parameters) meshes.parameters = mixed_cut;
  }
  return canonical(meshes, ranks_.size(), problem_.workload.micro_batches());
}

ElementRange Shards::trained(int unit) const {
  return {0, static_cast<std::uint64_t>(trained_elements(problem_.model, unit))};
}

ElementRange Shards::frozen(int unit) const {
  const std::uint64_t first = whole(unit);
  return {first, static_cast<std::uint64_t>(unit_elements(problem_.model, unit)) - first};
}

// What rests on the GPU is cut as the plan says; what does not is this rank's to fetch, and cut as
// optimizer state.
Mesh Shards::parameters(int unit) const {
  if (!any() || !is_layer(unit)) return {};
  const bool on_gpu = plan_.parameters.rest.at(unit, layers_).gpu > 0;
  return on_gpu ? or_else(plan_.shards.parameters, {}) : state_;
}

RankGroup Shards::scatter_group(int unit) const {
  const RankGroup group = replica_group(state_, summed_mesh(unit));
  return reduces_each(unit) ? group : cut_first(group, parameters(unit));
}

RankGroup Shards::spread_group(int unit) const {
  const RankGroup group = replica_group(state_, parameters(unit));
  if (!reduces_each(unit)) return group;
  return cut_first(group, replica_group(gradients_, parameters(unit)).mesh);
}

// The shard of `whole`, which ranks of the mesh `inner` have, among those of `outer` around it.
ElementRange Shards::cut(const ElementRange& whole, const Mesh& outer, const Mesh& inner) const {
  const RankGroup among = replica_group(outer, inner);
  if (among.size() == 1) return whole;
  return shard_of(whole, among.size(), place_in(among, ranks_, problem_.rank));
}

ElementRange Shards::kept_of(int unit, const ElementRange& whole) const {
  return keeps_second(unit) ? cut(second_of(whole), parameters(unit), second_)
                            : cut(whole, parameters(unit), {});
}

ElementRange Shards::summed(int unit) const {
  return reduces_each(unit) ? cut(kept(unit), gradients_, parameters(unit))
                            : ElementRange{0, whole(unit)};
}

// Cutting again, among other ranks, leaves the first as many as cutting at once.
std::uint64_t Shards::most_updated(int unit) const {
  return shard_of({0, whole(unit)}, state_.size(), 0).elements;
}

ElementRange Shards::updated(int unit) const {
  return reduces_each(unit) ? cut(summed(unit), state_, gradients_)
                            : cut(kept(unit), state_, parameters(unit));
}

}  // namespace spillway
