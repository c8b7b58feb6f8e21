// Ranks: processes that train one model together, each with a GPU and a schedule of its own.
//
// Rank r is GPU r % per_node of node r / per_node. Ranks of a node share its host memory, cores,
// links and drives; each plans with its share of them (policies/machine/rank_share.hpp).
#pragma once

#include <string>
#include <vector>

namespace spillway {

// Some GPUs of a node by some nodes.
struct Mesh {
  int inside = 1;  // GPUs of a node
  int across = 1;  // nodes
  int size() const { return inside * across; }
  bool operator==(const Mesh&) const = default;
};
std::string to_string(const Mesh& mesh);               // "8x4"
bool parse_mesh(const std::string& text, Mesh& mesh);  // whether it is of that form

// The ranks that take part in a collective, as seen from any one of them: those at the same place
// as itself but for `inside` steps of `inside_stride` GPUs and `across` steps of `across_stride`
// nodes. They have places in it, in the order of the parts that they have of a whole: where its
// first cut was among ranks of `inner`, whose places count most, then by node and GPU.
struct RankGroup {
  Mesh mesh;
  int inside_stride = 1, across_stride = 1;
  Mesh inner = {};
  int size() const { return mesh.size(); }
  bool operator==(const RankGroup&) const = default;
};

// All ranks.
using Ranks = Mesh;

// The group of a rank that is next to it: shards of `mesh`.
RankGroup shard_group(const Mesh& mesh);
// The ranks that hold the same as a rank where everything is cut into shards of `inner`, among
// those of the mesh `outer` around it: `outer` over `inner`.
RankGroup replica_group(const Mesh& outer, const Mesh& inner);
// A group whose whole is cut among ranks of `inner` first, and what each of them has among the
// others. `inner`, a mesh of the group's own steps, divides that of the group.
RankGroup cut_first(RankGroup group, const Mesh& inner);

// The ranks of `rank`'s group by their places in it; and the place of `rank`.
std::vector<int> members_of(const RankGroup& group, const Ranks& ranks, int rank);
int place_in(const RankGroup& group, const Ranks& ranks, int rank);

}  // namespace spillway
