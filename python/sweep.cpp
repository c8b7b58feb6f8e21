// Sweeps: many points, resumable, as `spillway sweep` does them.
#include <dlfcn.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "base/errors.hpp"
#include "experiments/sweep/sweep.hpp"
#include "python/core.hpp"

namespace spillway::python {

namespace {

// A result belongs to the code that computed it: this module's, to the byte.
std::string this_module() {
  Dl_info info{};
  std::ostringstream bytes;
  if (dladdr(reinterpret_cast<const void*>(&this_module), &info) != 0 &&
      info.dli_fname != nullptr) {
    std::ifstream file(info.dli_fname, std::ios::binary);
    bytes << file.rdbuf();
  }
  return "spillway.python " SPILLWAY_VERSION " " + hash_of(bytes.str());
}

using Progress = std::function<void(std::size_t done, std::size_t total)>;

// A sweep goes on in a folder of a sweep, or begins in one that is not there or empty.
void require_sweep_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) return;
  if (!std::filesystem::is_directory(folder, ignored))
    throw InputError(Setting{"out", folder.string()} + ": this is a file",
                     "name a folder; it is created where there is none");
  if (!std::filesystem::is_empty(folder, ignored) && !holds_journals(folder))
    throw InputError(Setting{"out", folder.string()} + ": not empty, and it holds no sweep",
                     "name a new folder, or that of an earlier sweep");
}

struct Swept {
  SweepOutcome outcome;
  std::string name;
  std::size_t points = 0, left_out = 0;
};

Swept sweep(const std::string& text, const std::string& origin, const std::string& out,
            std::optional<int> jobs, const std::optional<std::string>& shard,
            const std::optional<Progress>& progress) {
  const SweepPlan plan = plan_sweep(parse_sweep(text, origin), this_module());
  SweepRun run;
  run.folder = out;
  require_sweep_folder(run.folder);
  if (shard) run.shard = parse_shard(*shard);
  run.jobs = jobs.value_or(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  if (run.jobs < 1 || run.jobs > 4096)
    throw InputError(Setting{"jobs", std::to_string(run.jobs)} + " is not in 1 .. 4096",
                     "leave it out for one job a core");
  if (progress) run.progress = [&](const SweepProgress& now) { (*progress)(now.done, now.total); };
  SweepState state = inspect_sweep(plan, run);
  return {run_sweep(plan, run, std::move(state)), plan.file.name, plan.points.size(),
          plan.left_out};
}

}  // namespace

void bind_sweep(nb::module_& module) {
  nb::class_<Swept>(module, "Swept")
      .def_ro("name", &Swept::name)
      .def_ro("points", &Swept::points)
      .def_ro("left_out", &Swept::left_out)
      .def_prop_ro("run", [](const Swept& s) { return s.outcome.run; })
      .def_prop_ro("missing", [](const Swept& s) { return s.outcome.missing; })
      .def_prop_ro("ok", [](const Swept& s) { return s.outcome.ok; })
      .def_prop_ro("does_not_fit", [](const Swept& s) { return s.outcome.does_not_fit; })
      .def_prop_ro("invalid", [](const Swept& s) { return s.outcome.invalid; })
      .def_prop_ro("csv", [](const Swept& s) { return s.outcome.csv.string(); })
      .def_prop_ro("columns", [](const Swept& s) { return s.outcome.table.columns; })
      .def_prop_ro("rows", [](const Swept& s) { return s.outcome.table.rows; });
  module.def("sweep", &sweep, nb::arg("text"), nb::arg("origin"), nb::arg("out"),
             nb::arg("jobs") = nb::none(), nb::arg("shard") = nb::none(),
             nb::arg("progress") = nb::none(), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace spillway::python
