#include "cli/text/fit_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/units.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/plan_text.hpp"
#include "policies/cost/extrapolation.hpp"

namespace spillway::cli {

namespace {

using Cells = std::vector<std::string>;

constexpr std::array tiers = {Tier::gpu, Tier::host, Tier::ssd};

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// "gpu+host"
std::string names_of(const std::vector<Tier>& full) {
  std::vector<std::string> names;
  for (const Tier tier : full) names.emplace_back(to_string(tier));
  return fmt::format("{}", fmt::join(names, "+"));
}

std::string parameters_text(std::int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  return count >= 1e9 ? fmt::format("{:.1f} billion", count / 1e9)
                      : fmt::format("{:.2f} million", count / 1e6);
}

// Columns of the table that belong together, under one title. The first cells are their heads.
struct Group {
  std::string title;
  std::vector<Cells> columns;  // each with its head and a cell for every row
};

class FitText {
 public:
  explicit FitText(const FitTable& table) : table_(table) {}

  std::string text() {
    const Problem& problem = table_.problem;
    std::string text = fmt::format(
        "what fits of {} on {}, each policy with its settings as named, what it leaves open "
        "settled so that it fits\n{} of {} tokens{}; {}\n",
        problem.model.name, problem.machine.name,
        asks_for_batches_only() ? "sequences" : fmt::format("{} sequences", problem.workload.batch),
        problem.workload.sequence, asks_for_batches_only() ? "" : " a step",
        assumptions_text(problem, 0));
    if (std::string ranks = ranks_text(problem); !ranks.empty()) {
      // Where the batch is the answer there is none of each rank.
      if (asks_for_batches_only()) ranks.resize(std::min(ranks.size(), ranks.find(':')));
      text += ranks + "\n";
    }
    if (problem.machine.ssd.extrapolated())
      text += extrapolation_text({drives_beyond_rows(problem.machine.ssd)});
    const std::vector<Group> groups = all_groups();
    text += table_text(groups);
    for (const FitRow& row : table_.rows) {
      if (!row.refused.empty())
        text += fmt::format("{} cannot run this: {}\n", row.policy, row.refused);
    }
    return text + notes();
  }

 private:
  bool asks_for_batches_only() const {
    return table_.columns.batch && !table_.columns.model &&
           std::count(table_.columns.least.begin(), table_.columns.least.end(), true) == 0;
  }
  std::vector<Group> all_groups() {
    std::vector<Group> groups = {{"", {{"policy"}}}};
    for (const FitRow& row : shown()) groups.front().columns.front().push_back(row.policy);
    if (table_.columns.model) groups.push_back(model_group());
    if (table_.columns.batch) groups.push_back(batch_group());
    if (std::count(table_.columns.least.begin(), table_.columns.least.end(), true) > 0)
      groups.push_back(memory_group());
    return groups;
  }

  std::vector<FitRow> shown() const {
    std::vector<FitRow> rows = table_.rows;
    std::erase_if(rows, [](const FitRow& row) { return !row.refused.empty(); });
    return rows;
  }

  Group model_group() {
    Group group{"largest model", {{"layers"}, {"parameters"}, {"full"}, {"built in"}}};
    for (const FitRow& row : shown()) {
      const LargestModel& model = *row.model;
      const std::string more = model.cut_short ? ">= " : "";
      has_bounds_ |= model.cut_short || model.family_cut_short;
      has_full_ |= !model.full.empty() && !model.reached_end;
      has_end_ |= model.reached_end;
      std::string built_in = "none";
      if (model.of_family) built_in = model.family[*model.of_family].name;
      if (model.family_cut_short) built_in = ">= " + built_in;
      add(group, {model.plan ? fmt::format("{}{}", more, model.layers) : more + "none",
                  model.plan ? parameters_text(model.parameters) : "",
                  model.reached_end ? "nothing" : names_of(model.full), built_in});
    }
    return group;
  }

  Group batch_group() {
    Group group{"largest batch", {{"batch"}, {"micro"}, {"tokens/s"}, {"full"}}};
    for (const FitRow& row : shown()) {
      using End = LargestBatch::End;
      const LargestBatch& batch = *row.batch;
      if (!batch.plan) {
        has_bounds_ |= batch.end == End::most_tasks;
        has_full_ |= !batch.full.empty();
        add(group,
            {batch.end == End::most_tasks ? ">= none" : "none", "", "", names_of(batch.full)});
        continue;
      }
      const bool is_least = batch.end == End::most_tasks, is_most = batch.end == End::most_tried;
      has_bounds_ |= is_least;
      has_most_ |= is_most;
      has_full_ |= !batch.full.empty() && !is_most;
      add(group, {fmt::format("{}{}", is_least ? ">= " : "", batch.batch),
                  fmt::format("{}", batch.micro_batch),
                  fmt::format("{:.1f}", batch.plan->evaluation.result->tokens_per_second),
                  is_most ? "nothing" : names_of(batch.full)});
    }
    return group;
  }

  Group memory_group() {
    Group group{"least memory", {}};
    for (const Tier tier : tiers) {
      const auto t = static_cast<std::size_t>(tier);
      if (!table_.columns.least[t]) continue;
      Cells column = {to_string(tier)};
      for (const FitRow& row : shown()) column.push_back(memory_text(*row.least[t]));
      group.columns.push_back(std::move(column));
    }
    return group;
  }

  std::string memory_text(const LeastMemory& least) {
    has_bounds_ |= least.cut_short;
    const std::string full = names_of(least.full);
    if (!least.bytes) {
      has_none_ = true;
      return least.cut_short || full.empty() ? "not tried" : full + " full";
    }
    if (*least.bytes == 0) return "nothing";
    std::string text = (least.cut_short ? "<= " : "") + bytes_text(*least.bytes);
    if (!full.empty() && full != to_string(least.tier)) {
      has_other_ = true;
      text += " (" + full + ")";
    }
    has_more_ |= least.is_more_than_there_is;
    return text + (least.is_more_than_there_is ? " *" : "");
  }

  static void add(Group& group, const Cells& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) group.columns[i].push_back(cells[i]);
  }

  // A line of titles, one of heads, one for each row. Texts on the left, what is counted on the
  // right.
  static std::string table_text(const std::vector<Group>& groups) {
    const std::size_t lines = groups.front().columns.front().size();
    std::vector<std::string> text(lines + 1);
    for (const Group& group : groups) {
      std::vector<std::string> block(lines);
      for (const Cells& column : group.columns) {
        std::size_t width = 0;
        for (const std::string& cell : column) width = std::max(width, cell.size());
        const bool is_left =
            column.front() == "policy" || column.front() == "full" || column.front() == "built in";
        for (std::size_t line = 0; line < lines; ++line) {
          if (!block[line].empty()) block[line] += "  ";
          block[line] += is_left ? fmt::format("{:<{}}", column[line], width)
                                 : fmt::format("{:>{}}", column[line], width);
        }
      }
      const std::size_t width = std::max(block.front().size(), group.title.size());
      const std::string between = &group == &groups.front() ? "" : "  | ";
      text[0] += between + fmt::format("{:<{}}", group.title, width);
      for (std::size_t line = 0; line < lines; ++line)
        text[line + 1] += between + fmt::format("{:<{}}", block[line], width);
    }
    std::string all;
    for (std::string& line : text) {
      line.erase(line.find_last_not_of(' ') + 1);
      all += line + "\n";
    }
    return all;
  }

  std::string notes() const {
    std::string text;
    if (has_full_)
      text += "full: the memory that one layer, or one micro-batch, more would overflow\n";
    if (has_end_) text += "full nothing, of layers: a model has no more\n";
    if (has_most_)
      text += fmt::format(
          "full nothing, of a batch: memory ends none of at most {} micro-batches and 2^22 "
          "tokens\n",
          most_micro_batches);
    const FitColumns& columns = table_.columns;
    if (std::count(columns.least.begin(), columns.least.end(), true) > 0) {
      text +=
          "least memory, in three digits: so much fits, one less in the last digit does not; "
          "the other memories as the machine has them:";
      for (const Tier tier : tiers)
        text += fmt::format("{} {} {}", tier == Tier::gpu ? "" : ",", to_string(tier),
                            bytes_text(size_there_is(table_.problem, tier)));
      if (table_.problem.workload.ranks > 1) text += "; gpu of each, host and ssd of a node";
      text += "\n";
    }
    if (has_other_)
      text += "(ssd) and the like: with less of it that memory overflows, not this one\n";
    if (has_more_) text += "*: more than the machine has\n";
    if (has_none_)
      text +=
          "ssd full and the like: no size of it that was tried is enough, for that memory is "
          "too small\n";
    if (has_bounds_) text += ">= and <=: more, or less, may fit, which takes too long to try\n";
    for (const FitRow& row : table_.rows) {
      if (row.policy == "spillway" && row.refused.empty())
        text +=
            "spillway: its own plan, which nobody searched for; others of its plans may fit "
            "more, or take less\n";
    }
    return text;
  }

  const FitTable& table_;
  bool has_full_ = false, has_most_ = false, has_other_ = false, has_more_ = false;
  bool has_none_ = false, has_bounds_ = false, has_end_ = false;
};

}  // namespace

std::string answer_text(const FitTable& table) { return FitText(table).text(); }

}  // namespace spillway::cli
