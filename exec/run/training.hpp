// Training from start to end: everything that is needed is taken before the first step, then the
// schedule is run again and again until all steps are done, or a stop is requested.
//
// With durability on, finished steps are committed to the store beside training
// (exec/store/committer.hpp), and a later training goes on from the last commit, bit for bit, under
// any policy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/new_file.hpp"
#include "exec/data/batches.hpp"
#include "exec/data/checkpoint.hpp"
#include "exec/data/model_writer.hpp"
#include "exec/run/device.hpp"
#include "exec/run/executor.hpp"
#include "exec/run/frozen_origin.hpp"
#include "exec/run/host_place.hpp"
#include "exec/run/model_access.hpp"
#include "exec/run/training_record.hpp"
#include "exec/store/committer.hpp"
#include "exec/store/training_store.hpp"
#include "exec/store/version_gate.hpp"
#include "policies/common/training_schedules.hpp"
#include "policies/workload/durability.hpp"
#include "traces/trace.hpp"

namespace spillway {

class RankGpus;
class RankTeam;
struct TrainingStart;

// Losses of text that is not trained on, at pauses of the training (TrainingSchedules).
struct Evaluations {
  std::shared_ptr<const Batches> batches;  // null: nothing is evaluated
  std::int64_t count = 0;                  // of them, from the first on: an evaluation
  std::int64_t every = 0;                  // steps, as Pauses says

  Pauses pauses() const { return {batches != nullptr, every}; }
};

struct EvaluationResult {
  std::int64_t step = 0;    // steps trained before
  double loss = 0;          // mean over the tokens that count
  std::int64_t tokens = 0;  // these
  double seconds = 0;
};

struct TrainingOptions {
  // machine.gpu.memory and machine.host.memory are the limits to keep. With frozen_in_place, which
  // FrozenFiles::why_not() has to allow, frozen weights that rest in the ssd tier are read from the
  // files of `weights`; else they are copied to the store at the start.
  Problem problem;
  std::string policy;
  // A policy that is not built in, instead of `policy`: a fresh object each time it is called.
  std::function<std::unique_ptr<Policy>()> make_policy;
  std::int64_t steps = 100;
  Evaluations evaluations = {};
  Pauses samples = {};  // when Training::on_sample() is called
  std::uint64_t seed = 1;
  std::vector<std::filesystem::path> data;
  bool binary_data = false;  // files of any kind are data, not only text
  // Of `batches`: how they were made of their tokens, in words, for the record.
  std::string data_rules;
  std::shared_ptr<const Batches> batches;    // null: the text that `data` names, a token per byte
  std::vector<std::int64_t> left_out = {};   // of the batches, ascending: not trained on
  std::vector<std::filesystem::path> ssd;    // directories on the drives
  std::vector<std::uint32_t> ssd_sets = {};  // of each set of drives how many; empty: one set
  OptimizerSettings optimizer;
  int threads = 1;  // of matrix products, and as many of the optimizer: changes time, no number
  Durability durability;               // off: nothing to resume from
  std::int64_t also_commit_every = 0;  // steps, beside the interval; 0: no others
  MayOverwrite may_overwrite;          // what was committed before; empty: always
  // Where it is known: what the default interval between commits goes by. It changes no number.
  double predicted_step_seconds = 0;
  // What it starts from; null: values drawn from the seed. A training that goes on from a commit of
  // at least one step needs none, but for what is frozen.
  std::shared_ptr<Checkpoint> weights;
  std::shared_ptr<Checkpoint> adapter;  // of its adapters, where it has any; null: initial values
  // What was known before of frozen `weights`: of files that have not changed the hash is taken
  // from it.
  std::optional<WeightsSeal> seal;
  // Goes on from here: what decides the numbers must be as it was. `steps` counts from the very
  // first step.
  std::optional<ResumePoint> resume;
  // Whose the store is; nothing: that of the training that is resumed, or of one without a folder.
  std::optional<RunIdentity> run;
  // A resumed training may have all its steps behind it: then only its weights are wanted.
  bool may_be_done = false;
  bool overwrite = false;   // replace another committed training that lies in the directories
  bool keep_store = false;  // also once all steps are done, so that --steps can be raised later
  int steps_per_run = 0;    // of the schedule that is run again and again; 0: chosen
  std::uint64_t stripe_bytes = SsdStoreOptions{}.stripe_bytes;  // over the directories of `ssd`
  // Makes the device for the problem of this process' schedule, with arenas of (at least) these
  // sizes for the gpu and host tiers; empty: the CPU.
  std::function<std::unique_ptr<Device>(const Problem& problem, std::uint64_t gpu_bytes,
                                        std::uint64_t host_bytes)>
      make_device;
  HostPlace place;  // of host memory and of all threads that training starts
  // Whose arithmetic that device has, for the record: a resumed training has the same.
  std::string backend = TrainingRecord::cpu_backend;
  // Of the backend cuda:
  std::string attention = TrainingRecord::usual_attention;
  std::string gelu_backward = TrainingRecord::usual_gelu_backward;
  bool tunes_products = false;
  bool retunes_products = false;  // a resumed training need not have it as it was
  // Makes the rings of all I/O: changes time, neither a number nor what is on the drives.
  RingFactory make_ring = make_usual_ring;
  // Memory taken beyond the planned peaks of the gpu and host tiers, which nothing may touch: for
  // tests.
  std::uint64_t guard_bytes = 0;
  // Rates of another machine to keep; what it does not give is as fast as this machine.
  ThrottleRates throttle = {};
  // Of several ranks, each with a training of its own, whose problem says which one it is; null:
  // one rank. Outlives the training. Each has directories of its own in `ssd`, and a resume point
  // of the same version; a step is committed once all of them have committed it.
  RankTeam* team = nullptr;
  RankGpus* gpus = nullptr;  // links between the ranks' GPUs; null: none. Outlives the training
};

// Of the schedules that a training with these options runs. `first`: the step that it begins with.
TrainingCourse course_of(const TrainingOptions& options, std::int64_t first);

struct TrainingResult {
  std::int64_t steps = 0;                 // done in all, by this run and those before it
  double first_loss = 0, final_loss = 0;  // of this run; 0 where it had no steps left
  std::uint64_t weights_hash = 0;
};

class Training {
 public:
  // Spans kept for the trace at most; what comes after is not recorded.
  static constexpr std::size_t most_spans = 200'000;

  // Builds the schedule, checks that it fits, takes memory, reserves the ssd tier, reads the data,
  // writes the initial or resumed state and commits it. Throws FitError, InputError, MachineError
  // before anything is left behind.
  explicit Training(TrainingOptions options);
  ~Training();

  const Schedule& schedule() const { return schedules_->usual(); }
  std::vector<std::string> warnings() const;
  std::string device_name() const { return device_->name(); }
  // How the host tier's memory was set up, in words; empty where there is nothing to say.
  std::string host_memory_text() const;
  std::optional<HostMemorySetup> host_memory_setup() const { return device_->host_memory_setup(); }
  const HostPlace& place() const { return options_.place; }
  const Throttle* throttle() const { return throttle_.get(); }

  // Trains. `report` is called after each step, `committed` (may be empty) with the number of steps
  // that are durable, both on this thread. `trace` may be null. A loss that is not finite ends it
  // with a MachineError that names the step.
  TrainingResult run(const std::function<void(const StepResult&)>& report, Trace* trace,
                     const std::function<void(std::int64_t)>& committed = {});

  // Called by run() after each evaluation, on its thread; the training can be exported meanwhile.
  // False: the training ends here, with the steps that it has. Where it is resumed at a step that
  // is evaluated, that is done again: with the same result.
  void on_evaluation(std::function<bool(const EvaluationResult&)> listener) {
    on_evaluation_ = std::move(listener);
  }
  const Evaluations& evaluations() const { return options_.evaluations; }
  // Called by run() at the pauses for samples, after an evaluation there, with the steps that are
  // done and the weights as they are then, which its thread may read until it returns. Once stops()
  // is true it need not come to an end: a training that goes on from there calls it again.
  using SampleListener = std::function<void(std::int64_t step, const StateValues& weights,
                                            const std::function<bool()>& stops)>;
  void on_sample(SampleListener listener) { on_sample_ = std::move(listener); }
  const TrainingSchedules& schedules() const { return *schedules_; }

  // Ends the training after the step that is running now, which is committed; from any thread.
  void request_stop() { executor_->request_stop(); }

  // The step that training starts with: 0, or where it was resumed.
  std::int64_t first_step() const { return training_store_->base_version(); }
  // The store, where there is one, and the one that was resumed from while that is still there.
  const SsdStore* store() const { return training_store_->store(); }
  const StoreLocation& store_location() const { return training_store_->location(); }
  const std::optional<StoreLocation>& previous_store() const { return training_store_->previous(); }
  // Once it is written down where the store is now: removes the files of the one before.
  void remove_previous_store() { training_store_->remove_previous(); }
  // Steps between commits; 0: nothing is committed.
  std::int64_t commit_interval() const {
    return options_.durability.on() ? gate_->points().interval : 0;
  }
  // Steps that are committed beside these; 0: none.
  std::int64_t also_commit_every() const { return gate_->points().also_every; }
  // Bytes that commits have written so far beside the schedule's own.
  std::uint64_t bytes_written_by_commits() const {
    return committer_ ? committer_->bytes_written() : 0;
  }
  // Whatever becomes of this training from here on, the files of its store stay.
  void hold_store() { keep_store(true); }
  // With keep_store: the store is removed after all, when this ends.
  void discard_store() { keep_store(false); }
  // The space of the store and what fills it.
  const StoreBytes& store_bytes() const { return store_bytes_; }
  // Bytes that each commit copies to the store because that state rests in memory.
  std::uint64_t bytes_copied_per_commit() const { return training_store_->captured_bytes(); }

  // The highest byte any task touched per tier, for comparison with the plan's peak.
  std::uint64_t highest_use(Tier tier) const { return executor_->highest_use(tier); }
  // The same, found in the arenas themselves (gpu and host tiers): one past the last byte ever
  // written; 0 where the device cannot tell.
  std::uint64_t highest_written(Tier tier) const;

  // Where what is frozen is from; nothing where all is trained.
  const std::optional<FrozenOrigin>& frozen_origin() const { return frozen_; }

  // The part of it that is read in place; null: none.
  const FrozenFiles* frozen_files() const { return frozen_files_.get(); }
  // Bytes of the ssd tier that are frozen and lie in the store, and why, in words.
  std::uint64_t frozen_bytes_in_store() const;
  const std::string& why_in_store() const { return why_in_store_; }

  // Of several ranks: rank 0 calls this, the others help_export() meanwhile.
  // Writes the trained fp32 weights in Hugging Face's layout: of the whole model, or of its
  // adapters in PEFT's where it has any. Where that fails, what was committed is kept.
  void export_model(const Directory& folder, const WeightFiles& files = {});
  void help_export();

 private:
  TrainingOptions options_;
  ModelAccess access();
  void find_frozen_files();
  StateValues initial() const;  // the state of version 0
  void keep_store(bool keep);

  bool pause();
  bool evaluate();
  bool stops_here() const;
  StateValues weights(const StateValues& trained) const;
  void for_trained(const std::function<void(const StateValues&)>& take);
  void agree(const TrainingStart& start);
  std::uint64_t weights_hash();

  std::unique_ptr<TrainingSchedules> schedules_;
  std::function<bool(const EvaluationResult&)> on_evaluation_;
  SampleListener on_sample_;
  bool ended_ = false;  // by on_evaluation_
  std::shared_ptr<const Batches> batches_;
  std::optional<FrozenOrigin> frozen_;
  std::unique_ptr<FrozenFiles> frozen_files_;
  std::string why_in_store_;
  std::unique_ptr<TrainingStore> training_store_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<VersionGate> gate_;
  std::unique_ptr<Committer> committer_;  // null: nothing is committed
  std::unique_ptr<Throttle> throttle_;    // null where nothing is throttled
  std::unique_ptr<Executor> executor_;
  StoreBytes store_bytes_;
  std::int64_t version_ = 0;  // of the state now
};

}  // namespace spillway
