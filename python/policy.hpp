// Policies whose plan() and step() are Python.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "policies/common/registry.hpp"
#include "python/core.hpp"

namespace spillway::python {

// Of an option: what its text means in Python. monostate: None, where the domain has a word for
// what is left open.
using OptionValue = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

// A domain (policies/movement/domains.hpp) whose values Python has, too.
struct OptionDomain {
  TextDomain texts;
  std::function<bool(const std::string&, OptionValue&)> read;
};

// What a class declares, read once.
struct DeclaredPolicy {
  std::string name, paper, idea;
  struct DeclaredOption {
    PolicyOption about;
    OptionDomain domain;
  };
  std::vector<DeclaredOption> options;
  // Which methods the class has of its own.
  bool has_step = false, has_check = false, has_placements = false;
  // The class. The package keeps it for as long as the interpreter lives.
  PyObject* type = nullptr;
};

// Makes objects of the class; takes the interpreter's lock by itself.
PolicyFactory factory_of(std::shared_ptr<const DeclaredPolicy> declared);

// "number", "whole", "choice", "on_off", "elements" or "text"; `open`: also the word auto. Throws
// InputError for what is none.
OptionDomain option_domain(const std::string& kind, double least, double most,
                           const std::vector<std::string>& words, bool open);

}  // namespace spillway::python
