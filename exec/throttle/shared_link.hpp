// Two flows, reads and writes, that share one link: bytes over time, by arithmetic alone.
//
// A flow that is alone goes at min(own rate, total); where both run and own rates R and W exceed
// the total, each gets the total in proportion to its own rate:
//
//   rate_i = own_i * min(1, total / (R + W))
//
// which is the max-min fair share the simulator gives to drives of the law `capped`
// (policies/cost/costs.hpp). Times are nanoseconds of any one clock; nothing here waits or locks.
#pragma once

#include <array>
#include <cstdint>

namespace spillway {

class SharedLink {
 public:
  enum Flow : std::uint8_t { read, write };

  // Bytes/s; all greater than zero.
  SharedLink(double read, double write, double total);

  // `flow`, which must not be running, begins to move `bytes` at `now_ns`. Where the link has been
  // followed beyond that moment already (its other flow was looked at later), the flow is given
  // what it would have moved since.
  void start(Flow flow, double bytes, std::int64_t now_ns);

  // Follows the flows up to `now_ns`; earlier than before: does nothing.
  void advance(std::int64_t now_ns);

  bool running(Flow flow) const { return flows_[flow].running; }
  // When `flow` ends if no other begins; when it ended if it is not running.
  std::int64_t end_ns(Flow flow) const;

 private:
  struct State {
    double own = 0;   // bytes/s
    double left = 0;  // bytes
    bool running = false;
    std::int64_t end_ns = 0;  // of the last run
  };
  double rate(Flow flow, bool shared) const;  // bytes/ns
  // The running flow that ends first, and when; false where none runs.
  bool next_end(Flow& flow, double& end_ns) const;

  std::array<State, 2> flows_;
  double total_;
  double now_ns_ = 0;  // how far the flows have been followed
};

}  // namespace spillway
