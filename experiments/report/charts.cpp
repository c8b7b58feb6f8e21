#include "experiments/report/charts.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

const char* to_string(Series::Style style) {
  switch (style) {
    case Series::Style::line:
      return "line";
    case Series::Style::thin_line:
      return "thin";
    case Series::Style::dashed_line:
      return "dashed";
    case Series::Style::points:
      return "points";
  }
  return "line";
}

Json to_json(const Series& series) {
  Json x = Json::array(), y = Json::array(), labels = Json::array();
  for (std::size_t i = 0; i < series.points.size(); ++i) {
    const auto& [at, value] = series.points[i];
    if (!std::isfinite(at) || !std::isfinite(value)) continue;
    x.push_back(at);
    y.push_back(value);
    if (!series.labels.empty()) labels.push_back(printable(series.labels[i]));
  }
  return {{"name", printable(series.name)},
          {"style", to_string(series.style)},
          {"x", x},
          {"y", y},
          {"labels", labels}};
}

}  // namespace

std::string place_html(const Chart& chart) {
  return fmt::format(
      "<figure class=\"chart\" id=\"chart-{}\"><figcaption>{}</figcaption></figure>\n", chart.id,
      escaped(chart.title));
}

Blob charts_blob(const std::vector<Chart>& charts) {
  Json list = Json::array();
  for (const Chart& chart : charts) {
    Json series = Json::array();
    for (const Series& one : chart.series) {
      if (!one.points.empty()) series.push_back(to_json(one));
    }
    list.push_back({{"place", "chart-" + chart.id},
                    {"title", printable(chart.title)},
                    {"x_label", chart.x_label},
                    {"y_label", chart.y_label},
                    {"series", series},
                    {"log_x", chart.log_x},
                    {"log_y", chart.log_y},
                    {"from_zero", chart.from_zero},
                    {"diagonal", chart.diagonal}});
  }
  return {"charts", list.dump()};
}

}  // namespace spillway
