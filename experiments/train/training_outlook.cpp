#include "experiments/train/training_outlook.hpp"

#include <algorithm>

#include "exec/store/store_file.hpp"
#include "experiments/train/training_wear.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

// Whether the state that it goes on from lies where it will be.
bool goes_on_in_place(const TrainingStart& start, const TrainingOptions& options) {
  return start.before && start.before->policy == start.record.policy &&
         options.resume->location.directories == options.ssd;
}

TierOutlook fullest(const TrainingSchedules& schedules, Tier tier) {
  const std::vector<const Schedule*> all = schedules.all();
  const Schedule& most =
      **std::max_element(all.begin(), all.end(), [&](const Schedule* a, const Schedule* b) {
        return a->use(tier).peak_bytes < b->use(tier).peak_bytes;
      });
  const TierUse& use = most.use(tier);
  const Machine& machine = most.problem().machine;
  const std::uint64_t set_aside = tier == Tier::gpu    ? machine.gpu.workspaces
                                  : tier == Tier::host ? machine.host.beside
                                                       : 0;
  return {tier,      use.peak_bytes,   use.capacity_bytes,
          set_aside, most.evaluates(), parts_at_peak(most, tier)};
}

// Of a store that is made anew, in the directories where it would be.
void require_room(const TrainingStart& start, const TrainingOptions& options) {
  if (start.store_bytes.all() == 0 || goes_on_in_place(start, options)) return;
  Striping striping{options.stripe_bytes, static_cast<std::uint32_t>(options.ssd.size()), 0};
  std::uint64_t begin = 0;
  for (std::size_t set = 0; set < options.ssd_sets.size(); ++set) {
    striping.sets.push_back({begin, options.ssd_sets[set]});
    begin += start.store_bytes.on_set[set] - (set == 0 ? start.store_bytes.records : 0);
  }
  std::vector<PlannedFile> files;
  for (std::uint32_t i = 0; i < options.ssd.size(); ++i)
    files.push_back(
        {Directory(options.ssd[i]), "", striping.file_bytes(i, start.store_bytes.address_space())});
  files.front().bytes += start.store_bytes.records;
  require_free_space(files);
}

Wear wear_of(const TrainingStart& start, const TrainingOptions& options, const TrainPlan& plan) {
  const bool durable = options.durability.on();
  const Durability durability{durable ? DurabilityMode::on : DurabilityMode::off,
                              durable ? start.commit_interval : 0};
  Wear wear = wear_of(start.schedules->usual(), nullptr, {durability, options.steps - start.first});
  wear.store = start.store_bytes;
  wear.start_bytes =
      wear.stores * static_cast<double>(written_at_start(start.store_bytes, durable, start.first,
                                                         goes_on_in_place(start, options)));
  wear.first_step = start.first;
  if (durable) wear.also_every = std::min(options.also_commit_every, options.steps);
  wear.commits = commits_in(wear.first_step, *wear.steps, durability.interval, wear.also_every);
  wear.step_seconds = plan.predicted_step_seconds;
  return wear;
}

}  // namespace

TrainingOutlook outlook_of(const TrainingOptions& options, const TrainPlan& plan, bool here) {
  TrainingOutlook outlook;
  outlook.start = start_of(options);
  for (const Tier tier : memories_of(options.problem.machine))
    outlook.memory.push_back(fullest(*outlook.start.schedules, tier));
  outlook.wear = wear_of(outlook.start, options, plan);
  if (here) require_room(outlook.start, options);
  return outlook;
}

}  // namespace spillway
