// What `train --dry-run` says: what the training comes to.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "experiments/train/training_job.hpp"

namespace spillway::cli {

nlohmann::ordered_json outlook_json(const TrainingJob& job, const TrainingOutlook& outlook);
std::string outlook_text(const TrainingJob& job, const TrainingOutlook& outlook);
// Of these the lines on memory: "  gpu   1.2 GB of 4.0 GB: ...".
std::string memory_text(const TrainingOutlook& outlook);

}  // namespace spillway::cli
