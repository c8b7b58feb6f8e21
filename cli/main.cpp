// spillway: the program. Subcommands are in this folder; errors become messages and exit codes
// here.
#include <fmt/color.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <limits>
#include <new>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/options/number_check.hpp"
#include "cli/options/plugin_option.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/flags.hpp"
#include "cli/text/output.hpp"
#include "exec/ranks/mpi_module.hpp"

namespace {

using namespace spillway;

int complain(const Message& message, const Message& advice, int code) {
  const std::string what = cli::flags_in(message), hint = cli::flags_in(advice);
  const bool colour = isatty(STDERR_FILENO) != 0;
  const auto style =
      colour ? fmt::emphasis::bold | fg(fmt::terminal_color::red) : fmt::text_style();
  // Of several processes, who says it.
  const std::optional<LaunchedRank> rank = launched_rank();
  const std::string who = rank ? fmt::format("spillway, rank {}: ", rank->rank) : "spillway: ";
  std::string text = fmt::format(style, "{}", who) + printable_lines(what) + "\n";
  if (!hint.empty()) text += "  hint: " + printable_lines(hint) + "\n";
  cli::print_error_as_is(text);
  return code;
}

std::vector<CLI::App*> commands(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

void build(CLI::App& app, int& exit_code) {
  app.name("spillway");
  app.set_version_flag("--version", "spillway " SPILLWAY_VERSION);
  app.require_subcommand(1);
  app.footer(
      fmt::format("Exit codes: {} ok, {} the run failed, {} wrong usage or input, {} it does not "
                  "fit, {} interrupted",
                  cli::exit_ok, cli::exit_failed, cli::exit_input, cli::exit_does_not_fit,
                  cli::exit_interrupted));
  cli::add_calibrate(app, exit_code);
  cli::add_estimate(app, exit_code);
  cli::add_fit(app, exit_code);
  cli::add_simulate(app, exit_code);
  cli::add_compare(app, exit_code);
  cli::add_knee(app, exit_code);
  cli::add_tune(app, exit_code);
  cli::add_sweep(app, exit_code);
  cli::add_init(app);
  cli::add_train(app, exit_code);
  cli::add_tokenize(app, exit_code);
  cli::add_data(app, exit_code);
  cli::add_runs(app);
  cli::add_watch(app);
  cli::add_generate(app, exit_code);
  cli::add_chat(app, exit_code);
  cli::add_export(app);
  cli::add_merge(app);
  cli::add_store(app, exit_code);
  cli::add_validate(app, exit_code);
  cli::add_report(app);
  cli::add_meshes(app, exit_code);
  cli::add_pipeline(app, exit_code);
  cli::add_wan_map(app);
  cli::add_papers(app, exit_code);
  cli::add_testbed(app, exit_code);
  cli::add_bench(app, exit_code);
  cli::add_tokenizer(app);
  cli::add_lists(app, exit_code);
  cli::add_plugin_option(app);
  // The last of two wins, so that a setting can be added to a command; options that take many take
  // them all.
  for (CLI::App* command : commands(app)) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_expected_max() == 1) option->take_last();
      cli::check_numbers(*option);
    }
  }
}

// The parser says of an unknown command only that some command is required.
void require_known_command(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands(app)) names.push_back(command->get_name());
  if (argc < 2) {
    throw InputError(
        "no command is given",
        fmt::format("spillway {} ...; `spillway --help` explains them", fmt::join(names, " | ")));
  }
  const std::string name = argv[1];
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  if (name.rfind("-", 0) == 0) {
    if (app.get_option_no_throw(name) != nullptr) return;
    throw InputError(fmt::format("unknown option {} before the command", name),
                     "options follow the command; see `spillway --help`");
  }
  throw InputError(fmt::format("unknown command '{}'", name), unknown_name_hint(name, names));
}

// The message and the hint for what the parser refused.
int complain_of_usage(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  if (parsed.empty()) return complain(error.what(), "see `spillway --help`", cli::exit_input);
  const CLI::App& command = *parsed.front();
  const std::vector<std::string> extra = command.remaining();
  std::string what = fmt::format("{}: {}", command.get_name(), error.what());
  std::string hint = fmt::format("see `spillway {} --help`", command.get_name());
  if (!extra.empty() && extra.front().rfind("-", 0) == 0) {
    std::vector<std::string> known;
    for (const CLI::Option* option : command.get_options())
      known.push_back("--" + option->get_single_name());
    const std::string name = extra.front().substr(0, extra.front().find('='));
    what = fmt::format("{}: unknown option {}", command.get_name(), name);
    if (!near_names(name, known).empty()) hint = unknown_name_hint(name, known);
    if (command.get_name() == "estimate" && name == "--largest")
      hint = "`spillway fit` answers this, with the same options: spillway fit --largest batch";
  }
  return complain(what, hint, cli::exit_input);
}

void parse_and_run(CLI::App& app, int argc, char** argv) {
  try {
    require_known_command(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw;
    std::ostringstream text;  // --help, --version
    app.exit(error, text, text);
    const std::string shown = text.str();
    errno = 0;  // fputs throws nothing, however long the text is
    if (std::fputs(shown.c_str(), stdout) == EOF) cli::fail_output(errno);
  } catch (const std::system_error& error) {
    // What fmt::print throws; flushing says why output failed.
    if (std::ferror(stdout) != 0) cli::fail_output(error.code().value());
    throw;
  } catch (...) {
    std::fflush(stdout);  // what was printed before the failure comes first
    throw;
  }
  cli::flush_output();
}

// Ctrl-C ends the program at once, with the code that a shell gives it; training asks for more
// (cli/stop_signals.hpp). What runs in the background of a script is not asked.
void end_on_interrupt() {
  struct sigaction before {};
  if (::sigaction(SIGINT, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) return;
  std::signal(SIGINT, [](int) {
    constexpr std::string_view message = "\nspillway: interrupted\n";
    static_cast<void>(!::write(STDERR_FILENO, message.data(), message.size()));
    ::_exit(cli::exit_interrupted);
  });
}

// Schedules are built one after another in lists of many megabytes. What one list has freed the
// next one takes; given back to the system in between, every 4 KiB of it would be a page fault.
void keep_freed_memory() {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace

int main(int argc, char** argv) {
  cli::reserve_standard_descriptors();
  end_on_interrupt();
  // Training wants the memory itself.
  if (argc < 2 || std::string_view(argv[1]) != "train") keep_freed_memory();
  std::signal(SIGPIPE,
              SIG_IGN);  // a reader that has ended is ours to notice, not a death
  CLI::App app{
      "Finds the fastest way to train a language model that does not fit in GPU memory, and trains "
      "it that way."};
  int exit_code = cli::exit_ok;
  try {
    cli::guard_standard_output();
    build(app, exit_code);
    parse_and_run(app, argc, argv);
    return exit_code;
  } catch (const cli::ReaderGone&) {
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return complain_of_usage(app, error);
  } catch (const InputError& error) {
    const Message help = "see `spillway --help` and docs/";
    return complain(error.message(), error.advice().empty() ? help : error.advice(),
                    cli::exit_input);
  } catch (const FitError& error) {
    return complain(error.message(), error.advice(), cli::exit_does_not_fit);
  } catch (const cli::Interrupted& error) {
    return complain(error.message(), error.advice(), error.exit_code());
  } catch (const Error& error) {
    return complain(error.message(), error.advice(), cli::exit_failed);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", "close other programs, or lower the memory limits given",
                    cli::exit_failed);
  } catch (const std::system_error& error) {
    return complain(error.what(), MachineError::from_errno("", error.code().value()).hint(),
                    cli::exit_failed);
  } catch (const std::exception& error) {
    return complain(error.what(), "", cli::exit_failed);
  }
}
