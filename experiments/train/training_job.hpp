// A whole training, from what was asked for to the weights: what `spillway train` does, without the
// command line. Prints nothing.
//
//   TrainingJob job(request);          settles what it goes on from, device, plan, the run's folder
//   job.open();                        takes memory, makes the store: from here on it can train
//   job.train(report, committed);      the steps, up to the last one or a requested stop
//   job.export_weights();
//   job.finish();                      the trace, and in run.json how it ended
//
// One thread calls it; request_stop() may come from any.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "exec/io/io_choice.hpp"
#include "exec/ranks/rank_gpus.hpp"
#include "exec/ranks/rank_team.hpp"
#include "exec/run/export_lock.hpp"
#include "exec/run/kept_checkpoints.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/run/training.hpp"
#include "experiments/train/measured_rates.hpp"
#include "experiments/train/prediction_check.hpp"
#include "experiments/train/train_device.hpp"
#include "experiments/train/train_plan.hpp"
#include "experiments/train/train_settings.hpp"
#include "experiments/train/train_weights.hpp"
#include "experiments/train/training_data.hpp"
#include "experiments/train/training_guards.hpp"
#include "experiments/train/training_outlook.hpp"
#include "experiments/train/training_samples.hpp"

namespace spillway {

struct TrainRequest {
  GivenSettings settings;  // what is not given is as it was where a run is resumed, or chosen
  std::string run;         // its folder; empty: a new one in runs/
  bool resume = false;     // go on with that run from its last commit, bit for bit
  bool take_over = false;  // with resume: also where another folder or computer claims the state
  bool retune_matmul = false;  // with resume: the GPU's matrix products are tuned anew
  // Where the first steps do not hold the prediction, stops, so that the run goes on with a plan
  // made anew: next().
  bool retune = false;
  // Of a run that goes on so: the machine as it was seen, and the policy whose numbers are kept.
  struct Retuned {
    Machine machine;
    std::string policy;
  };
  std::optional<Retuned> retuned;
  bool overwrite = false;     // replace another unfinished training in the SSD directories
  bool remove_store = false;  // remove the optimizer state once all steps are done
  std::string trace;          // where to write it; empty: in the run's folder
  IoChoice io = usual_io();   // of the store
  // Settles everything and leaves nothing behind: look_ahead() in place of open().
  bool dry_run = false;
  // One of several ranks, each of which has a job; null: one process trains alone. It outlives the
  // job. Rank 0 has the folder and tells of the training; the others take from it what it has
  // settled on.
  RankTeam* team = nullptr;
  double rank_timeout = 10;  // seconds: of who makes the team
};

// What a training tells while it trains; each may be empty.
struct TrainReports {
  std::function<void(const StepResult&)> step;
  std::function<void(std::int64_t)> committed;  // the number of steps that are durable
  std::function<void(const EvaluationResult&)> evaluated;
  std::function<void(const Best&)> best;  // whose weights are written
  std::function<void(std::int64_t step, const std::vector<TrainingSample>&)> sampled;
};

// A step whose loss was far above those before it: its batch is left out from now on.
struct LossSpike {
  std::int64_t step = 0, batch = 0;
  double loss = 0, average = 0;
};

// What a training tells while it is prepared; each may be empty.
struct TrainListener {
  // What it does now; may throw, which ends it. Files are there to be removed while `preparing`.
  enum class Stage { preparing, planning };
  std::function<void(Stage)> enter;
  std::function<void(const std::string&)> doing;  // what may take long
  std::function<bool()> stop;  // asked while data is prepared: where it says so, `enter` throws
  std::function<void(const Message&)> note;                             // what people should know
  std::function<void(std::uint64_t done, std::uint64_t all)> checking;  // a copy of a run
  std::function<void(std::uint64_t done, std::uint64_t all)> reading;   // the weights; may throw
  // What the end that was asked for waits for; on any thread.
  std::function<void(const std::string&)> waiting;
  CalibrationProgress measuring;  // this machine
};

struct TrainingRecord;

class TrainingJob {
 public:
  // Throws InputError, FitError, MachineError; the folder of a new run is then gone again.
  explicit TrainingJob(TrainRequest request, TrainListener listener = {});
  ~TrainingJob();

  // What was given, with what a resumed run adds to it.
  const TrainSettings& settings() const { return settings_; }
  const TrainPlan& plan() const { return plan_; }
  const RunFolder& folder() const { return *folder_; }
  const MeasuredRates& rates() const { return *rates_; }
  const IoChoice& io() const { return request_.io; }
  const DeviceChoice& device() const { return device_; }
  const TrainingData& data() const { return data_; }
  const Evaluations& evaluations() const { return options_.evaluations; }
  // The weights that it begins with, once open; none where they are drawn from the seed, or those
  // of a commit.
  struct InitialState {
    std::filesystem::path folder;
    std::uint64_t hash = 0, bytes = 0;  // as Checkpoint says
    std::string text;
  };
  const std::optional<InitialState>& initial_state() const { return initial_; }
  // Whether the device was left to the program.
  bool chose_device() const { return chose_device_; }
  // Whether it has the run's folder: it is alone, or rank 0.
  bool leads() const { return request_.team == nullptr || request_.team->leads(); }

  // Of a dry run: what it comes to. Throws as open() does, except for what only making the store,
  // taking memory and asking the device can tell.
  // Without `here`, drives and the run's file system need no room: it is for another computer.
  TrainingOutlook look_ahead(bool here = true);
  // Throws as Training does, and where weights or trace could not be written.
  void open();
  Training& training() { return *training_; }
  const Training& training() const { return *training_; }

  // From here on the folder stays, and knows where the store is.
  void begin();
  // As Training::run(). Where many steps in a row are skipped, or many batches left out, ends with
  // a MachineError. Where it has met a spike(), nothing of that step is committed, and what is
  // next() goes on from the last commit.
  TrainingResult train(const TrainReports& reports);
  void request_stop() {
    stop_requested_ = true;
    training_->request_stop();
  }
  std::int64_t skipped_steps() const { return skipped_steps_; }
  // Checkpoints written, or not, since the last call.
  std::vector<KeptStep> kept_news();
  // Where the time of a step was predicted: whether that was right. Known after the first few
  // steps; what each lane took, once the first run of the schedule has been recorded.
  const std::optional<PredictionCheck>& prediction_check() const { return prediction_check_; }
  // The last steps were not done: a stop was requested.
  bool stopped() const { return steps_done_ < settings_.steps && !ended_early_; }
  // Evaluations did not get better any more.
  bool ended_early() const { return ended_early_; }
  const EvaluationWatch& evaluation_watch() const { return evaluation_watch_; }
  // Then it is to go on at once by next().
  const std::optional<LossSpike>& spike() const { return spike_; }
  // Of the best weights; there from the first that was kept on.
  std::filesystem::path best_path() const;
  static constexpr const char* best_folder = "best";

  // Unless it was asked not to. First of all that follows training: nothing can lose them then.
  void export_weights();
  // The file that they are written to, in the run's folder, or its index where they are several.
  std::filesystem::path weights_path() const;
  const FilePlace& trace_place() const { return *trace_place_; }
  // The store stays, so that the run can go on, unless it is not wanted any more.
  void finish();
  // Whether it has stopped to be planned anew.
  bool retunes() const { return retunes_ && !stop_requested_ && stopped(); }
  // What goes on with the run then, once this job is gone.
  TrainRequest next() const;

 private:
  const char* weights_file() const;
  void remove_weights();
  void write_model_files_to(const Directory& to) const;
  void write_best();
  void take_best();
  template <class Take>
  void for_events_before(std::int64_t first_step, const Take& take) const;
  void adopt_left_out(std::int64_t first_step);
  void look_back();
  void check_step(const StepResult& step, std::int64_t& skipped_in_a_row);
  std::vector<std::string> left_out_texts() const;
  bool take_evaluation(const EvaluationResult& result, const TrainReports& reports);
  void open_samples(Problem& problem);
  std::optional<ResumePoint> resume();
  void settle();
  std::string hash_of_weights() const;
  void fill_options(std::optional<ResumePoint> point, DriveFolders drives);
  void take_folder();
  void begin_folder();
  void remove_previous_stores();
  // Among ranks (training_job_ranks.cpp).
  void take_place_among_ranks();
  void connect_ranks();
  void connect_gpus();
  std::uint64_t free_gpu_bytes() const;
  std::optional<ResumePoint> share_resume(std::optional<ResumePoint> point);
  std::optional<ResumePoint> agree_on_commit(ResumePoint first);
  void go_on_with_other_ranks(ResumePoint& point, const TrainingRecord& record, std::int64_t ranks);
  void say_whether_sums_change() const;
  void share_plan(Problem problem);
  std::vector<std::filesystem::path> share_drives(std::vector<std::filesystem::path> drives);
  bool as_first(bool own);
  void refuse_spike_guard() const;
  void gather_traces();
  void open_data(const Problem& problem);
  bool may_overwrite(std::int64_t committed);
  void say_what_waits();
  void check_prediction(double step_seconds);
  void look_at_lanes();
  std::vector<KernelTime> take_references() const;

  TrainRequest request_;
  TrainListener listener_;
  GivenSettings given_;                  // now and, where a run is resumed, before
  GivenSettings resumed_;                // what settings_ are of then
  std::optional<Workload> sums_before_;  // of another number of ranks
  RunIdentity run_;                      // also of ranks that have no folder
  TrainSettings settings_;
  std::optional<RunFolder> folder_;
  DeviceChoice device_;
  bool chose_device_ = false;
  TrainPlan plan_;
  std::shared_ptr<MeasuredRates> rates_ = std::make_shared<MeasuredRates>();
  InitialWeights weights_;
  std::string frozen_from_;  // of a resumed run: the model that was named now, for what is frozen
  std::optional<InitialState> initial_;
  TrainingData data_;
  TrainingOptions options_;
  std::optional<ExportLock> export_lock_;
  std::optional<KeptCheckpoints> kept_;
  std::unique_ptr<RankGpus> gpus_;      // null: ranks have none, or no links between them
  std::unique_ptr<Training> training_;  // whose thread for commits uses both
  std::optional<FilePlace> trace_place_;
  Trace trace_;
  std::optional<PredictionCheck> prediction_check_;
  EvaluationWatch evaluation_watch_;
  SpikeWatch spike_watch_;
  std::optional<LossSpike> spike_;
  bool ended_early_ = false;
  std::optional<TrainingSamples> samples_;
  std::int64_t skipped_steps_ = 0, steps_done_ = 0;
  std::vector<double> first_steps_;  // seconds
  bool retunes_ = false;
  std::atomic<bool> stop_requested_ = false, said_what_waits_ = false;
};

}  // namespace spillway
