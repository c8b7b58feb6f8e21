#include "tests/policies/ranks/ranks_dataflow.hpp"

#include <deque>

#include "policies/model/units.hpp"
#include "tests/policies/symbolic_run.hpp"

namespace spillway::test {

namespace {

// Whether two ranks are in one group, by its definition.
bool are_together(const RankGroup& group, const Ranks& ranks, int a, int b) {
  const auto along = [](int x, int y, int steps, int stride) {
    return x % stride == y % stride && x / stride / steps == y / stride / steps;
  };
  return along(a % ranks.inside, b % ranks.inside, group.mesh.inside, group.inside_stride) &&
         along(a / ranks.inside, b / ranks.inside, group.mesh.across, group.across_stride);
}

std::vector<int> together(const RankGroup& group, const Ranks& ranks, int rank) {
  std::vector<int> members;
  for (int other = 0; other < ranks.size(); ++other) {
    if (are_together(group, ranks, rank, other)) members.push_back(other);
  }
  return members;
}

class JointRun {
 public:
  JointRun(std::span<const Schedule> schedules, const StatedShards& stated)
      : stated_(stated), ranks_(schedules.front().problem().ranks()) {
    joint_.stated_sum = [this](int rank, int unit, Held held, int step) {
      return stated_sum(rank, unit, held, step);
    };
    layers_ = static_cast<int>(schedules.front().problem().model.layers);
    for (const Schedule& schedule : schedules) runs_.emplace_back(schedule, false, &joint_);
  }

  void run() {
    for (SymbolicRun& run : runs_) run.begin();
    while (true) {
      at_collective_.clear();
      for (SymbolicRun& run : runs_) at_collective_.push_back(run.is_at_collective());
      if (std::none_of(at_collective_.begin(), at_collective_.end(), [](bool at) { return at; }))
        break;
      bool any = false;
      for (int rank = 0; rank < ranks_.size(); ++rank) any = meet(rank) || any;
      if (!any) waits_for_ever();
    }
    for (SymbolicRun& run : runs_) run.end();
  }

 private:
  SymbolicRun& of(int rank) { return runs_[static_cast<std::size_t>(rank)]; }

  // If all of the group of this rank's collective, of which it is the first, are there, it is done.
  bool meet(int rank) {
    if (!at_collective_[static_cast<std::size_t>(rank)]) return false;
    const Task task = of(rank).now();
    const RankGroup group = of(rank).group();
    const std::vector<int> members = members_of(group, ranks_, rank);
    std::vector<int> expected = together(group, ranks_, rank), sorted = members;
    std::sort(sorted.begin(), sorted.end());
    if (sorted != expected)
      of(rank).fail("members of a group that are not those of its definition");
    if (sorted.front() != rank) return false;
    for (const int member : members) {
      if (!at_collective_[static_cast<std::size_t>(member)]) return false;
      const Task& theirs = of(member).now();
      if (theirs.kind != task.kind || of(member).group() != group || theirs.lane != task.lane ||
          theirs.layer != task.layer)
        return false;  // they may get here
      if (theirs.bytes != task.bytes || theirs.micro_batch != task.micro_batch ||
          theirs.step != task.step || theirs.first_micro_batch != task.first_micro_batch ||
          (task.kind == TaskKind::broadcast && theirs.saves != task.saves))
        of(member).fail("a collective unlike that of rank " + std::to_string(rank));
      if (place_in(group, ranks_, member) !=
          std::find(members.begin(), members.end(), member) - members.begin())
        of(member).fail("is not at its place in the group");
    }
    switch (task.kind) {
      case TaskKind::all_gather:
        all_gather(members, task);
        break;
      case TaskKind::broadcast:
        broadcast(members, task);
        break;
      case TaskKind::reduce_scatter:
        reduce_scatter(members, task);
        break;
      case TaskKind::all_reduce:
        all_reduce(members, task);
        break;
      default:
        norms_reduce(members);
    }
    for (const int member : members) {
      of(member).collective_done();
      at_collective_[static_cast<std::size_t>(member)] = false;
    }
    return true;
  }

  [[noreturn]] void waits_for_ever() {
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      if (at_collective_[static_cast<std::size_t>(rank)])
        of(rank).fail("waits for ranks that never come");
    }
    throw Violation{"ranks wait for each other"};
  }

  void all_gather(const std::vector<int>& members, const Task& task) {
    struct Run {
      std::uint64_t bytes, from;
      Value value;
    };
    std::vector<Run> whole;
    std::uint64_t bytes = 0;
    std::vector<std::uint64_t> begins;
    for (const int member : members) {
      const Access part = of(member).collective_operand(Role::source);
      begins.push_back(bytes);
      for (std::uint64_t done = 0; done < part.bytes;) {
        const ShadowMemory::Run run = of(member).read_run(part, done);
        whole.push_back({run.end - run.begin, run.from, run.value});
        done += run.end - run.begin;
      }
      bytes += part.bytes;
    }
    for (std::size_t m = 0; m < members.size(); ++m) {
      SymbolicRun& run = of(members[m]);
      const Access part = run.collective_operand(Role::source);
      const Access destination = run.collective_operand(Role::destination);
      run.require(destination.bytes == bytes && bytes == task.bytes, "the parts are not the whole");
      run.require(
          part.buffer != destination.buffer || part.offset == destination.offset + begins[m],
          "a part is not at its place in the whole");
      std::uint64_t done = 0;
      for (const Run& one : whole) {
        run.write_part(destination, done, one.bytes, one.value, one.from);
        done += one.bytes;
      }
    }
  }

  void broadcast(const std::vector<int>& members, const Task& task) {
    SymbolicRun& owner = of(members.at(task.saves));
    const Access part = owner.collective_operand(Role::destination);
    owner.require(part.bytes == task.bytes, "the part is not what is sent");
    for (std::uint64_t done = 0; done < part.bytes;) {
      const ShadowMemory::Run run = owner.read_run(part, done);
      const std::uint64_t bytes = run.end - run.begin, from = run.from;
      const Value value = run.value;
      for (const int member : members) {
        const Access to = of(member).collective_operand(Role::destination);
        of(member).require(to.bytes == part.bytes, "the parts are not alike");
        if (member != members[task.saves]) of(member).write_part(to, done, bytes, value, from);
      }
      done += bytes;
    }
  }

  // What the ranks have at byte `done` of an operand each, added up, for as many bytes as are
  // alike.
  struct Sum {
    Value value;
    std::uint64_t bytes, from;
  };
  Sum sum(const std::vector<int>& members, const std::vector<Access>& operands,
          std::uint64_t done) {
    Sum sum{};
    std::string name;
    for (std::size_t m = 0; m < members.size(); ++m) {
      SymbolicRun& run = of(members[m]);
      const ShadowMemory::Run one = run.read_run(operands[m], done);
      run.require(one.value.held == Held::gradient || one.value.held == Held::head_gradient,
                  "adds what is no gradient");
      if (m == 0) {
        sum = {one.value, one.end - one.begin, one.from};
      } else {
        run.require(one.value.held == sum.value.held && one.value.unit == sum.value.unit &&
                        one.value.version == sum.value.version && one.from == sum.from,
                    "adds another gradient");
        run.require((one.value.summed & sum.value.summed) == 0, "adds a micro-batch twice");
        sum.value.summed |= one.value.summed;
        sum.bytes = std::min(sum.bytes, one.end - one.begin);
      }
      name += (m == 0 ? "" : ",") + joint_.names.name(one.value.first);
    }
    sum.value.first = joint_.names.id_of("sum[" + name + "]");
    return sum;
  }

  // Sums are in the order of ranks, whoever gets which part.
  static std::vector<int> ascending(std::vector<int> members) {
    std::sort(members.begin(), members.end());
    return members;
  }
  std::vector<Access> operands_of(const std::vector<int>& members, Role role, std::uint64_t bytes) {
    std::vector<Access> operands;
    for (const int member : members) {
      operands.push_back(of(member).collective_operand(role));
      of(member).require(operands.back().bytes == bytes, "an operand of another size");
    }
    return operands;
  }

  void reduce_scatter(const std::vector<int>& members, const Task& task) {
    const std::vector<int> adding = ascending(members);
    const std::vector<Access> wholes = operands_of(adding, Role::source, task.bytes);
    std::uint64_t begin = 0;
    for (const int member : members) {
      SymbolicRun& run = of(member);
      const Access part = run.collective_operand(Role::destination);
      run.require(begin + part.bytes <= task.bytes, "the parts are more than the whole");
      for (std::uint64_t done = 0; done < part.bytes;) {
        Sum one = sum(adding, wholes, begin + done);
        one.bytes = std::min(one.bytes, part.bytes - done);
        if (!task.first_micro_batch) {
          const ShadowMemory::Run before = run.read_run(part, done);
          run.require(before.value.held == one.value.held && before.value.unit == one.value.unit &&
                          before.value.version == one.value.version && before.from == one.from,
                      "adds to another gradient");
          run.require((before.value.summed & one.value.summed) == 0, "adds a micro-batch twice");
          one.value.summed |= before.value.summed;
          one.value.first = joint_.names.id_of(joint_.names.name(before.value.first) + "+" +
                                               joint_.names.name(one.value.first));
          one.bytes = std::min(one.bytes, before.end - before.begin);
        }
        run.write_part(part, done, one.bytes, one.value, one.from);
        done += one.bytes;
      }
      begin += part.bytes;
    }
    of(members.front()).require(begin == task.bytes, "the parts are not the whole");
  }

  void all_reduce(const std::vector<int>& members, const Task& task) {
    const std::vector<int> adding = ascending(members);
    const std::vector<Access> wholes = operands_of(adding, Role::destination, task.bytes);
    std::vector<Sum> sums;
    for (std::uint64_t done = 0; done < task.bytes; done += sums.back().bytes)
      sums.push_back(sum(adding, wholes, done));
    for (std::size_t m = 0; m < adding.size(); ++m) {
      std::uint64_t done = 0;
      for (const Sum& one : sums) {
        of(adding[m]).write_part(wholes[m], done, one.bytes, one.value, one.from);
        done += one.bytes;
      }
    }
  }

  // The parts of a unit that its norms are of must be all of it, each once.
  void norms_reduce(const std::vector<int>& members) {
    std::vector<Access> slots;
    for (const int member : members) slots.push_back(of(member).collective_operand(Role::norms));
    const Problem& problem = of(members.front()).problem();
    for (std::uint64_t done = 0; done < slots.front().bytes; done += norm_slot_bytes) {
      // Of what is frozen there is no norm, and nobody asks for it.
      const bool is_of_all = slots.front().bytes > norm_slot_bytes;
      if (is_of_all &&
          trained_elements(problem.model, static_cast<std::int64_t>(done / norm_slot_bytes)) == 0)
        continue;
      std::vector<Value> parts;
      for (std::size_t m = 0; m < members.size(); ++m) {
        SymbolicRun& run = of(members[m]);
        run.require(slots[m].bytes == slots.front().bytes, "an operand of another size");
        parts.push_back(run.read_run(slots[m], done).value);
      }
      std::sort(parts.begin(), parts.end(),
                [](const Value& a, const Value& b) { return a.first < b.first; });
      Value whole = parts.front();
      for (std::size_t p = 1; p < parts.size(); ++p) {
        of(members.front())
            .require(parts[p].held == Held::norm && parts[p].unit == whole.unit &&
                         parts[p].version == whole.version &&
                         parts[p].first == whole.first + whole.elements,
                     "norms of parts that are not the whole, each once");
        whole.elements += parts[p].elements;
      }
      for (std::size_t m = 0; m < members.size(); ++m)
        of(members[m]).write_part(slots[m], done, norm_slot_bytes, whole, 0);
    }
  }

  // -- the stated order of sums
  static std::string joined(const std::vector<std::string>& names) {
    if (names.size() == 1) return names.front();
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
    return "sum[" + text + "]";
  }
  template <class NameOf>
  std::string over(const RankGroup& group, int rank, const NameOf& name_of) {
    std::vector<std::string> names;
    for (const int member : together(group, ranks_, rank)) names.push_back(name_of(member));
    return joined(names);
  }
  std::string stated_sum(int rank, int unit, Held held, int step) {
    const Mesh mesh = unit < layers_ ? stated_.gradients : Mesh{};
    const auto summed = [&](int of_rank) {
      std::string text;
      for (const int m : of(of_rank).order_of(step, held, unit)) {
        text += text.empty() ? "" : "+";
        text += over(RankGroup{mesh, 1, 1}, of_rank,
                     [&](int one) { return fmt::format("r{}m{}", one, m); });
      }
      return text;
    };
    const RankGroup all = among(ranks_, mesh);
    if (stated_.all_reduce) return over(all, rank, summed);
    const auto scattered = [&](int of_rank) {
      return over(among(stated_.optimizer_state, mesh), of_rank, summed);
    };
    return over(among(ranks_, stated_.optimizer_state), rank, scattered);
  }
  static RankGroup among(const Mesh& outer, const Mesh& inner) {
    return {{outer.inside / inner.inside, outer.across / inner.across}, inner.inside, inner.across};
  }

  StatedShards stated_;
  Ranks ranks_;
  int layers_ = 0;
  SymbolicRun::Joint joint_;
  std::deque<SymbolicRun> runs_;
  std::vector<bool> at_collective_;
};

struct Part {
  std::uint64_t first, elements;
};

// Empty where the parts, ordered by their first element, have no gap and are not twice.
std::string gap_in(std::vector<Part> parts, std::uint64_t begin, std::uint64_t end) {
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.first < b.first; });
  for (const Part& part : parts) {
    if (part.first != begin)
      return fmt::format("is cut at {} where it goes on at {}", part.first, begin);
    begin += part.elements;
  }
  return begin == end ? "" : fmt::format("ends at {}, not at {}", begin, end);
}

}  // namespace

std::string find_ranks_dataflow_error(std::span<const Schedule> schedules,
                                      const StatedShards& stated) {
  try {
    JointRun(schedules, stated).run();
  } catch (const Violation& violation) {
    return violation.text;
  }
  return "";
}

std::string find_ranks_home_error(std::span<const Schedule> schedules, const StatedShards& stated) {
  const Problem& problem = schedules.front().problem();
  const Ranks ranks = problem.ranks();
  const RankGroup owners{stated.optimizer_state, 1, 1};
  for (int unit = 0; unit < unit_count(problem.model); ++unit) {
    const auto all = static_cast<std::uint64_t>(trained_elements(problem.model, unit));
    const auto of_unit = static_cast<std::uint64_t>(unit_elements(problem.model, unit));
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const auto& homes = schedules[static_cast<std::size_t>(rank)].homes();
      std::vector<Part> states;
      for (const int member : together(owners, ranks, rank)) {
        for (const HomePart& home : schedules[static_cast<std::size_t>(member)].homes()) {
          if (home.unit == unit && home.kind == BufferKind::optimizer_state)
            states.push_back({home.first_element, home.elements});
        }
      }
      if (const std::string gap = all > 0 ? gap_in(states, 0, all) : ""; !gap.empty())
        return fmt::format("optimizer state of unit {} {}", unit, gap);
      for (const bool frozen : {false, true}) {
        const std::uint64_t elements = frozen ? of_unit - all : all;
        if (elements == 0) continue;
        std::vector<Part> kept;
        for (const HomePart& home : homes) {
          if (home.unit == unit && home.frozen == frozen && home.kind == BufferKind::parameters)
            kept.push_back({home.first_element, home.elements});
        }
        if (kept.empty()) return fmt::format("rank {} keeps nothing of unit {}", rank, unit);
        std::uint64_t first = of_unit, end = 0;
        for (const Part& part : kept) {
          first = std::min(first, part.first);
          end = std::max(end, part.first + part.elements);
        }
        if (const std::string gap = gap_in(kept, first, end); !gap.empty())
          return fmt::format("rank {}: parameters of unit {} {}", rank, unit, gap);
        for (const HomePart& home : homes) {
          if (home.unit == unit && home.frozen == frozen &&
              (home.first_element < first || home.first_element + home.elements > end))
            return fmt::format("rank {} updates what it does not keep of unit {}", rank, unit);
        }
      }
    }
  }
  return "";
}

}  // namespace spillway::test
