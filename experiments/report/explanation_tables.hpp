// Why a step takes as long as it does, as tables of a page: the same figures as `simulate` prints.
#pragma once

#include <string>

#include "sim/explanation.hpp"

namespace spillway {

// What the GPU waited for, the longest first. `recorded`: of a training, where starting a task
// takes time, too.
std::string stalls_html(const Explanation& why, bool recorded);

// What the critical path is made of, the longest part first.
std::string critical_path_html(const Explanation& why, const std::string& caption);

}  // namespace spillway
