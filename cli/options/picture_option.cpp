#include "cli/options/picture_option.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/errors.hpp"
#include "cli/text/output.hpp"

namespace spillway::cli {

namespace {

std::string extension_of(const std::string& path) {
  return std::filesystem::path(path).extension().string();
}

// As gnuplot begins them.
const ReplaceOnly& only_a_picture() {
  static const ReplaceOnly only = {
      "a picture", [](std::span<const std::byte> head) {
        const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
        return text.starts_with("\x89PNG\r\n") ||
               (text.starts_with("<?xml") && text.find("<svg") != text.npos);
      }};
  return only;
}

}  // namespace

void check_picture_path(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  check_output_path(option, path, &only_a_picture());
  if (extension_of(path) != ".svg" && extension_of(path) != ".png") {
    throw InputError(fmt::format("{} {}: neither .svg nor .png", option, path),
                     fmt::format("name a picture, e.g. {} step.svg", option));
  }
  require_gnuplot();
}

void write_picture(const Picture& picture, const std::string& path) {
  if (path.empty()) return;
  write_file(path, draw(picture, extension_of(path).substr(1)));
}

}  // namespace spillway::cli
