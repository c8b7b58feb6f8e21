// simulate, compare, tune, fit and knee.
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/errors.hpp"
#include "experiments/plan/comparison.hpp"
#include "experiments/plan/hints.hpp"
#include "experiments/plan/in_parallel.hpp"
#include "experiments/questions/knee_json.hpp"
#include "experiments/questions/questions_json.hpp"
#include "experiments/tune/tune_json.hpp"
#include "python/result.hpp"

namespace spillway::python {

namespace {

struct ComparedResults {
  std::vector<Result> results;
  std::vector<std::pair<std::string, std::string>> refused;
  std::optional<std::size_t> fastest, auto_choice, writes_less;
};

void require_steps(int steps) {
  if (steps < 1 || steps > 1000)
    throw InputError(Setting{"steps", std::to_string(steps)} + " is not in 1 .. 1000",
                     "leave it out: a few steps show the steady state");
}

WholeRun whole_run(const std::string& durability, const Problem& problem,
                   std::optional<std::int64_t> steps = {}) {
  return {durability_of(durability, problem.framework), steps};
}

[[noreturn]] void fail(const Candidates& candidates, const ProblemRequest& request,
                       const Problem& problem, const std::string& policy, const WholeRun& run,
                       int steps) {
  FitQuestion question;
  question.problem = problem;
  question.choose_micro_batch = request.chooses_micro_batch();
  question.policies = policies_named(policy);
  question.durability = run.durability;
  question.steps = steps;
  question.settle = request.settle(problem);
  fail_to_fit(candidates, question);
}

Result simulate(const ProblemRequest& request, const std::string& policy, int steps,
                const std::string& durability) {
  require_steps(steps);
  const Problem problem = request.problem();
  const WholeRun run = whole_run(durability, problem);
  Candidates candidates = evaluate_as_asked(request, problem, {policy}, run, steps);
  if (candidates.chosen) return {std::move(candidates.all[*candidates.chosen])};
  fail(candidates, request, problem, policy, run, steps);
}

ComparedResults compare(const ProblemRequest& request, const std::vector<std::string>& policies,
                        int steps, const std::string& durability,
                        std::optional<std::int64_t> run_steps, bool best,
                        const std::string& recompute) {
  require_steps(steps);
  const Problem problem = request.problem();
  CompareRequest asked;
  asked.policies = policies_to_compare(policies);
  asked.choose_micro_batch = request.chooses_micro_batch();
  asked.at_best = best;
  if (!recompute.empty()) asked.recomputation = parse_recomputation(recompute);
  asked.run = whole_run(durability, problem, run_steps);
  asked.steps = steps;
  asked.evaluate_one = request.evaluation(problem);
  asked.settle = request.settle(problem);
  asked.threads = std::max(1u, std::thread::hardware_concurrency());
  Comparison found = compare_policies(problem, asked);
  ComparedResults compared;
  for (Candidate& one : found.candidates.all) compared.results.push_back({std::move(one)});
  for (const Refusal& one : found.candidates.refused)
    compared.refused.emplace_back(one.policy, one.reason);
  compared.fastest = found.fastest;
  compared.auto_choice = found.auto_choice;
  compared.writes_less = found.candidates.writes_less;
  return compared;
}

using TuneProgress = std::function<void(std::uint64_t explored, std::uint64_t effort)>;

// The JSON object of `tune --json`, and its best plan; nothing fits: None.
nb::tuple tune_problem(const ProblemRequest& request, std::uint64_t effort,
                       std::optional<double> budget_seconds, std::uint64_t seed,
                       std::optional<unsigned> threads, const std::string& durability,
                       const std::optional<TuneProgress>& progress) {
  nlohmann::ordered_json json;
  std::optional<Result> best;
  {
    const nb::gil_scoped_release others_may_work;
    const Problem problem = request.problem();
    TuneOptions options;
    options.choose_micro_batch = request.chooses_micro_batch();
    options.effort = effort;
    options.budget_seconds = budget_seconds;
    options.seed = seed;
    options.threads = threads.value_or(std::max(1u, std::thread::hardware_concurrency()));
    options.run = whole_run(durability, problem);
    options.settle = request.settle(problem);
    if (progress)
      options.progress = [&](const SearchProgress& now) { (*progress)(now.explored, now.effort); };
    TuneResult result = tune(problem, options);
    json = to_json(result, options);
    if (result.best) best = Result{{std::move(result.best->evaluation), result.best->wear}};
  }
  return nb::make_tuple(to_python(json), best ? nb::cast(std::move(*best)) : nb::none());
}

using FitTold = std::function<void(std::size_t done, std::size_t all)>;

// The JSON object of `fit --json`.
nb::object fit(const ProblemRequest& asked, const std::vector<std::string>& policies,
               const std::vector<std::string>& largest, const std::vector<std::string>& least,
               const std::string& durability, const std::optional<FitTold>& progress) {
  nlohmann::ordered_json json;
  {
    const nb::gil_scoped_release others_may_work;
    const FitColumns columns = fit_columns(largest, least);
    const ProblemRequest request = with_batch(asked, columns);
    const Problem problem = request.problem();
    PlansAsked plans;
    plans.policies = policies_to_fit(policies, problem.workload);
    plans.choose_micro_batch = request.chooses_micro_batch();
    plans.run = [run = whole_run(durability, problem)](const Workload&) { return run; };
    plans.evaluate_one = request.evaluation(problem);
    plans.settle = request.settle(problem);
    json = to_json(fit_table(request, plans, columns, usual_threads(), [&](const FitProgress& now) {
      if (progress) (*progress)(now.done, now.all);
    }));
  }
  return to_python(json);
}

// The JSON object of `knee --json` without the plan, and the plan of the machine as it is.
nb::tuple knee(const ProblemRequest& request, const std::string& policy,
               const std::vector<std::string>& resources, double gain,
               const std::string& durability, const std::optional<FitTold>& progress) {
  nlohmann::ordered_json json;
  std::optional<Result> now;
  {
    const nb::gil_scoped_release others_may_work;
    if (!(gain > 0 && gain <= 1))
      throw InputError(Setting{"gain", std::to_string(gain)} + ": not a share between 0 and 1",
                       "example: " + Setting{"gain", "0.03"});
    const std::vector<KneeRange> ranges = parse_knee_ranges(resources);
    const Problem problem = request.problem();
    const WholeRun run = whole_run(durability, problem);
    Candidates found = evaluate_as_asked(request, problem, {policy}, run, default_steps);
    if (!found.chosen) fail(found, request, problem, policy, run, default_steps);
    KneeOptions how = knee_options(request, problem, policy, run);
    how.threshold = gain;
    if (progress) how.progress = *progress;
    Candidate& asked = found.all[*found.chosen];
    Knees knees = find_knees(request, asked, ranges, how);
    json = to_json(knees);
    now = Result{std::move(knees.faster_now ? *knees.faster_now : asked)};
  }
  return nb::make_tuple(to_python(json), nb::cast(std::move(*now)));
}

}  // namespace

Candidates evaluate_as_asked(const ProblemRequest& request, const Problem& problem,
                             const std::vector<std::string>& policies, const WholeRun& run,
                             int steps) {
  return evaluate_candidates(problem, request.chooses_micro_batch(), policies_named(policies), run,
                             steps, request.evaluation(problem), request.settle(problem));
}

void bind_questions(nb::module_& module) {
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  module.attr("default_steps") = default_steps;
  module.attr("default_effort") = default_effort;
  nb::class_<ComparedResults>(module, "Comparison")
      .def_ro("results", &ComparedResults::results)
      .def_ro("refused", &ComparedResults::refused)
      .def_ro("fastest", &ComparedResults::fastest)
      .def_ro("auto_choice", &ComparedResults::auto_choice)
      .def_ro("writes_less", &ComparedResults::writes_less);
  module.def("simulate", &simulate, nb::arg("request"), nb::arg("policy"),
             nb::arg("steps") = default_steps, nb::arg("durability") = "", released);
  module.def("compare", &compare, nb::arg("request"), nb::arg("policies"),
             nb::arg("steps") = default_steps, nb::arg("durability") = "",
             nb::arg("run_steps") = nb::none(), nb::arg("best") = false, nb::arg("recompute") = "",
             released);
  module.def("tune", &tune_problem, nb::arg("request"), nb::arg("effort") = default_effort,
             nb::arg("budget_seconds") = nb::none(), nb::arg("seed") = 0,
             nb::arg("threads") = nb::none(), nb::arg("durability") = "",
             nb::arg("progress") = nb::none());
  module.def("fit", &fit, nb::arg("request"), nb::arg("policies"), nb::arg("largest"),
             nb::arg("least"), nb::arg("durability") = "", nb::arg("progress") = nb::none());
  module.def("knee", &knee, nb::arg("request"), nb::arg("policy"), nb::arg("resources"),
             nb::arg("gain"), nb::arg("durability") = "", nb::arg("progress") = nb::none());
}

}  // namespace spillway::python
