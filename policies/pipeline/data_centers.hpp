// Data centres and the WAN between them, from TOML (docs/pipelines.md).
//
//   name = "two"
//   [[data_center]]
//   name = "east"
//   nodes = 16            # servers, as the machine file describes them
//   [[wan]]
//   from = "east"
//   to = "west"
//   rtt = "40ms"          # there and back
//   window = "1.47MB"     # of one TCP flow: its rate is window / rtt
//   flows = 8             # TCP flows of a pair of nodes; 1
//   pair = "625MB/s"      # that a pair of nodes has at most, however many flows
//   total = "10GB/s"      # that all pairs have together; left out: not limited
//   jitter = "1ms"        # mean of what a message comes later; 0
//   # The other way is alike, unless a table of its own describes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct DataCenter {
  std::string name;
  std::int64_t nodes = 1;
};

// One way.
struct WanLink {
  std::string from, to;
  std::int64_t rtt_ns = 0;
  std::uint64_t window = 0;  // bytes
  std::int64_t flows = 1;
  double pair = 0, total = 0;  // bytes/s
  std::int64_t jitter_ns = 0;

  // Of a pair of nodes, in bytes/s: min(flows window / rtt, pair).
  double pair_rate() const;
  std::int64_t latency_ns() const { return rtt_ns / 2; }
};

struct DataCenters {
  std::string name;
  std::vector<DataCenter> centers;
  std::vector<WanLink> links;

  std::int64_t nodes() const;
  // Null where no link joins the two.
  const WanLink* link(const std::string& from, const std::string& to) const;
};

// A TOML file, or its text. Throws InputError with file:line:column.
DataCenters load_data_centers(const std::string& path);
DataCenters parse_data_centers(const std::string& toml_text, const std::string& origin);

// One data centre, of all of a machine's nodes.
DataCenters one_data_center(std::int64_t nodes);

// "KEY=VALUE" of every link, one of rtt, window, flows, pair, total, jitter. Throws InputError.
void set_on_links(DataCenters& centers, const std::string& assignment);

}  // namespace spillway
