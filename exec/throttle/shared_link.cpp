#include "exec/throttle/shared_link.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr SharedLink::Flow other(SharedLink::Flow flow) {
  return flow == SharedLink::read ? SharedLink::write : SharedLink::read;
}

// Whole nanoseconds, never early.
std::int64_t ceiling(double ns) { return static_cast<std::int64_t>(std::ceil(ns)); }

}  // namespace

SharedLink::SharedLink(double read_rate, double write_rate, double total) : total_(total) {
  SPILLWAY_ASSERT(read_rate > 0 && write_rate > 0 && total > 0);
  flows_[read].own = read_rate;
  flows_[write].own = write_rate;
}

double SharedLink::rate(Flow flow, bool shared) const {
  const double own = flows_[flow].own;
  const double wanted = shared ? flows_[read].own + flows_[write].own : own;
  return own * std::min(1.0, total_ / wanted) / 1e9;
}

bool SharedLink::next_end(Flow& flow, double& end_ns) const {
  const bool shared = flows_[read].running && flows_[write].running;
  bool found = false;
  for (const Flow candidate : {read, write}) {
    if (!flows_[candidate].running) continue;
    const double end = now_ns_ + flows_[candidate].left / rate(candidate, shared);
    if (found && end_ns <= end) continue;
    flow = candidate;
    end_ns = end;
    found = true;
  }
  return found;
}

void SharedLink::advance(std::int64_t now_ns) {
  const auto until = static_cast<double>(now_ns);
  Flow first{};
  double end = 0;
  while (next_end(first, end)) {
    const double stop = std::min(until, end);
    if (stop < now_ns_) return;
    const bool shared = flows_[read].running && flows_[write].running;
    for (const Flow flow : {read, write}) {
      if (flows_[flow].running) flows_[flow].left -= rate(flow, shared) * (stop - now_ns_);
    }
    now_ns_ = stop;
    if (end > until) return;
    flows_[first].left = 0;
    flows_[first].running = false;
    flows_[first].end_ns = ceiling(end);
  }
  now_ns_ = std::max(now_ns_, until);
}

void SharedLink::start(Flow flow, double bytes, std::int64_t now_ns) {
  State& state = flows_[flow];
  advance(now_ns);
  SPILLWAY_ASSERT(!state.running && bytes >= 0);
  const double missed_ns = now_ns_ - static_cast<double>(now_ns);
  const bool shared = flows_[other(flow)].running;
  state.left = std::max(0.0, bytes - rate(flow, shared) * missed_ns);
  state.running = true;
}

std::int64_t SharedLink::end_ns(Flow flow) const {
  SharedLink future = *this;
  Flow first{};
  double end = 0;
  while (future.running(flow) && future.next_end(first, end)) future.advance(ceiling(end));
  return future.flows_[flow].end_ns;
}

}  // namespace spillway
