// What a training can be told, in one table: each setting by its name, which never changes, as
// text. The command line and config files (train_config.hpp) give these texts, run.json holds them;
// the options of `train`, their help and the comments of a config file are made of the table.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/message.hpp"
#include "exec/run/executor.hpp"
#include "experiments/plan/problem_request.hpp"
#include "experiments/train/training_data.hpp"
#include "experiments/train/training_samples.hpp"

namespace spillway {

// What concerns one start of a training: its run does not keep it.
struct StartSettings {
  std::string run, trace, io = "auto";
  bool remove_store = false, retune = false;
  double rank_timeout = 10;  // seconds
};

struct TrainSettings {
  ProblemRequest problem;
  std::string policy = "auto";
  DataSettings data;  // no data: Spillway's own text
  // Directories of each set of drives, separated by commas; none at all: inside the run's folder.
  std::array<std::string, most_drive_sets> ssd;
  std::string device = "auto", durability, throttle;
  std::optional<int> gpu;
  std::int64_t steps = 100;
  // Of the data that is held out: steps between evaluations (0: before the first step and after the
  // last), and batches of one at most (0: all there are).
  std::int64_t evaluate_every = 0, evaluate_batches = 0;
  double epochs = 0;        // instead of steps: passes over the data
  std::int64_t tokens = 0;  // instead of steps: inputs, padding included
  std::uint64_t seed = 1;
  int threads = 1;
  OptimizerSettings optimizer;
  double warmup_share = 0;  // of all steps; 0: optimizer.warmup_steps says how long
  std::string tune_matmul = "on", gelu_backward = "auto";
  bool random_weights =
      false;  // begins with values drawn from the seed, whatever the model's folder has
  std::string weights_hash;  // that the weights of the model's folder must have; empty: any
  // Where frozen weights that rest on the ssd are read from: "checkpoint", in place where that can
  // be, or "store".
  std::string frozen_weights = "checkpoint";
  bool no_export = false;  // the weights are not written at the end
  // Of every keep_every-th step the weights of the last `keep` are kept; 0: of none.
  std::int64_t keep = 0, keep_every = 500;
  bool keep_best = false;  // the weights of the best evaluation are kept
  // Evaluations in a row that may be no better by more than the margin than the best before them;
  // 0: any number.
  std::int64_t early_stop = 0;
  double early_stop_margin = 0;
  // Standard deviations above the average of the last losses from which on a batch is left out; 0:
  // none is (SpikeWatch).
  double spike_guard = 0;
  std::vector<std::int64_t> left_out;  // batches that are not trained on, ascending
  SampleSettings samples;
  StartSettings start;
};

// By name, as given; a setting has several texts where it takes a list.
using GivenSettings = std::map<std::string, std::vector<std::string>>;

enum class SettingForm : std::uint8_t {
  text,
  mixed,  // a text, many of which are whole numbers
  parts,  // a text of several, separated by commas
  number,
  whole,
  large,  // a whole number up to 2^64 - 1
  flag,
  list  // several texts
};

// What the settings of a group have in common, in the order in which people are shown them.
enum class SettingGroup : std::uint8_t { model, data, length, optimizer, plan, output, samples };
const char* title_of(SettingGroup group);

struct TrainSetting {
  std::string key;
  SettingGroup group = SettingGroup::model;
  SettingForm form = SettingForm::text;
  std::vector<std::string> choices;  // of a text; empty: others are taken, too
  std::string usual;                 // the default; empty: none, or `help` says it
  Message help;                      // what it is, in a line
  bool kept = true;                  // by the run, for a later resume
  // Throws InputError that names the setting. `texts` has at least one.
  std::function<void(TrainSettings&, const std::vector<std::string>& texts)> read;
};

// In groups; the fields of the workload (policies/workload/workload_fields.hpp) are among them.
const std::vector<TrainSetting>& train_settings();
// Null where there is none of this name.
const TrainSetting* find_train_setting(const std::string& key);

// Whether a run keeps a setting of this name.
bool is_train_setting(const std::string& key);

// The schedule of learning rates, in steps: settings that are shares of a training or follow from
// its length become numbers of steps, in `settings` and in `given`, so that a longer training that
// goes on with it has the same.
void settle_learning_rate(TrainSettings& settings, GivenSettings& given);

// What is not given stays at its default. Throws InputError for an unknown name, for a text that
// its setting does not take, and for a framework, which no training has.
TrainSettings read_train_settings(const GivenSettings& given);

}  // namespace spillway
