// Training: what `spillway train` does, with a call for every step.
#include <fmt/format.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <atomic>
#include <exception>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "experiments/train/training_job.hpp"
#include "experiments/watch/run_records.hpp"
#include "experiments/watch/training_events.hpp"
#include "python/records.hpp"

namespace spillway::python {

namespace {

using nlohmann::ordered_json;

struct StepRow {
  std::int64_t step;
  double loss, gradient_norm, seconds;
  std::uint64_t ssd_bytes_read, ssd_bytes_written;
};
constexpr std::array step_columns = {
    SPILLWAY_COLUMN(StepRow, step),           SPILLWAY_COLUMN(StepRow, loss),
    SPILLWAY_COLUMN(StepRow, gradient_norm),  SPILLWAY_COLUMN(StepRow, seconds),
    SPILLWAY_COLUMN(StepRow, ssd_bytes_read), SPILLWAY_COLUMN(StepRow, ssd_bytes_written)};

// What a training has come to.
struct Trained {
  std::vector<StepResult> steps;
  std::string run, policy, trace, weights;
  std::optional<double> predicted_step_seconds;
  std::uint64_t weights_hash = 0;
  std::int64_t first_step = 0, done = 0;
  bool stopped = false;
};

// The caller's functions, which hold the training up while they run.
struct Callbacks {
  nb::object on_step, on_note;
};

// Ends the training where a callback fails or Ctrl-C was pressed: after the step that is running
// then, which is committed. The exception is raised once everything is in its place.
class Interruption {
 public:
  template <class Call>
  void watch(TrainingJob& job, const Call& call) {
    if (failure_) return;
    const nb::gil_scoped_acquire lock;
    try {
      call();
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    } catch (...) {
      failure_ = std::current_exception();
      job.request_stop();
    }
  }
  void raise() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
};

TrainListener listener_of(const Callbacks& callbacks) {
  TrainListener listener;
  listener.note = [&callbacks](const Message& message) {
    const nb::gil_scoped_acquire lock;
    if (!callbacks.on_note.is_none()) callbacks.on_note(message.text());
  };
  // Before anything is trained, Ctrl-C ends it at once.
  listener.enter = [](TrainListener::Stage) {
    const nb::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  };
  return listener;
}

nb::dict as_dictionary(const StepResult& step) {
  nb::dict all;
  all["step"] = step.step;
  all["loss"] = step.loss;
  all["gradient_norm"] = step.gradient_norm;
  all["seconds"] = step.seconds;
  return all;
}

ordered_json end_event(const TrainingJob& job, const TrainingResult& result) {
  ordered_json end = {{"event", "end"}, {"steps", result.steps}};
  if (result.steps > job.training().first_step()) end["final_loss"] = result.final_loss;
  end["weights_hash"] = fmt::format("{:016x}", result.weights_hash);
  if (job.stopped()) end["interrupted"] = true;
  if (job.ended_early()) end["ended_early"] = true;
  return end;
}

// Trains once; returns what goes on with the run where a batch was left out or the plan is made
// anew.
std::optional<TrainRequest> train_once(const TrainRequest& request, const Callbacks& callbacks,
                                       Interruption& interruption, Trained& trained) {
  TrainingJob job(request, listener_of(callbacks));
  job.open();
  Training& training = job.training();
  RunRecords records(job.folder().directory(), training.first_step(),
                     training.commit_interval() > 0);
  records.write(start_event(job));
  job.begin();
  TrainReports reports;
  reports.step = [&](const StepResult& step) {
    records.write(step_event(step, job, {}));
    trained.steps.push_back(step);
    interruption.watch(job, [&] {
      if (!callbacks.on_step.is_none()) callbacks.on_step(as_dictionary(step));
    });
  };
  reports.committed = [&](std::int64_t step) {
    records.write({{"event", "commit"}, {"step", step}});
  };
  reports.evaluated = [&](const EvaluationResult& one) { records.write(evaluation_event(one)); };
  reports.best = [&](const Best& best) { records.write(best_event(best, job.best_path())); };
  reports.sampled = [&](std::int64_t step, const std::vector<TrainingSample>& samples) {
    for (const TrainingSample& sample : samples) records.write(sample_event(step, sample));
  };
  if (trained.run.empty()) trained.first_step = training.first_step();
  const TrainingResult result = job.train(reports);
  trained.run = job.folder().path().string();
  trained.policy = training.schedule().policy();
  trained.predicted_step_seconds = job.plan().predicted_step_seconds;
  trained.done = result.steps;
  trained.weights_hash = result.weights_hash;
  trained.trace = job.trace_place().path.string();
  trained.stopped = job.stopped();
  if (job.spike() || job.retunes()) {
    if (job.spike()) records.write(spike_event(*job.spike()));
    job.finish();
    return job.next();
  }
  job.export_weights();
  if (!job.settings().no_export) trained.weights = job.weights_path().string();
  records.write(end_event(job, result));
  job.finish();
  return {};
}

Trained train(const GivenSettings& settings, bool resume, const nb::object& on_step,
              const nb::object& on_note) {
  const Callbacks callbacks{on_step, on_note};
  const nb::gil_scoped_release others_may_work;
  const TrainSettings read = read_train_settings(settings);
  TrainRequest request;
  request.settings = settings;
  request.run = read.start.run;
  request.trace = read.start.trace;
  request.remove_store = read.start.remove_store;
  request.retune = read.start.retune;
  request.resume = resume;
  Trained trained;
  Interruption interruption;
  std::optional<TrainRequest> next = std::move(request);
  while (next) next = train_once(*next, callbacks, interruption, trained);
  interruption.raise();
  return trained;
}

nb::list settings() {
  nb::list all;
  for (const TrainSetting& setting : train_settings()) {
    nb::dict one;
    one["name"] = setting.key;
    one["default"] = setting.usual;
    one["help"] = setting.help.text();
    one["is_list"] = setting.form == SettingForm::list;
    one["is_flag"] = setting.form == SettingForm::flag;
    all.append(one);
  }
  return all;
}

nb::tuple step_records(const Trained& trained) {
  return records<StepRow>(trained.steps.size(), step_columns, [&](std::size_t i) {
    const StepResult& s = trained.steps[i];
    return StepRow{s.step,    s.loss,           s.gradient_norm,
                   s.seconds, s.ssd_bytes_read, s.ssd_bytes_written};
  });
}

}  // namespace

void bind_train(nb::module_& module) {
  nb::class_<Trained>(module, "Trained")
      .def_ro("run", &Trained::run)
      .def_ro("policy", &Trained::policy)
      .def_ro("trace", &Trained::trace)
      .def_ro("weights", &Trained::weights)
      .def_ro("predicted_step_seconds", &Trained::predicted_step_seconds)
      .def_ro("weights_hash", &Trained::weights_hash)
      .def_ro("first_step", &Trained::first_step)
      .def_ro("done", &Trained::done)
      .def_ro("stopped", &Trained::stopped)
      .def("steps", &step_records);
  module.def("train", &train, nb::arg("settings"), nb::arg("resume"), nb::arg("on_step").none(),
             nb::arg("on_note").none());
  module.def("train_settings", &settings);
}

}  // namespace spillway::python
