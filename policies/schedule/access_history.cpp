#include "policies/schedule/access_history.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr Predecessors nobody() {
  Predecessors all{};
  for (TaskId& task : all) task = none;
  return all;
}

void wait_for_all(Predecessors& predecessors, const Predecessors& tasks) {
  for (std::size_t lane = 0; lane < tasks.size(); ++lane) {
    if (tasks[lane] != none) wait_for(predecessors, static_cast<Lane>(lane), tasks[lane]);
  }
}

}  // namespace

void AccessHistory::read(Place place, std::uint64_t begin, std::uint64_t end, TaskId task,
                         Lane lane, Predecessors& predecessors) {
  Bytes& bytes = places_[place];
  SPILLWAY_ASSERT(bytes.begin <= begin && begin < end && end <= bytes.end);
  ++operations_;
  if (!bytes.runs.empty() && is_all(bytes, begin, end)) {
    if (bytes.together) {
      wait_for_all(predecessors, bytes.writers);
      bytes.readers[static_cast<std::size_t>(lane)] = task;
      return;
    }
    if (bytes.runs.size() == 1) {
      Run& run = bytes.runs.front();
      if (run.writer != none) wait_for(predecessors, run.writer_lane, run.writer);
      run.readers[static_cast<std::size_t>(lane)] = task;
      return;
    }
  }
  if (bytes.together) hand_down(bytes);
  read_part(bytes, begin, end, task, lane, predecessors);
  if (bytes.runs.size() > 1 && is_all(bytes, begin, end)) gather(bytes);
}

void AccessHistory::write(Place place, std::uint64_t begin, std::uint64_t end, TaskId task,
                          Lane lane, Predecessors& predecessors) {
  Bytes& bytes = places_[place];
  SPILLWAY_ASSERT(bytes.begin <= begin && begin < end && end <= bytes.end);
  ++operations_;
  const Run written{begin, end, task, lane, nobody()};
  const bool covers_all =
      bytes.runs.empty() || (begin <= bytes.runs.front().begin && end >= bytes.runs.back().end);
  if (!covers_all) {
    if (bytes.together) hand_down(bytes);
    write_part(bytes, written, predecessors);
    return;
  }
  for (const Run& run : bytes.runs) {
    if (run.writer != none) wait_for(predecessors, run.writer_lane, run.writer);
    wait_for_all(predecessors, run.readers);
  }
  operations_ += bytes.runs.size();
  if (bytes.together) wait_for_all(predecessors, bytes.readers);
  bytes.together = false;
  bytes.runs.assign(1, written);
}

void AccessHistory::read_part(Bytes& bytes, std::uint64_t begin, std::uint64_t end, TaskId task,
                              Lane lane, Predecessors& predecessors) {
  Runs& runs = bytes.runs;
  auto run = split_near(bytes, begin);
  for (std::uint64_t at = begin; at < end; ++run) {
    ++operations_;
    if (run == runs.end() || run->begin > at) {
      // A gap was never written; remember the reader, so that a later write waits for it.
      const std::uint64_t next = run == runs.end() ? end : std::min(end, run->begin);
      run = runs.insert(run, Run{at, next, none, Lane::host_sync, nobody()});
    } else if (run->end > end) {
      run = std::prev(cut(runs, run, end));
    }
    if (run->writer != none) wait_for(predecessors, run->writer_lane, run->writer);
    run->readers[static_cast<std::size_t>(lane)] = task;
    at = run->end;
  }
}

void AccessHistory::write_part(Bytes& bytes, const Run& written, Predecessors& predecessors) {
  Runs& runs = bytes.runs;
  auto first = split_near(bytes, written.begin);
  auto last = first;
  for (; last != runs.end() && last->begin < written.end; ++last) {
    ++operations_;
    if (last->end > written.end) {
      const auto at = first - runs.begin();
      last = std::prev(cut(runs, last, written.end));
      first = runs.begin() + at;
    }
    if (last->writer != none) wait_for(predecessors, last->writer_lane, last->writer);
    wait_for_all(predecessors, last->readers);
  }
  if (first == last) {
    runs.insert(first, written);
  } else {
    *first = written;
    runs.erase(std::next(first), last);
  }
}

// Makes `at` a boundary between runs, if it is inside one; returns the first run from there on.
AccessHistory::Runs::iterator AccessHistory::split(Runs& runs, std::uint64_t at) {
  const auto run =
      std::partition_point(runs.begin(), runs.end(), [&](const Run& one) { return one.end <= at; });
  return run == runs.end() || run->begin >= at ? run : cut(runs, run, at);
}

// As split, looking first where the last access of a part began: neighbours are touched in turn.
AccessHistory::Runs::iterator AccessHistory::split_near(Bytes& bytes, std::uint64_t at) {
  Runs& runs = bytes.runs;
  const auto is_it = [&](std::size_t one) {
    return one < runs.size() && runs[one].end > at && (one == 0 || runs[one - 1].end <= at);
  };
  const std::size_t near = bytes.last_part;
  Runs::iterator run;
  if (is_it(near) || is_it(near + 1) || (near > 0 && is_it(near - 1))) {
    const std::size_t one = is_it(near) ? near : is_it(near + 1) ? near + 1 : near - 1;
    run = runs.begin() + static_cast<std::ptrdiff_t>(one);
    if (run->begin < at) run = cut(runs, run, at);
  } else {
    run = split(runs, at);
  }
  bytes.last_part = static_cast<std::uint32_t>(run - runs.begin());
  return run;
}

// Cuts a run in two at `at`, which is inside of it; returns the second one.
AccessHistory::Runs::iterator AccessHistory::cut(Runs& runs, Runs::iterator run, std::uint64_t at) {
  Run head = *run;
  head.end = at;
  run->begin = at;
  return std::next(runs.insert(run, head));
}

void AccessHistory::gather(Bytes& bytes) {
  bytes.together = true;
  bytes.writers = nobody();
  bytes.readers = nobody();
  operations_ += bytes.runs.size();
  for (const Run& run : bytes.runs) {
    if (run.writer != none) wait_for(bytes.writers, run.writer_lane, run.writer);
  }
}

void AccessHistory::hand_down(Bytes& bytes) {
  bytes.together = false;
  operations_ += bytes.runs.size();
  for (Run& run : bytes.runs) wait_for_all(run.readers, bytes.readers);
}

AccessHistory::Place AccessHistory::open(std::uint64_t begin, std::uint64_t end, Place hint) {
  SPILLWAY_ASSERT(begin < end);
  const auto is_it = [&](Place place) {
    return places_[place].begin == begin && places_[place].end == end;
  };
  if (hint < places_.size() && is_it(hint)) return hint;
  const auto found = by_begin_.find(begin);
  if (found != by_begin_.end() && is_it(found->second)) return found->second;
  return take(begin, end);
}

AccessHistory::Place AccessHistory::add(std::uint64_t begin, std::uint64_t end, Runs runs) {
  Place place = static_cast<Place>(places_.size());
  if (unused_.empty()) {
    places_.emplace_back();
  } else {
    place = unused_.back();
    unused_.pop_back();
  }
  places_[place] = {begin, end, std::move(runs), false, 0, nobody(), nobody()};
  by_begin_[begin] = place;
  return place;
}

// Adds the bytes of a place as several places of few runs each.
void AccessHistory::add_in_pieces(Bytes old) {
  for (std::size_t first = 0; first < old.runs.size(); first += few_runs) {
    const std::size_t last = std::min(first + few_runs, old.runs.size());
    const auto run = [&](std::size_t k) {
      return old.runs.begin() + static_cast<std::ptrdiff_t>(k);
    };
    add(first == 0 ? old.begin : run(first)->begin,
        last == old.runs.size() ? old.end : run(last)->begin, Runs(run(first), run(last)));
  }
}

// Cuts [begin, end) out of the places that hold some of it.
AccessHistory::Place AccessHistory::take(std::uint64_t begin, std::uint64_t end) {
  const auto first_place = [&] {
    const auto above = by_begin_.upper_bound(begin);
    const bool starts_before =
        above != by_begin_.begin() && places_[std::prev(above)->second].end > begin;
    return starts_before ? std::prev(above) : above;
  };
  auto it = first_place();
  Runs taken;
  while (it != by_begin_.end() && it->first < end) {
    const Place place = it->second;
    it = by_begin_.erase(it);
    Bytes old = std::exchange(places_[place], {});
    unused_.push_back(place);
    if (old.together) hand_down(old);
    operations_ += old.runs.size() + 1;
    if (old.runs.size() > few_runs && (old.begin < begin || old.end > end)) {
      // Cut piece by piece, as a large free region is, it would be copied for every piece.
      const std::uint64_t from = std::max(old.begin, begin);
      add_in_pieces(std::move(old));
      it = std::prev(by_begin_.upper_bound(from));
      continue;
    }
    split(old.runs, begin);
    const auto to = split(old.runs, end);
    const auto from = std::partition_point(old.runs.begin(), to,
                                           [&](const Run& run) { return run.end <= begin; });
    taken.insert(taken.end(), from, to);
    if (old.end > end) add(end, old.end, Runs(to, old.runs.end()));
    if (old.begin < begin) add(old.begin, begin, Runs(old.runs.begin(), from));
  }
  return add(begin, end, std::move(taken));
}

}  // namespace spillway
