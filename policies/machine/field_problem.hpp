// What makes no sense in a model or machine, by key. The reader of a file adds the place. Internal
// to policies/.
#pragma once

#include <optional>
#include <string>

namespace spillway {

struct ModelSpec;
struct Machine;

struct FieldProblem {
  std::string key;
  std::string what;
  std::string hint;
};

// What is wrong with the name of a model or a machine: it is shown in tables and pictures, and
// files are named by it.
std::optional<FieldProblem> find_bad_name(const std::string& name);

// The first problem found, or nothing.
std::optional<FieldProblem> find_problem(const ModelSpec& model);
std::optional<FieldProblem> find_problem(const Machine& machine);

}  // namespace spillway
