// Pictures of sweeps and of single steps.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"
#include "tests/cli/small_sweep.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

TEST_CASE("What stands in a sweep file is shown in pictures, never run by a shell") {
  if (!has_gnuplot()) {
    WARN("there is no gnuplot");
    return;
  }
  const TemporaryFolder folder;
  const std::string ran = folder / "ran";
  const std::string name = "`touch ran` %s 'q' \\\"d\\\" $(touch ran)";
  const std::string axis = "m`touch ran`%s'q'.toml";
  folder.write(axis,
               "[[model]]\nname = \"`touch ran`\"\nlayers = 1\nhidden = 32\nheads = 2\n"
               "vocabulary = 256\npositions = 64\n");
  const std::string file = folder.write(
      "s.toml", "name = \"" + name +
                    "\"\n[fixed]\nmachine = \"testbed\"\nsequence = 16\npolicy = \"resident\"\n"
                    "[[axis]]\nmodel = [\"" +
                    (folder / axis) +
                    "\", \"gpt-tiny\"]\n[[axis]]\nbatch = [2, 4]\n"
                    "[[plot]]\nkind = \"phases\"\nx = \"batch\"\n"
                    "[[plot]]\nkind = \"phases\"\nname = \"turned\"\nx = \"model\"\n"
                    "[[plot]]\nkind = \"lines\"\nx = \"model\"\ntitle = \"" +
                    name + "\"\n");
  const Outcome outcome = run(sweep(file, folder / "out"));
  INFO(outcome.err);
  CHECK(outcome.exit_code == 0);
  for (const std::string title : {"'", "''a''''b", "\\\\", "a\\\""}) {
    INFO(title);
    const std::string quotes = folder.write(
        "q.toml",
        "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\npolicy = "
        "\"resident\"\n[[axis]]\nbatch = [2, 4]\n[[plot]]\nkind = \"lines\"\nx = \"batch\"\n"
        "title = \"" +
            title + "\"\n");
    const Outcome drawn = run(sweep(quotes, folder / "quotes"));
    INFO(drawn.err);
    CHECK(drawn.exit_code == 0);
    fs::remove_all(folder / "quotes");
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
    CHECK(entry.path().filename() != "ran");
}

TEST_CASE("Beyond the drives that a machine file knows, rows and pictures say extrapolated") {
  const TemporaryFolder folder;
  const std::string machine =
      folder.write("m.toml", spillway::small_machine + spillway::small_table);
  const std::string file = folder.write(
      "s.toml", "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"" + machine +
                    "\"\nsequence = 16\nbatch = 2\npolicy = \"zero-infinity\"\n[[axis]]\n"
                    "\"ssd.count\" = [4, 12, 13, 24]\n"
                    "[[plot]]\nkind = \"lines\"\nx = \"ssd.count\"\n");
  const Words plots = has_gnuplot() ? Words{} : Words{"--no-plots"};
  REQUIRE(run(sweep(file, folder / "out") + plots).exit_code == 0);
  const Words lines = lines_of(results(folder / "out"));
  REQUIRE(lines.size() == 5);
  CHECK_THAT(lines[0], Catch::Contains(",extrapolates,extrapolated"));
  // Of 4 and 12 drives, of which the file has rows, the cell is empty.
  CHECK_THAT(lines[2], !Catch::Contains("drives: ssd.by_count"));
  CHECK_THAT(lines[3],
             Catch::Contains(",\"[\"\"13 drives: ssd.by_count has rows for 1 to 12\"\"]\",true"));
  if (!has_gnuplot()) return;
  const std::string script = read_file(folder.path() / "out" / "plots" / "lines.gp");
  CHECK_THAT(script, Catch::Contains("Hollow points: extrapolated") && Catch::Contains("13, 24"));
}

TEST_CASE("Pictures are drawn as SVG and PNG, the same bytes every time") {
  if (!has_gnuplot()) {
    WARN("there is no gnuplot");
    return;
  }
  const TemporaryFolder folder;
  const std::string plots =
      "[[plot]]\nkind = \"roofline\"\n[[plot]]\nkind = \"phases\"\nx = \"batch\"\n"
      "[[plot]]\nkind = \"lines\"\nname = \"memory\"\nx = \"host.memory\"\ny = \"step_seconds\"\n"
      "where = { policy = \"resident\" }\n"
      "[[plot]]\nkind = \"winners\"\nx = \"batch\"\ny = \"host.memory\"\n";
  const std::string file = folder.write("s.toml", small_sweep + plots);
  for (const char* out : {"a", "b"}) {
    const Outcome outcome = run(sweep(file, folder / out));
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
  }
  for (const std::string name : {"roofline", "phases", "memory", "winners"}) {
    INFO(name);
    const std::string svg = read_file(folder.path() / "a" / "plots" / (name + ".svg"));
    const std::string png = read_file(folder.path() / "a" / "plots" / (name + ".png"));
    CHECK_THAT(svg, Catch::StartsWith("<?xml") && Catch::Contains("small"));
    CHECK(png.substr(1, 3) == "PNG");
    CHECK(read_file(folder.path() / "b" / "plots" / (name + ".svg")) == svg);
    CHECK(read_file(folder.path() / "b" / "plots" / (name + ".png")) == png);
    for (const char* ending : {".gp", ".dat"})
      CHECK_THAT(read_file(folder.path() / "a" / "plots" / (name + ending)),
                 Catch::StartsWith("# Made by: spillway sweep "));
  }
  CHECK_THAT(read_file(folder.path() / "a" / "plots" / "phases.svg"), Catch::Contains("backward"));
  CHECK(summary(sweep(file, folder / "c") + Words{"--no-plots"})["plots"].empty());
  CHECK_FALSE(fs::exists(folder.path() / "c" / "plots"));
}

TEST_CASE("An option of one policy chooses among its rows, and leaves those of others in") {
  if (!has_gnuplot()) {
    WARN("there is no gnuplot");
    return;
  }
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "s.toml",
      "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\nmicro_batch = 1\n"
      "[[axis]]\npolicy = [\"zero-infinity\", \"greedysnake\"]\n"
      "[[axis]]\n\"greedysnake.alpha\" = [0, 0.5]\n[[axis]]\nbatch = [1, 2]\n"
      "[[plot]]\nkind = \"lines\"\nx = \"batch\"\nwhere = { \"greedysnake.alpha\" = 0.5 }\n");
  const Outcome outcome = run(sweep(file, folder / "out"));
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const std::string svg = read_file(folder.path() / "out" / "plots" / "lines.svg");
  CHECK_THAT(svg, Catch::Contains("zero-infinity") && Catch::Contains("greedysnake"));
  const std::string data = read_file(folder.path() / "out" / "plots" / "lines.dat");
  INFO(data);
  CHECK(std::count(data.begin(), data.end(), '\n') >= 4);
}

TEST_CASE("simulate draws a steady step") {
  const TemporaryFolder folder;
  const Words command =
      Words{"simulate", "--machine", "testbed", "--policy", "greedysnake"} + tiny_problem();
  check_refusal(run(command + Words{"--gantt", folder / "step.pdf"}), 2, "neither .svg nor .png",
                "step.svg");
  if (!has_gnuplot()) {
    WARN("there is no gnuplot");
    return;
  }
  const Outcome outcome = run(command + Words{"--gantt", folder / "step.svg"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const std::string svg = read_file(folder.path() / "step.svg");
  CHECK_THAT(svg, Catch::Contains("GPU compute") && Catch::Contains("gpt-tiny, greedysnake") &&
                      Catch::Contains("last forward"));
  // With these, boxes narrower than a pixel are not there.
  CHECK_THAT(svg, !Catch::Contains("crispEdges"));
  // Beside it the command, the script and the data, from which gnuplot draws it again.
  CHECK(folder.listing() == Words{"step.dat", "step.gp", "step.svg"});
  CHECK_THAT(read_file(folder.path() / "step.gp"),
             Catch::StartsWith("# Made by: spillway simulate --machine testbed --policy "));
  fs::remove(folder.path() / "step.svg");
  REQUIRE(std::system(("cd '" + folder.path().string() + "' && gnuplot step.gp").c_str()) == 0);
  CHECK(read_file(folder.path() / "step.svg") == svg);
  // What is not its own is not written over.
  folder.write("mine.dat", "1 2 3\n");
  check_refusal(run(command + Words{"--gantt", folder / "mine.svg"}), 2, "mine.dat", "");
}

TEST_CASE("Without gnuplot a sweep with pictures is refused at once, with what to do") {
  const TemporaryFolder folder;
  const std::string file = folder.write("s.toml", small_sweep + "[[plot]]\nkind = \"roofline\"\n");
  // The child inherits the environment of this process.
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", folder.path().c_str(), 1);
  const Outcome refused = run(sweep(file, folder / "out"));
  const Outcome without = run(sweep(file, folder / "out") + Words{"--no-plots"});
  ::setenv("PATH", path.c_str(), 1);
  check_refusal(refused, 1, "there is no program gnuplot on the PATH",
                "apt-get install gnuplot-nox");
  CHECK(without.exit_code == 0);
}
