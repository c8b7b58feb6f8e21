#include "policies/workload/ranks.hpp"

#include <charconv>

#include "base/errors.hpp"

namespace spillway {

namespace {

bool read_count(const char*& at, const char* end, int& count) {
  const auto [stop, error] = std::from_chars(at, end, count);
  if (error != std::errc() || count < 1) return false;
  at = stop;
  return true;
}

// The first of the steps of a group along one side of the mesh that `place` is one of.
int first_step(int place, int steps, int stride) {
  return place / (steps * stride) * (steps * stride) + place % stride;
}

// Of the member so many steps along each side of its group.
int place_at(const RankGroup& group, int inside, int across) {
  const auto place = [](int x, int y, const Mesh& mesh) { return y * mesh.inside + x; };
  const Mesh& inner = group.inner;
  const Mesh outer{group.mesh.inside / inner.inside, group.mesh.across / inner.across};
  return place(inside % inner.inside, across % inner.across, inner) * outer.size() +
         place(inside / inner.inside, across / inner.across, outer);
}

}  // namespace

std::string to_string(const Mesh& mesh) {
  return std::to_string(mesh.inside) + "x" + std::to_string(mesh.across);
}

bool parse_mesh(const std::string& text, Mesh& mesh) {
  const char* at = text.data();
  const char* const end = at + text.size();
  Mesh read;
  if (!read_count(at, end, read.inside) || at == end || *at++ != 'x' ||
      !read_count(at, end, read.across) || at != end)
    return false;
  mesh = read;
  return true;
}

RankGroup shard_group(const Mesh& mesh) { return {mesh, 1, 1}; }

RankGroup replica_group(const Mesh& outer, const Mesh& inner) {
  SPILLWAY_ASSERT(outer.inside % inner.inside == 0 && outer.across % inner.across == 0);
  return {{outer.inside / inner.inside, outer.across / inner.across}, inner.inside, inner.across};
}

RankGroup cut_first(RankGroup group, const Mesh& inner) {
  SPILLWAY_ASSERT(group.mesh.inside % inner.inside == 0 && group.mesh.across % inner.across == 0);
  // The order of nodes and GPUs, however it is said.
  const bool is_plain = inner.size() == 1 || inner == group.mesh;
  group.inner = is_plain ? Mesh{} : inner;
  return group;
}

std::vector<int> members_of(const RankGroup& group, const Ranks& ranks, int rank) {
  const int inside = first_step(rank % ranks.inside, group.mesh.inside, group.inside_stride);
  const int across = first_step(rank / ranks.inside, group.mesh.across, group.across_stride);
  std::vector<int> members(static_cast<std::size_t>(group.size()));
  for (int node = 0; node < group.mesh.across; ++node) {
    for (int gpu = 0; gpu < group.mesh.inside; ++gpu) {
      members[static_cast<std::size_t>(place_at(group, gpu, node))] =
          (across + node * group.across_stride) * ranks.inside + inside + gpu * group.inside_stride;
    }
  }
  return members;
}

int place_in(const RankGroup& group, const Ranks& ranks, int rank) {
  const int inside = rank % ranks.inside / group.inside_stride % group.mesh.inside;
  const int across = rank / ranks.inside / group.across_stride % group.mesh.across;
  return place_at(group, inside, across);
}

}  // namespace spillway
