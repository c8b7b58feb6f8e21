#include "tests/experiments/plots/picture_check.hpp"

#include <fmt/format.h>

#include <boost/property_tree/xml_parser.hpp>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numbers>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "experiments/plots/text_size.hpp"

namespace spillway::test {

namespace {

using Tree = boost::property_tree::ptree;
using Point = std::array<double, 2>;

// What is inherited by what stands inside.
struct Font {
  double size = 0;
  bool bold = false;
};

struct Canvas {
  double width = 0, height = 0;
};

Tree parse(const std::string& svg) {
  std::istringstream text(svg);
  Tree tree;
  boost::property_tree::read_xml(text, tree, boost::property_tree::xml_parser::no_concat_text);
  return tree;
}

std::string attribute(const Tree& element, const std::string& name) {
  return element.get<std::string>("<xmlattr>." + name, "");
}

Font font_of(const Tree& element, Font font) {
  if (const std::string size = attribute(element, "font-size"); !size.empty())
    font.size = std::stod(size);
  if (attribute(element, "font-weight") == "bold") font.bold = true;
  return font;
}

// The text of an element and all it holds, and its width.
void add_text(const Tree& element, Font font, std::string& text, double& width) {
  for (const auto& [name, child] : element) {
    if (name == "<xmltext>") {
      text += child.data();
      width += text_width(child.data(), font.size, font.bold);
    } else if (name == "tspan") {
      add_text(child, font_of(child, font), text, width);
    }
  }
}

// translate(x,y) with or without rotate(degrees) behind it.
struct Transform {
  Point origin{};
  double degrees = 0;
};

std::optional<Transform> transform_of(const std::string& text) {
  Transform transform;
  const int read = std::sscanf(text.c_str(), "translate(%lf,%lf) rotate(%lf)", &transform.origin[0],
                               &transform.origin[1], &transform.degrees);
  return read >= 2 ? std::optional(transform) : std::nullopt;
}

TextBox box_of(const Tree& group, const Tree& text, const Transform& transform) {
  TextBox box;
  double width = 0;
  const Font font = font_of(text, font_of(group, {}));
  add_text(text, font, box.text, width);
  const std::string anchor = attribute(group, "text-anchor");
  const double left = anchor == "middle" ? -width / 2 : anchor == "end" ? -width : 0;
  const double top = -0.74 * font.size, bottom = 0.2 * font.size;
  const std::array<Point, 4> corners = {
      {{left, top}, {left + width, top}, {left + width, bottom}, {left, bottom}}};
  const double angle = transform.degrees * std::numbers::pi / 180;
  for (std::size_t i = 0; i < corners.size(); ++i) {
    const auto [x, y] = corners[i];
    box.corners[i] = {transform.origin[0] + x * std::cos(angle) - y * std::sin(angle),
                      transform.origin[1] + x * std::sin(angle) + y * std::cos(angle)};
  }
  return box;
}

void collect(const Tree& element, std::vector<TextBox>& boxes) {
  const auto transform = transform_of(attribute(element, "transform"));
  for (const auto& [name, child] : element) {
    if (name == "text") {
      if (!transform) throw std::runtime_error("a text without a place: it is not gnuplot's SVG");
      const TextBox box = box_of(element, child, *transform);
      if (box.text.find_first_not_of(" \n\t") != std::string::npos) boxes.push_back(box);
    } else if (name != "<xmlattr>") {
      collect(child, boxes);
    }
  }
}

Canvas canvas_of(const Tree& svg) {
  Canvas canvas;
  const std::string box = attribute(svg, "viewBox");
  if (std::sscanf(box.c_str(), "0 0 %lf %lf", &canvas.width, &canvas.height) != 2)
    throw std::runtime_error("no viewBox: it is not gnuplot's SVG");
  return canvas;
}

// Whether some line between the boxes keeps them apart by more than `least` pixels less than
// nothing: boxes that only touch do not overlap.
bool overlap(const TextBox& a, const TextBox& b) {
  constexpr double touch = 1;
  for (const TextBox* of : {&a, &b}) {
    for (const std::size_t side : {0u, 1u}) {
      Point axis = {of->corners[side + 1][0] - of->corners[side][0],
                    of->corners[side + 1][1] - of->corners[side][1]};
      const double length = std::hypot(axis[0], axis[1]);
      if (length == 0) return false;
      std::array<double, 2> low, high;
      low.fill(std::numeric_limits<double>::max());
      high.fill(std::numeric_limits<double>::lowest());
      for (const std::size_t which : {0u, 1u}) {
        for (const Point& corner : (which == 0 ? a : b).corners) {
          const double at = (corner[0] * axis[0] + corner[1] * axis[1]) / length;
          low[which] = std::min(low[which], at);
          high[which] = std::max(high[which], at);
        }
      }
      if (std::min(high[0], high[1]) - std::max(low[0], low[1]) <= touch) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<TextBox> text_boxes(const std::string& svg) {
  std::vector<TextBox> boxes;
  collect(parse(svg).get_child("svg"), boxes);
  return boxes;
}

std::vector<std::string> flaws_of(const std::string& svg) {
  const Canvas canvas = canvas_of(parse(svg).get_child("svg"));
  const std::vector<TextBox> boxes = text_boxes(svg);
  std::vector<std::string> flaws;
  if (boxes.empty()) flaws.emplace_back("it holds no text");
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const auto leaves = [&](std::size_t axis, double least, double most) {
      for (const Point& corner : boxes[i].corners) {
        if (corner[axis] < least || corner[axis] > most) return true;
      }
      return false;
    };
    if (leaves(0, 0, canvas.width)) flaws.push_back("\"" + boxes[i].text + "\" leaves at a side");
    if (leaves(1, 0, canvas.height))
      flaws.push_back("\"" + boxes[i].text + "\" leaves above or below");
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(boxes[i], boxes[j]))
        flaws.push_back(fmt::format("\"{}\" lies over \"{}\"", boxes[i].text, boxes[j].text));
    }
  }
  return flaws;
}

}  // namespace spillway::test
