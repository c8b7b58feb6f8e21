// One page about a trace, several traces, a run, a sweep or a testbed: HTML that stands alone.
//
// The same files give the same bytes. What the files hold is shown and never run (html.hpp).
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/report/trace_study.hpp"

namespace spillway {

struct ReportRequest {
  // A folder of `train`, `sweep` or `testbed`, or traces.
  std::vector<std::filesystem::path> inputs;
  StudyRequest study;
  std::function<void(const std::string& what)> progress = {};  // what it does now; may be empty
};

struct Report {
  std::string kind;  // "traces", "run", "sweep", "testbed"
  std::string title;
  nlohmann::ordered_json summary;  // what the page's summary shows
  std::string page;
};

// Throws InputError: there is no such file; a folder that none of these commands wrote; a sweep
// that is not finished; more than one input where not all are traces; damaged files. MachineError
// where a file cannot be read.
Report make_report(const ReportRequest& request);

}  // namespace spillway
