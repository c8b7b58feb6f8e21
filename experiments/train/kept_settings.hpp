// What a run keeps of the settings that it was given, for a later resume.
#pragma once

#include "exec/run/run_folder.hpp"
#include "experiments/train/train_settings.hpp"

namespace spillway {

// With absolute paths: a run may be resumed from another folder.
GivenSettings kept(GivenSettings given);

// What is given `now`, and what was given before where it says nothing else; of how long to train
// only one is taken.
GivenSettings added_to(GivenSettings now, GivenSettings before);

// What run.json holds: the settings as they were settled and, by name and suffix, those texts that
// were given otherwise (`warmup`: "3%" as given, "30" as settled), also `before`.
inline constexpr const char* as_given_suffix = ".as_given";
GivenSettings to_save(GivenSettings settled, const GivenSettings& given,
                      const GivenSettings& before);

// Throws InputError where more than one of steps, epochs and tokens is given.
void require_one_length(const GivenSettings& given);

// Throws InputError naming the first setting by which data becomes other documents or sequences
// `now` than `before`, where the run began. `data_rules`: of the run's record
// (TrainingData::rules). Paths of a template are not compared: files may have been moved.
void require_same_reading(const GivenSettings& now, const GivenSettings& before,
                          const std::string& data_rules);

// Of what run.json holds, which somebody else may have written, the settings that a run keeps.
GivenSettings settings_in(const SavedRun& saved);

}  // namespace spillway
