// Every field of a workload, in one table: its name, which never changes, its text, its default.
// The command line, sweep files, traces, commit records and JSON all walk this table, so that a
// field added here is in each of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/message.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

struct WorkloadField {
  std::string key;     // "micro_batch": on disk, in JSON, and as the name of a setting
  std::string values;  // what it takes, e.g. "bf16 | fp32"; empty: a whole number of at least 1
  std::string usual;   // the default; empty: it depends on the model, the machine or the policy
  std::string help;    // what it is, in a line, for people
  std::string (*write)(const Workload&);
  // The inverse. Throws InputError that names the setting.
  void (*read)(Workload&, const std::string& text);
  // Else only where it is not `usual`: files from before there was the field stay valid.
  bool is_written_always = true;

  bool is_count() const { return values.empty(); }
  // For people: empty where the help says what it is unless it is given.
  std::string shown_default() const {
    return help.find("default: ") == std::string::npos ? usual : "";
  }
};

const std::vector<WorkloadField>& workload_fields();
// Null for a key that is no field of a workload.
const WorkloadField* find_workload_field(const std::string& key);

using WorkloadTexts = std::map<std::string, std::string>;  // by key; of the fields that are given

// The workload of `model` with the fields that are given. Defaults: micro-batches as large as the
// batch; sequences of all positions of the model, at most 1024 tokens; the precision `usual`; for
// the other fields the text in the table. Throws InputError for a text that its field does not
// take; Problem::validate() checks whether the fields go together.
Workload read_workload(const WorkloadTexts& given, const ModelSpec& model, Precision usual);

// Whether a field of this workload is written: to traces, records and JSON.
bool is_written(const WorkloadField& field, const Workload& workload);

// All fields that are written.
WorkloadTexts workload_texts(const Workload& workload);

const char* to_string(Precision precision);  // "bf16", "fp32"

}  // namespace spillway
