// The domain of meshes of ranks, as fields of plans and options of policies have them.
#pragma once

#include <string>
#include <vector>

#include "policies/workload/ranks.hpp"

namespace spillway {

// GPUs of a node by nodes; "open" where it is left to what the plan's field says.
struct Meshes {
  using Value = Mesh;
  std::string write(const Mesh& mesh) const { return mesh.size() > 0 ? to_string(mesh) : "open"; }
  bool read(const std::string& text, Mesh& mesh) const {
    if (text != "open") return parse_mesh(text, mesh);
    mesh = {0, 0};
    return true;
  }
  bool holds(const Mesh& mesh) const { return (mesh.inside > 0) == (mesh.across > 0); }
  std::string describe() const { return "GPUs of a node x nodes, as in 8x4, or open"; }
  std::vector<std::string> samples(int) const { return {"open", "1x1"}; }
};

// A mesh, and a word in place of "open".
struct MeshOr {
  using Value = Mesh;
  const char* word;
  std::string write(const Mesh& mesh) const { return mesh.size() > 0 ? to_string(mesh) : word; }
  bool read(const std::string& text, Mesh& mesh) const {
    if (text != word) return parse_mesh(text, mesh);
    mesh = {0, 0};
    return true;
  }
  bool holds(const Mesh& mesh) const { return (mesh.inside > 0) == (mesh.across > 0); }
  std::string describe() const {
    return std::string("GPUs of a node x nodes, as in 8x4, or ") + word;
  }
  std::vector<std::string> samples(int) const { return {word, "1x1"}; }
};

}  // namespace spillway
