// The degrees of freedom of a paper: what was chosen with its values in view, where it stands, and
// the paper as it would be with other values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "experiments/papers/paper.hpp"

namespace spillway {

// Factors on continuous constants, by their places in Paper::constants_chosen; 1 on all others.
using Tuning = std::map<std::size_t, double>;

// Throws InputError, with the place in the paper's file, where a key is not known or a continuous
// one has no value that could be another, or where `seen` and `in` name nothing that there is.
void check_constants(const Paper& paper);
// The value in the machine file, the framework's, an experiment's settings, or the default of the
// policy: "5Gparam/s", "none".
std::string constant_value(const Paper& paper, const PaperConstant& constant);

// "21GB/s", or a plain number, times a factor; `digits` of it are significant.
std::string scaled_quantity(const std::string& text, double factor, int digits = 12);
// One such text over another of the same unit. Throws InputError where the units differ.
double quantity_ratio(const std::string& text, const std::string& over);

// What the files and settings say with the factors on it.
Machine tuned_machine(const Paper& paper, const Tuning& tuning,
                      const std::vector<std::string>& settings);
std::string tuned_framework(const Paper& paper, const Tuning& tuning, const std::string& framework);

// "NAME:a=b,c=d" in the order of keys, without those that have the value of the framework's file.
std::string without_defaults(const std::string& framework);
std::vector<std::string> tuned_settings(const Paper& paper, const Tuning& tuning,
                                        const std::string& experiment,
                                        std::vector<std::string> settings);
// Of a pipeline of stages.
std::vector<std::string> tuned_stage_settings(const Paper& paper, const Tuning& tuning,
                                              std::vector<std::string> settings);

}  // namespace spillway
