// Traces of PyTorch, as JSON; after a zero byte, a mapping file. Without one, a mapping that takes
// everything.
#include "traces/kineto.hpp"

#include <algorithm>

#include "experiments/validate/kineto_import.hpp"
#include "experiments/validate/kineto_mapping.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

namespace {

const std::string everything =
    "[steps]\nleave_out = 0\n[[rule]]\nlane = \"gpu.compute\"\nkind = \"forward\"\n"
    "name = '.*'\n";

}  // namespace

SPILLWAY_FUZZ_TARGET(kineto) {
  static const fuzz::ScratchFolder folder;
  const std::string text = fuzz::text_of(input);
  const std::size_t zero = std::min(text.find('\0'), text.size());
  const std::string path = folder.write("in.json", input.first(zero)).string();
  KinetoMapping mapping;
  const std::string rules = zero < text.size() ? text.substr(zero + 1) : everything;
  if (!fuzz::accepted([&] { mapping = parse_kineto_mapping(rules, "mapping.toml"); })) return;
  KinetoTrace trace;
  if (!fuzz::accepted([&] { trace = read_kineto(path, mapping.args()); })) return;
  for (const KinetoEvent& event : trace.events) {
    fuzz::require(event.name < trace.texts.size() && event.category < trace.texts.size() &&
                      event.thread < trace.threads.size() && event.start_ns <= event.end_ns,
                  "an event has a name, a thread, and does not end before it starts");
  }
  KinetoImport import;
  if (!fuzz::accepted([&] { import = import_kineto(trace, mapping, path); })) return;
  std::vector<std::int64_t> ends(import.trace.lanes.size(), 0);
  for (const Span& span : import.trace.spans) {
    fuzz::require(span.start_ns >= ends.at(span.lane) && span.start_ns < span.end_ns,
                  "the spans of a lane follow each other");
    ends[span.lane] = span.end_ns;
  }
}
