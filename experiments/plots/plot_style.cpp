#include "experiments/plots/plot_style.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace spillway {

namespace {

struct Look {
  std::string_view policy;
  const char* colour;
};

// The colours of Okabe and Ito, which the colour-blind tell apart, and for the policies of several
// ranks and of pipelines some of Tol's muted and bright ones.
constexpr std::array<Look, 16> looks = {{{"resident", "#0072B2"},
                                         {"zero-offload", "#D55E00"},
                                         {"zero-infinity", "#009E73"},
                                         {"deep-optimizer-states", "#E69F00"},
                                         {"fuyou", "#CC79A7"},
                                         {"greedysnake", "#000000"},
                                         {"spillway", "#56B4E9"},
                                         {"zero", "#606060"},
                                         {"zero++", "#882255"},
                                         {"mics", "#999933"},
                                         {"fsdp", "#332288"},
                                         {"amsp", "#8B4513"},
                                         {"gpipe", "#AAAA00"},
                                         {"1f1b", "#4477AA"},
                                         {"interleaved", "#EE6677"},
                                         {"zb-h1", "#228833"}}};
constexpr std::array<const char*, 4> other_colours = {"#44AA99", "#117733", "#AA4499", "#661100"};

// Circle, square, triangle, triangle on its tip, diamond, pentagon: filled, and hollow one below.
constexpr std::array<int, 6> points = {7, 5, 9, 11, 13, 15};

std::uint32_t hash_of_name(std::string_view name) {  // FNV-1a
  std::uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

}  // namespace

PolicyStyle policy_style(const std::string& policy) {
  const std::string_view name = std::string_view(policy).substr(0, policy.find(':'));
  const auto look =
      std::find_if(looks.begin(), looks.end(), [&](const Look& one) { return one.policy == name; });
  if (look != looks.end()) {
    const auto place = static_cast<std::size_t>(look - looks.begin());
    return {look->colour, points[place % points.size()]};
  }
  const std::uint32_t hash = hash_of_name(name);
  return {other_colours[hash % other_colours.size()],
          points[hash / other_colours.size() % points.size()]};
}

std::string tinted(const std::string& colour, double share) {
  std::string mixed = "#";
  for (const std::size_t at : {1u, 3u, 5u}) {
    const double part = std::stoi(colour.substr(at, 2), nullptr, 16);
    mixed += fmt::format("{:02X}", static_cast<int>(255 - share * (255 - part)));
  }
  return mixed;
}

}  // namespace spillway
