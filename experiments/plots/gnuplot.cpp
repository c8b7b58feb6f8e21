#include "experiments/plots/gnuplot.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "experiments/calibrate/scratch_folder.hpp"
#include "traces/file_sink.hpp"

extern char** environ;

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& plot_files();  // experiments/plots/*.gp
}

namespace fs = std::filesystem;

namespace {

constexpr const char* install_hint =
    "install it: apt-get install gnuplot-nox; or leave the pictures out";

const std::string& template_text(const std::string& name) {
  for (const auto& [file, text] : embedded::plot_files()) {
    if (file == name + ".gp") return text;
  }
  bug("there is a template of this name", __FILE__, __LINE__, name);
}

std::string contents_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file && file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  return std::move(text).str();
}

void write(const fs::path& path, const std::string& text) {
  FileSink sink(path.string(), FileSink::Compression::none);
  sink.write(text);
  sink.commit();
}

// Runs gnuplot in `folder`; its messages go to the file `messages` there. Returns its exit status.
int run_gnuplot(const fs::path& folder, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"gnuplot"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "messages", O_WRONLY | O_CREAT, 0600);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, "gnuplot", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) throw MachineError("there is no program gnuplot on the PATH", install_hint);
  if (error != 0) throw MachineError::from_errno("cannot run gnuplot", error);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw MachineError::from_errno("cannot wait for gnuplot", errno);
  }
  return status;
}

std::string first_line(const Picture& picture) {
  return fmt::format("{} {}\n", source_begin, printable(picture.made_by));
}

bool is_whole(const std::string& bytes, const std::string& format) {
  const std::string end = format == "png" ? "IEND" : "</svg>";
  const std::size_t at = bytes.rfind(end);
  return at != std::string::npos && at + 16 > bytes.size();
}

}  // namespace

std::string Picture::script() const {
  std::string text = fmt::format(
      "{3}# To draw it again: gnuplot {0}.gp, or gnuplot -e \"format='png'\" {0}.gp\n"
      "name = {1}\ndata = {2}\n",
      printable(name), gnuplot_text(name), gnuplot_text(name + ".dat"), first_line(*this));
  for (const auto& [variable, expression] : variables) {
    if (expression.front() == '[') {
      text += "array " + variable + expression + "\n";
      continue;
    }
    text += variable + " = " + expression + "\n";
  }
  text += "\n" + template_text("common") + "\n";
  for (const std::string& command : commands) text += command + "\n";
  return text + "\n" + template_text(kind);
}

std::vector<std::pair<std::string, std::string>> Picture::sources() const {
  return {{".gp", script()}, {".dat", first_line(*this) + data}};
}

void require_gnuplot() {
  const ScratchFolder folder(fs::temp_directory_path());
  if (run_gnuplot(folder.path(), {"--version"}) != 0) {
    throw MachineError("gnuplot does not run", install_hint);
  }
}

std::string draw(const Picture& picture, const std::string& format) {
  const ScratchFolder folder(fs::temp_directory_path());
  for (const auto& [ending, text] : picture.sources())
    write(folder.path() / (picture.name + ending), text);
  const int status = run_gnuplot(folder.path(), {"-e", "format='" + format + "'; output='picture'",
                                                 "./" + picture.name + ".gp"});
  std::string bytes = contents_of(folder.path() / "picture");
  const std::string messages = contents_of(folder.path() / "messages");
  if (status != 0 || !is_whole(bytes, format)) {
    std::istringstream lines(messages);
    std::string line, last;
    while (std::getline(lines, line)) {
      if (!line.empty()) last = line;
    }
    throw MachineError(
        fmt::format("gnuplot cannot draw {}.{}: {}", picture.name, format,
                    last.empty() ? "it gives no reason" : last),
        "the terminals svg and pngcairo of gnuplot 5.4 are needed, and room in the folder of "
        "temporary files");
  }
  return bytes;
}

// gnuplot runs what stands in backquotes between double quotes, and cannot read four single quotes
// in a row: hence double quotes, and a backquote by its number.
std::string gnuplot_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : printable_lines(text)) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '`') {
      out += "\\140";
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "\"";
}

std::string unmarked(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::string("\\_^{}@&~").find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string tick_text(const std::string& text) {
  std::string out;
  for (const char c : gnuplot_text(unmarked(printable(text))))
    out += c == '%' ? std::string("%%") : std::string(1, c);
  return out;
}

// Read by Picture::script: [2] = ["a", "b"].
std::string text_array(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ", ") + gnuplot_text(text);
  return fmt::format("[{}] = [{}]", texts.size(), out);
}

}  // namespace spillway
