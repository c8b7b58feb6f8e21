// The rates of another machine, which the CPU backend is to keep: "h2d=2GB/s,ssd.read=800MB/s".
#pragma once

#include <array>
#include <string>

#include "policies/machine/drive_sets.hpp"

namespace spillway {

// Of a set of drives, bytes/s.
struct ThrottledDrives {
  double read = 0, write = 0;
  double total = 0;  // reads and writes together; needs both of the above
  bool any() const { return read > 0 || write > 0; }
  bool operator==(const ThrottledDrives&) const = default;
};

// Rates of the machine that is stood for; 0: as fast as this machine is.
struct ThrottleRates {
  double h2d = 0, d2h = 0;  // bytes/s each way
  std::array<ThrottledDrives, most_drive_sets> drives = {};
  double gpu = 0;            // FLOP/s of every compute task; the embedding, which has none, is free
  double gpu_optimizer = 0;  // params/s of optimizer tasks on gpu.compute
  double optimizer = 0;      // params/s of optimizer tasks on cpu.optimizer
  double nvlink = 0;         // bytes/s of collectives, each way between a rank and the others

  bool any() const;
  bool operator==(const ThrottleRates&) const = default;
};

// KEY=RATE separated by commas; keys: h2d, d2h, ssd.read, ssd.write, ssd.total (ssd2.read and so on
// of the other sets of drives), gpu, gpu.optimizer, optimizer, nvlink. "" throttles nothing. Throws
// InputError: an unknown key (with near names), a key given twice, a rate of zero or without its
// unit, the total of drives without both of their rates.
ThrottleRates parse_throttle(const std::string& text);

// The same in a form that parse_throttle reads back exactly; "" for no throttle.
std::string to_text(const ThrottleRates& rates);

}  // namespace spillway
