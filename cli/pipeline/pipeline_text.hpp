// What `spillway pipeline` and `spillway wan-map` print.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/pipelines/pipeline_plan.hpp"
#include "experiments/pipelines/prefill.hpp"
#include "experiments/pipelines/wan_map.hpp"
#include "experiments/pipelines/what_if.hpp"

namespace spillway::cli {

// Of plans that differ in their order alone; the first paragraph is of all of them.
std::string text_of(const std::vector<PipelinePlan>& plans);
std::string text_of(const PipelineRequest& request, const std::string& order, const WhatIf& what_if,
                    std::size_t top);
struct PrefillLoad {
  double rate = 0;  // requests a second; 0: of a file
  PrefillResult result;
};
std::string text_of(const PrefillSettings& settings, const std::vector<PrefillLoad>& loads);
std::string text_of(const WanMapAxes& axes, const std::vector<WanMapRow>& rows);

nlohmann::ordered_json to_json(const PipelinePlan& plan);
nlohmann::ordered_json to_json(const PipelineChoice& choice);
nlohmann::ordered_json to_json(const PrefillLoad& load);
nlohmann::ordered_json to_json(const WanMapRow& row);

}  // namespace spillway::cli
