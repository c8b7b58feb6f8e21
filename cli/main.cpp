// spillway: the program. Subcommands are in this folder; errors become messages and exit codes here.
#include <fmt/color.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>

#include "base/errors.hpp"
#include "cli/commands.hpp"

namespace {

using namespace spillway;

int complain(const std::string& what, const std::string& hint, int code) {
  const bool colour = isatty(STDERR_FILENO) != 0;
  fmt::print(stderr, colour ? fmt::emphasis::bold | fg(fmt::terminal_color::red) : fmt::text_style(), "spillway: ");
  fmt::print(stderr, "{}\n", what);
  if (!hint.empty()) fmt::print(stderr, "  hint: {}\n", hint);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Finds the fastest way to train a language model that does not fit in GPU memory, and trains it that way."};
  app.name("spillway");
  app.set_version_flag("--version", "spillway " SPILLWAY_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  int exit_code = cli::exit_ok;
  cli::add_calibrate(app, exit_code);
  cli::add_estimate(app, exit_code);
  cli::add_simulate(app, exit_code);
  cli::add_compare(app, exit_code);
  cli::add_train(app, exit_code);
  cli::add_validate(app, exit_code);
  cli::add_lists(app, exit_code);
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0) throw MachineError::from_errno("cannot write to standard output", errno);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(error.what(), "see `spillway --help` and `spillway COMMAND --help`", cli::exit_input);
  } catch (const InputError& error) {
    return complain(error.what(), error.hint(), cli::exit_input);
  } catch (const FitError& error) {
    return complain(error.what(), error.hint(), cli::exit_does_not_fit);
  } catch (const Error& error) {
    return complain(error.what(), error.hint(), cli::exit_failed);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", "close other programs, or lower the memory limits given", cli::exit_failed);
  } catch (const std::exception& error) {
    return complain(error.what(), "", cli::exit_failed);
  }
}
