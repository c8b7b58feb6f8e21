// Runs the targets of this folder without libFuzzer, for the tests of every build:
//
//   tests_fuzz TARGET CORPUS [RUNS [SEED]]     replays CORPUS/TARGET/*, then RUNS mutations of it
//   tests_fuzz TARGET FILE                     replays one input
//
// Mutations follow from the seed. An input that ends in a signal, an exception that is none of
// ours, a property that does not hold or ten seconds without an end is left in a file that the last
// line on standard error names.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SPILLWAY_SANITIZED 1
#endif

#ifdef SPILLWAY_SANITIZED
// So that what a sanitizer finds arrives as a signal, too.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "abort_on_error=1"; }
extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:halt_on_error=1"; }
#endif

namespace spillway::fuzz {

namespace {

namespace fs = std::filesystem;
using Input = std::vector<std::uint8_t>;

constexpr std::size_t longest_input = 16 * 1024;
constexpr unsigned most_seconds = 10;

std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> all;
  return all;
}

// What the handler of signals may touch.
const std::uint8_t* current_data = nullptr;
std::size_t current_size = 0;
std::array<char, 512> crash_path{};

void write_text(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void save_input(int signal) {
  const int file = ::open(crash_path.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool saved =
      file >= 0 && ::write(file, current_data, current_size) == static_cast<ssize_t>(current_size);
  write_text(signal == SIGALRM ? "this input takes more than 10 seconds: " : "this input fails: ");
  write_text(saved ? crash_path.data() : "(it could not be saved)");
  write_text("\n");
  ::signal(signal, SIG_DFL);
  ::raise(signal == SIGALRM ? SIGABRT : signal);
}

void watch_signals() {
  // A stack of its own: an overflow of the usual one is among what is looked for.
  static std::array<char, 64 * 1024> memory;
  stack_t stack{};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  ::sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = save_input;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) {
    ::sigaction(signal, &action, nullptr);
  }
}

// What is asked of memory beyond another gigabyte fails as std::bad_alloc, which no target catches.
// Sanitizers reserve more than that for themselves.
void limit_memory() {
#ifndef SPILLWAY_SANITIZED
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes =
      pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + (std::uint64_t{1} << 30);
  const rlimit limit = {bytes, bytes};
  require(::setrlimit(RLIMIT_AS, &limit) == 0, "the memory of this process can be limited");
#endif
}

void run(Target target, const Input& input) {
  // In a block of just its size, so that sanitizers see what is read beyond it.
  const Input exact(input.begin(), input.end());
  current_data = exact.data();
  current_size = exact.size();
  ::alarm(most_seconds);
  target(exact);
  ::alarm(0);
}

Input read_input(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), "an input can be read: " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Input> read_corpus(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> corpus;
  for (const fs::path& path : paths) corpus.push_back(read_input(path));
  return corpus;
}

// The words of a dictionary of libFuzzer: name="word", with \\, \" and \xAB.
std::vector<Input> read_words(const fs::path& path) {
  std::vector<Input> words;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t begin = line.find('"'), end = line.rfind('"');
    if (line.starts_with('#') || begin == end) continue;
    Input& word = words.emplace_back();
    for (std::size_t at = begin + 1; at < end; ++at) {
      unsigned value = static_cast<unsigned char>(line[at]);
      if (line[at] == '\\' && line[at + 1] == 'x') {
        std::from_chars(line.data() + at + 2, line.data() + at + 4, value, 16);
        at += 3;
      } else if (line[at] == '\\') {
        value = static_cast<unsigned char>(line[++at]);
      }
      word.push_back(static_cast<std::uint8_t>(value));
    }
  }
  return words;
}

class Mutator {
 public:
  Mutator(const std::vector<Input>& corpus, const std::vector<Input>& words, std::uint64_t seed)
      : corpus_(corpus), words_(words), random_(seed) {}

  // An input of the corpus with one to eight changes.
  Input next() {
    Input input = any(corpus_);
    for (std::uint64_t changes = 1 + below(8); changes > 0; --changes) change(input);
    if (input.size() > longest_input) input.resize(longest_input);
    return input;
  }

 private:
  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  const Input& any(const std::vector<Input>& all) { return all[below(all.size())]; }
  std::ptrdiff_t place(const Input& input) {
    return static_cast<std::ptrdiff_t>(below(input.size() + 1));
  }

  void change(Input& input) {
    static const std::vector<Input> numbers = {{'0'},
                                               {'-', '1'},
                                               {'9', '2', '2', '3', '3', '7', '2', '0', '3', '6',
                                                '8', '5', '4', '7', '7', '5', '8', '0', '7'},
                                               {'1', 'e', '3', '0', '8'},
                                               {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
                                               {0, 0, 0, 0, 0, 0, 0, 0x80},
                                               {0xff, 0xff, 0xff, 0x7f}};
    switch (below(7)) {
      case 0:
        if (!input.empty()) input[below(input.size())] ^= static_cast<std::uint8_t>(1 << below(8));
        return;
      case 1:
        if (!input.empty()) input[below(input.size())] = static_cast<std::uint8_t>(below(256));
        return;
      case 2:
        return erase(input, 1 + below(16));
      case 3:
        return insert(input, any(numbers));
      case 4:
        return insert(input, words_.empty() ? any(numbers) : any(words_));
      case 5:
        return insert(input, piece_of(input));
      default:
        return insert(input, piece_of(any(corpus_)));
    }
  }

  Input piece_of(const Input& input) {
    const std::ptrdiff_t begin = place(input);
    const auto left = static_cast<std::uint64_t>(std::ssize(input) - begin);
    const auto size = static_cast<std::ptrdiff_t>(below(std::min<std::uint64_t>(left, 64) + 1));
    return {input.begin() + begin, input.begin() + begin + size};
  }

  void erase(Input& input, std::uint64_t count) {
    const std::ptrdiff_t begin = place(input);
    const std::ptrdiff_t end =
        std::min(std::ssize(input), begin + static_cast<std::ptrdiff_t>(count));
    input.erase(input.begin() + begin, input.begin() + end);
  }

  // In between, or over what is there.
  void insert(Input& input, const Input& piece) {
    const std::ptrdiff_t at = place(input);
    if (below(2) == 0) {
      const auto end = std::min(std::ssize(input), at + std::ssize(piece));
      input.erase(input.begin() + at, input.begin() + end);
    }
    input.insert(input.begin() + at, piece.begin(), piece.end());
  }

  const std::vector<Input>& corpus_;
  const std::vector<Input>& words_;
  std::mt19937_64 random_;
};

std::uint64_t number(const char* text) {
  std::uint64_t value = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  require(error == std::errc() && stop == end, std::string("a number: ") + text);
  return value;
}

int replay(int count, char** arguments) {
  const std::string name = count > 1 ? arguments[1] : "";
  const auto found = targets().find(name);
  if (count < 3 || count > 5 || found == targets().end()) {
    std::fprintf(stderr,
                 "tests_fuzz TARGET CORPUS [RUNS [SEED]]\ntests_fuzz TARGET FILE\ntargets:");
    for (const auto& [known, _] : targets()) std::fprintf(stderr, " %s", known.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  const Target target = found->second;
  std::snprintf(crash_path.data(), crash_path.size(), "%s/crash-%s-%d", fs::current_path().c_str(),
                name.c_str(), ::getpid());
  limit_memory();
  watch_signals();

  const fs::path given = arguments[2];
  if (!fs::is_directory(given)) {
    run(target, read_input(given));
    return 0;
  }
  const std::vector<Input> corpus = read_corpus(given / name);
  require(!corpus.empty(), "there is a corpus in " + (given / name).string());
  for (const Input& input : corpus) run(target, input);
  const std::uint64_t runs = count > 3 ? number(arguments[3]) : 0;
  const std::uint64_t seed = count > 4 ? number(arguments[4]) : std::random_device{}();
  std::printf("%s: %zu inputs of the corpus, %llu mutations with seed %llu\n", name.c_str(),
              corpus.size(), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  const std::vector<Input> words = read_words(given / ".." / "dictionaries" / (name + ".dict"));
  Mutator mutator(corpus, words, seed);
  for (std::uint64_t i = 0; i < runs; ++i) run(target, mutator.next());
  return 0;
}

}  // namespace

bool add_target(const char* name, Target target) { return targets().emplace(name, target).second; }

}  // namespace spillway::fuzz

int main(int count, char** arguments) { return spillway::fuzz::replay(count, arguments); }
