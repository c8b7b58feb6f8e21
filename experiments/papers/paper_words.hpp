// The words in which a paper's comparison is told, on a terminal and in docs/accuracy.md.
#pragma once

#include <string>

#include "experiments/papers/paper_run.hpp"

namespace spillway {

std::string percent_text(double fraction);  // "+1.4 %"
std::string share_text(double fraction);    // "1.4 %"
// Three significant digits or more.
std::string number_text(double value);

std::string published_text(const PublishedValue& value);
std::string simulated_text(const PaperPoint& point);
// "-3.7 %", "as published", "not as published".
std::string verdict_text(const PaperPoint& point);
// "-3.7 %" of the closed form, or nothing.
std::string closed_form_text(const PaperPoint& point);
// What the point counts as: "prediction", "fitted", "fitted: 93 % of it", "the same run as ...",
// "apart"; "memory" where there is no number.
std::string role_text(const PaperPoint& point);
// "host: 3.1 % left", "host: 12.0 % lacking (4.60 GB)"
std::string margin_words(const Paper& paper, const PaperPoint& point);
// "11 of 12 verdicts on memory are as published; of 3 that no constant of memory has seen 2 are".
std::string verdicts_text(const PaperResult& result);
// Of each system with predictions, whether the simulator or the closed form is nearer.
std::string nearer_text(const PaperResult& result);

std::string experiment_heading(const PaperExperiment& experiment);
// "zero-infinity in deepspeed, at 32 deepspeed:host.sync=2ms": policy and framework of a system,
// and values of the axis with settings of their own; `quote` stands around each.
std::string priced_as(const PaperExperiment& experiment, const SystemResult& system,
                      const char* quote);
std::string order_text(const Ordering& ordering);
const char* overlap_text(Overlap overlap);
std::string saturation_text(const Saturation& saturation);
std::string ratio_heading(const PaperRatio& ratio);
// "1.40 to 3.80 over 7 assumptions with which both use the drives"
std::string range_text(const std::vector<RatioRow>& rows);

// "8 continuous constants and 4 choices for 25 points and 26 verdicts on memory"
std::string freedom_text(const PaperResult& result);
// Verdicts as published, of those known, and how many hang on less than 2 % of a memory.
std::string fits_text(const SystemResult& system);
// The errors of a system whose experiment is apart, as if it counted, whatever fitted constants say
// of its points.
SystemErrors errors_apart(const SystemResult& system);

}  // namespace spillway
