// run.json of a run's folder: any bytes, read, written and read again.
#include "exec/run/saved_run.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

namespace {

bool equal(const SavedRun& a, const SavedRun& b) {
  return a.id == b.id && a.former_ids == b.former_ids && a.home == b.home &&
         a.options == b.options && a.complete == b.complete && a.not_resumable == b.not_resumable &&
         a.store == b.store && a.store_of == b.store_of;
}

}  // namespace

SPILLWAY_FUZZ_TARGET(run_json) {
  const std::filesystem::path folder = "/runs/fuzzed";
  SavedRun run;
  if (!fuzz::accepted([&] { run = parse_saved_run(fuzz::text_of(input), folder, "run.json"); }))
    return;
  const std::string written = saved_run_text(run, folder);
  SavedRun again;
  fuzz::require(fuzz::accepted([&] { again = parse_saved_run(written, folder, "run.json"); }),
                "what is written is read");
  fuzz::require(saved_run_text(again, folder) == written, "a run written again is the same text");
  fuzz::require(run.id == again.id &&
                    (written.find("\xef\xbf\xbd") != std::string::npos || equal(run, again)),
                "a run read again is the same run");
}
