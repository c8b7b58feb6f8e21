#include "policies/cost/link_rates.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace spillway {

namespace {

double at(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

// Shares of the bandwidths that reads and writes have alone.
struct Corner {
  double read = 0, write = 0;
};

// Where bytes of a read share s flow with r/R + w/W = gain; neither way faster than alone.
Corner corner_of(double share, double gain, double read, double write) {
  const double reading = share / read, writing = (1 - share) / write;
  const double scale = std::min(gain / (reading + writing), 1 / std::max(reading, writing));
  return {scale * reading, scale * writing};
}

// How far `c` is to the left of the line from `a` to `b`.
double left_of(const Corner& a, const Corner& b, const Corner& c) {
  return (b.read - a.read) * (c.write - a.write) - (b.write - a.write) * (c.read - a.read);
}

// Corners of the upper hull, from writes alone to reads alone.
std::vector<Corner> upper_hull(const std::map<double, double>& by_read_share, double read,
                               double write) {
  constexpr double on_the_line = 1e-9;
  std::vector<Corner> points = {{0, 1}};
  for (const auto& [share, gain] : by_read_share)
    points.push_back(corner_of(share, gain, read, write));
  points.push_back({1, 0});
  // Reads as fast as alone beside several rates of writes: the highest comes first.
  std::stable_sort(points.begin(), points.end(), [](const Corner& a, const Corner& b) {
    return a.read != b.read ? a.read < b.read : a.write > b.write;
  });
  std::vector<Corner> hull;
  for (const Corner& point : points) {
    while (hull.size() > 1 && left_of(hull[hull.size() - 2], hull.back(), point) >= -on_the_line)
      hull.pop_back();
    hull.push_back(point);
  }
  return hull;
}

// One edge: read share of R times `read` + write share of W times `write` <= 1.
struct Edge {
  double read = 0, write = 0;
};

// Those that limit both ways.
std::vector<Edge> edges_of(const std::vector<Corner>& hull) {
  std::vector<Edge> edges;
  for (std::size_t i = 1; i < hull.size(); ++i) {
    const Corner &a = hull[i - 1], &b = hull[i];
    const double across = a.write - b.write, along = b.read - a.read;
    const double whole = across * a.read + along * a.write;
    constexpr double one_way = 1e-9;
    if (across <= one_way || along <= one_way) continue;
    edges.push_back({across / whole, along / whole});
  }
  return edges;
}

void add_mixed(const Machine::Ssd& ssd, DriveRates& rates) {
  if (rates.read <= 0 || rates.write <= 0) return;
  const auto add = [&](const std::string& name, const Edge& edge) {
    rates.limits.push_back({name, 1, edge.read / rates.read, edge.write / rates.write});
  };
  const std::map<double, double> gains = ssd.gains_at_queue_depth();
  if (gains.empty()) return add("ssd.mixed", {1 / ssd.mixed_gain, 1 / ssd.mixed_gain});
  int number = 0;
  for (const Edge& edge : edges_of(upper_hull(gains, rates.read, rates.write)))
    add(fmt::format("ssd.mixed.{}", ++number), edge);
}

}  // namespace

double LinkRates::seconds(double to_gpu, double from_gpu) const {
  return std::max({at(to_gpu, h2d), at(from_gpu, d2h), at(to_gpu + from_gpu, total)});
}

double LinkRates::one_way() const { return std::min(h2d, d2h); }

double DriveRates::seconds(double bytes_read, double bytes_written) const {
  double most = 0;
  for (const DriveLimit& limit : limits)
    most = std::max(
        most, at(bytes_read * limit.per_read + bytes_written * limit.per_written, limit.capacity));
  return most;
}

DriveRates drive_rates(const Machine::Ssd& ssd, const Machine::Ssd::Row& rates) {
  DriveRates all{rates.read, rates.write, {}};
  if (ssd.law == SsdLaw::simplex) {
    all.limits.push_back({"ssd.time", 1, at(1, rates.read), at(1, rates.write)});
    return all;
  }
  all.limits.push_back({"ssd.read", rates.read, 1, 0});
  all.limits.push_back({"ssd.write", rates.write, 0, 1});
  if (ssd.law == SsdLaw::capped) {
    const double total = rates.total > 0 ? rates.total : std::max(rates.read, rates.write);
    all.limits.push_back({"ssd.total", total, 1, 1});
  }
  if (ssd.law == SsdLaw::mixed) add_mixed(ssd, all);
  return all;
}

std::array<double, most_drive_sets> speed_shares(const Machine& machine) {
  const int sets = std::max(1, machine.drive_sets());
  if (sets == 1) return {1};
  bool known = true;
  for (int set = 0; set < sets; ++set)
    known = known && machine.drives(set).read > 0 && machine.drives(set).write > 0;
  std::array<double, most_drive_sets> shares{};
  double all = 0;
  for (int set = 0; set < sets; ++set) {
    const Machine::Ssd& ssd = machine.drives(set);
    double& share = shares[static_cast<std::size_t>(set)];
    share = known ? 1 / drive_rates(ssd, ssd.at_queue_depth()).seconds(0.5, 0.5)
                  : static_cast<double>(ssd.count);
    all += share;
  }
  for (double& share : shares) share /= all;
  return shares;
}

double gain_of_hull(const std::map<double, double>& by_read_share, double read, double write,
                    double share) {
  const double reading = share / read, writing = (1 - share) / write;
  double seconds = std::max(reading, writing);  // of a byte, at the best rate of such a mix
  const double first = reading / (reading + writing);
  for (const Edge& edge : edges_of(upper_hull(by_read_share, read, write)))
    seconds =
        std::max(seconds, (edge.read * first + edge.write * (1 - first)) * (reading + writing));
  return (reading + writing) / seconds;
}

}  // namespace spillway
