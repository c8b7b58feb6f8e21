#include "cli/options/picture_option.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/errors.hpp"
#include "cli/text/command_text.hpp"
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

const ReplaceOnly& only_a_picture_source() {
  static const ReplaceOnly only = {
      "what a picture is drawn from", [](std::span<const std::byte> head) {
        const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
        return text.starts_with(source_begin);
      }};
  return only;
}

// Beside the picture at `path`.
std::string source_path(const std::string& path, const std::string& ending) {
  return std::filesystem::path(path).replace_extension(ending).string();
}

}  // namespace

void check_picture_path(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  check_output_path(option, path, &only_a_picture());
  if (extension_of(path) != ".svg" && extension_of(path) != ".png") {
    throw InputError(fmt::format("{} {}: neither .svg nor .png", option, path),
                     fmt::format("name a picture, e.g. {} step.svg", option));
  }
  for (const char* ending : {".gp", ".dat"})
    check_output_path(option, source_path(path, ending), &only_a_picture_source());
  require_gnuplot();
}

void write_picture(Picture picture, const std::string& path) {
  if (path.empty()) return;
  picture.made_by = this_command_text();
  write_file(path, draw(picture, extension_of(path).substr(1)), &only_a_picture());
  for (const auto& [ending, text] : picture.sources())
    write_file(source_path(path, ending), text, &only_a_picture_source());
}

}  // namespace spillway::cli
