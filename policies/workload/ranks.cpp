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

std::vector<int> members_of(const RankGroup& group, const Ranks& ranks, int rank) {
  const int inside = first_step(rank % ranks.inside, group.mesh.inside, group.inside_stride);
  const int across = first_step(rank / ranks.inside, group.mesh.across, group.across_stride);
  std::vector<int> members;
  for (int node = 0; node < group.mesh.across; ++node) {
    for (int gpu = 0; gpu < group.mesh.inside; ++gpu) {
      members.push_back((across + node * group.across_stride) * ranks.inside + inside +
                        gpu * group.inside_stride);
    }
  }
  return members;
}

int place_in(const RankGroup& group, const Ranks& ranks, int rank) {
  const int inside = rank % ranks.inside / group.inside_stride % group.mesh.inside;
  const int across = rank / ranks.inside / group.across_stride % group.mesh.across;
  return across * group.mesh.inside + inside;
}

}  // namespace spillway
