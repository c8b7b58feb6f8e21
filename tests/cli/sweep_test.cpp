// spillway sweep: the same bytes however a sweep is run, stopped, split or disturbed.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/cli/program.hpp"
#include "tests/cli/small_sweep.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// Long enough to be stopped in the middle.
const std::string longer =
    "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\nmicro_batch = 1\n"
    "[[axis]]\npolicy = [\"zero-infinity\", \"fuyou\", \"greedysnake\"]\n"
    "[[axis]]\nbatch = [8, 16, 24, 32]\n"
    "[[axis]]\n\"gpu.flops\" = [\"1TFLOPS\", \"2TFLOPS\", \"3TFLOPS\", \"4TFLOPS\"]\n";

std::string database(const std::string& out) { return read_file(fs::path(out) / "results.sqlite"); }

// Lines of all journals.
std::size_t journal_lines(const fs::path& out) {
  std::size_t lines = 0;
  std::error_code none_yet;
  for (const auto& entry : fs::directory_iterator(out / "parts", none_yet)) {
    const std::string text = read_file(entry.path());
    lines += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  return lines;
}

std::vector<fs::path> journals_of(const std::string& out) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(fs::path(out) / "parts"))
    paths.push_back(entry.path());
  return paths;
}

}  // namespace

TEST_CASE("A sweep writes one row a point, in axis order, with reasons where there is no result") {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const Outcome outcome = run(sweep(folder.write("s.toml", small_sweep), out));
  INFO(outcome.err);
  CHECK(outcome.exit_code == 0);
  // The number of points comes first.
  CHECK_THAT(
      outcome.out,
      Catch::StartsWith("small: 18 points, 6 with invalid settings\n"
                        "  6 points: micro-batch 4 does not divide batch 6 (use "
                        "micro_batch = 3 or micro_batch = 6)\ntestbed: 1 value of the machine, "
                        "assumed or derived from such, may move times: `spillway simulate` says "
                        "how far\n18 to run"));
  CHECK_THAT(outcome.err, Catch::Contains("18/18 points, 100 %"));
  const Words lines = lines_of(results(out));
  REQUIRE(lines.size() == 19);
  CHECK_THAT(lines[0],
             Catch::StartsWith("policy,batch,micro_batch,host.memory,status,reason,hint,"
                               "result.policy,result.model,result.machine,result.framework,"
                               "workload.batch,"));
  CHECK_THAT(lines[0], Catch::Contains(",step_seconds,") && Catch::Contains(",phases.forward,") &&
                           Catch::Contains(",lanes.gpu.compute.busy_fraction,") &&
                           Catch::Contains(",memory.host.peak_bytes,"));
  CHECK_THAT(lines[1], Catch::StartsWith(
                           "resident,2,1,1MB,ok,,,resident,gpt-tiny,testbed,spillway,2,1,2,16,"));
  CHECK_THAT(lines[5], Catch::StartsWith("resident,6,4,1MB,invalid,micro-batch 4 does not divide"));
  CHECK_THAT(lines[7], Catch::StartsWith("zero-infinity,2,1,1MB,does not fit,"));
  CHECK_THAT(lines[7], Catch::Contains("does not fit in host memory"));
  CHECK_THAT(lines[18], Catch::StartsWith("greedysnake,6,4,1GB,invalid,"));
  for (const std::string& line : lines) CHECK(line.back() == '\r');
}

TEST_CASE("A row says what simulate says of the same settings") {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "s.toml",
      "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\nbatch = 4\n"
      "micro_batch = 2\npolicy = \"fuyou\"\n[[axis]]\n\"host.memory\" = [\"300MB\"]\n"
      "\"model.layers\" = [3]\n");
  REQUIRE(run(sweep(file, folder / "out")).exit_code == 0);
  const Words lines = lines_of(results(folder / "out"));
  const nlohmann::json json =
      run({"simulate", "--model", "gpt-tiny", "--machine", "testbed", "--policy", "fuyou",
           "--batch", "4", "--micro-batch", "2", "--sequence", "16", "--set", "host.memory=300MB",
           "--set", "model.layers=3", "--json"})
          .json();
  for (const char* key : {"step_seconds", "tokens_per_second", "bound_seconds", "efficiency"}) {
    INFO(key);
    CHECK_THAT(lines[1], Catch::Contains("," + json[key].dump() + ","));
  }
}

TEST_CASE("Critical paths and stalls are columns where they are asked for, and else are none") {
  const TemporaryFolder folder;
  const std::string settings =
      "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\nbatch = 4\n"
      "micro_batch = 2\npolicy = \"fuyou\"\n[[axis]]\n\"host.memory\" = [\"1MB\", \"300MB\"]\n";
  const std::string plain = folder.write("p.toml", settings), out = folder / "out";
  REQUIRE(run(sweep(plain, out)).exit_code == 0);
  CHECK_THAT(results(out), !Catch::Contains("critical_path") && !Catch::Contains("stalls"));
  // What has no explanation is run again, once.
  const std::string asked = folder.write("a.toml", "explain = true\n" + settings);
  CHECK(summary(sweep(asked, out))["run"] == 2);
  CHECK(summary(sweep(plain, out) + Words{"--explain"})["run"] == 0);
  const Words lines = lines_of(results(out));
  CHECK_THAT(lines[0], Catch::Contains(",critical_path.chain_seconds,critical_path.first,"
                                       "critical_path.first_share,critical_path.second,") &&
                           Catch::Contains(",stalls.idle_share,stalls.first,stalls.first_share,"));
  const nlohmann::json json = run({"simulate", "--model", "gpt-tiny", "--machine", "testbed",
                                   "--policy", "fuyou", "--batch", "4", "--micro-batch", "2",
                                   "--sequence", "16", "--set", "host.memory=300MB", "--json"})
                                  .json();
  const nlohmann::json& first = json["critical_path"]["parts"][0];
  CHECK_THAT(lines[2], Catch::Contains("," + first["name"].get<std::string>() + ","));
  // The point that does not fit has neither.
  CHECK_THAT(lines[1], Catch::Contains("does not fit"));
  check_refusal(run(sweep(folder.write("w.toml", "explain = 1\n" + settings), folder / "wrong")), 2,
                "explain is neither true nor false", "explain = true");
}

TEST_CASE("The same bytes come from one job, from four, and from shards in one folder") {
  const TemporaryFolder folder;
  const std::string file = folder.write("s.toml", small_sweep);
  CHECK(summary(sweep(file, folder / "one") + Words{"--jobs", "1"})["run"] == 18);
  CHECK(summary(sweep(file, folder / "four") + Words{"--jobs", "4"})["run"] == 18);
  const std::string expected = results(folder / "one");
  CHECK(results(folder / "four") == expected);

  // All shards at once: disjoint, together everything, and the table is there at the end.
  const std::string shards = folder / "shards";
  {
    std::vector<std::unique_ptr<Program>> running;
    for (const char* shard : {"1/3", "2/3", "3/3"}) {
      running.push_back(std::make_unique<Program>(sweep(file, shards) + Words{"--shard", shard}));
    }
    for (auto& program : running) CHECK(program->wait().exit_code == 0);
  }
  CHECK(journal_lines(shards) == 18);
  CHECK(results(shards) == expected);
  // Nothing is left of files half written.
  for (const auto& entry : fs::directory_iterator(shards))
    CHECK_THAT(entry.path().filename().string(), !Catch::StartsWith("."));
  const nlohmann::json merged = summary(sweep(file, shards));
  CHECK(merged["run"] == 0);
  CHECK(merged["missing"] == 0);
  CHECK(results(shards) == expected);
}

TEST_CASE("A shard alone leaves the table to the others, and a run without shards does the rest") {
  const TemporaryFolder folder;
  const std::string file = folder.write("s.toml", small_sweep), out = folder / "out";
  const nlohmann::json first = summary(sweep(file, out) + Words{"--shard", "2/4"});
  CHECK(first["run"] == 5);  // points 2, 6, 10, 14, 18
  CHECK(first["missing"] == 13);
  CHECK(first["results"].is_null());
  CHECK_FALSE(fs::exists(fs::path(out) / "results.csv"));
  CHECK(summary(sweep(file, out))["run"] == 13);
  REQUIRE(run(sweep(file, folder / "whole")).exit_code == 0);
  CHECK(results(out) == results(folder / "whole"));
}

TEST_CASE("Nothing is run again, and only what is new when the file grows") {
  const TemporaryFolder folder;
  const std::string file = folder.write("s.toml", small_sweep), out = folder / "out";
  REQUIRE(run(sweep(file, out)).exit_code == 0);
  const auto written = fs::last_write_time(fs::path(out) / "results.csv");
  const Outcome again = run(sweep(file, out));
  CHECK(again.exit_code == 0);
  CHECK_THAT(again.out, Catch::Contains("nothing to do: all results are in"));
  CHECK(fs::last_write_time(fs::path(out) / "results.csv") == written);

  std::string grown = small_sweep;
  grown.replace(grown.find("\"1GB\"]"), 6, "\"1GB\", \"2GB\"]");
  CHECK(summary(sweep(folder.write("g.toml", grown), out))["run"] == 9);
  // Settings written in another way are the same points; those of batch 6 are invalid as written.
  std::string turned = small_sweep;
  turned.replace(turned.find("[\"1MB\", \"1GB\"]"), 14, "[\"1000MB\", \"1MB\"]");
  CHECK(summary(sweep(folder.write("t.toml", turned), out))["run"] == 3);
}

TEST_CASE("Killed in the middle, time and again, a sweep ends with the bytes of one undisturbed") {
  const TemporaryFolder folder;
  const std::string file = folder.write("s.toml", longer), out = folder / "killed";
  REQUIRE(run(sweep(file, folder / "undisturbed")).exit_code == 0);
  std::size_t before = 0;
  for (int kill = 0; kill < 20; ++kill) {
    Program program(sweep(file, out) + Words{"--jobs", "2"});
    while (program.running() && journal_lines(out) < before + 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    program.send(SIGKILL);
    program.wait();
    const std::size_t now = journal_lines(out);
    CHECK(now >= before + 1);
    before = std::min<std::size_t>(now, 47);
  }
  // What was done is not done again: every point stands in the journals once.
  const std::size_t done = journal_lines(out);
  CHECK(summary(sweep(file, out))["run"] == 48 - done);
  CHECK(journal_lines(out) == 48);
  CHECK(results(out) == results(folder / "undisturbed"));
  CHECK(database(out) == database(folder / "undisturbed"));
}

TEST_CASE("A file with more values, and its axes in another order, runs only what is new") {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const auto file = [&](const std::string& name, const std::string& axes) {
    return folder.write(
        name, "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\n" + axes);
  };
  const std::string policies = "[[axis]]\npolicy = [\"resident\", \"greedysnake\"]\n";
  CHECK(summary(sweep(file("a.toml", policies + "[[axis]]\nbatch = [2, 4]\n"), out))["run"] == 4);
  CHECK(summary(sweep(file("b.toml", "[[axis]]\nbatch = [8, 4, 2]\n" + policies), out))["run"] ==
        2);
  // An axis more, one of whose values is what there was.
  CHECK(summary(sweep(file("c.toml",
                           "[[axis]]\nbatch = [2, 4]\n[[axis]]\nmoments = [\"fp32\", "
                           "\"bf16\"]\n" +
                               policies),
                      out))["run"] == 4);
  // Another framework lays other times over the same schedule.
  CHECK(summary(sweep(file("d.toml", policies + "[[axis]]\nbatch = [2]\n[[axis]]\n"
                                                "framework = [\"spillway\", \"deepspeed-0.9\"]\n"),
                      out))["run"] == 2);
}

TEST_CASE("The table is a SQLite database, too, with typed columns and a key") {
  if (std::system("python3 -c 'import sqlite3' > /dev/null 2>&1") != 0) {
    WARN("there is no python3 with sqlite3");
    return;
  }
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const nlohmann::json json = summary(sweep(folder.write("s.toml", small_sweep), out));
  CHECK(json["database"] == out + "/results.sqlite");
  const auto asked = [&](const std::string& query) {
    const std::string answer = folder / "answer";
    const std::string script = folder.write(
        "ask.py",
        "import sqlite3, sys\nfor row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2]):"
        "\n    print('|'.join(str(cell) for cell in row))\n");
    REQUIRE(std::system(("python3 '" + script + "' '" + out + "/results.sqlite' '" + query +
                         "' > '" + answer + "'")
                            .c_str()) == 0);
    return lines_of(read_file(answer));
  };
  CHECK(asked("select count(*), count(distinct point) from results") == Words{"18|18"});
  CHECK(asked("select status, count(*) from results group by status order by status") ==
        Words{"does not fit|4", "invalid|6", "ok|8"});
  CHECK(asked("select distinct typeof(batch), typeof(policy), typeof(step_seconds) from results "
              "where status = \"ok\"") == Words{"integer|text|real"});
  CHECK(asked("select policy, batch, \"host.memory\" from results limit 1") ==
        Words{"resident|2|1MB"});
  CHECK(asked("select count(*) from results where status = \"invalid\" and step_seconds is null") ==
        Words{"6"});
}

TEST_CASE("Two hosts at the same points at once write a journal each, and lose nothing") {
  const TemporaryFolder folder;
  const std::string file = folder.write("s.toml", longer), out = folder / "both";
  REQUIRE(run(sweep(file, folder / "undisturbed")).exit_code == 0);
  const Words shard = sweep(file, out) + Words{"--shard", "1/1", "--jobs", "1"};
  Program here(shard);
  while (here.running() && journal_lines(out) < 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  here.send(SIGSTOP);  // its lock is held until the other has ended
  bool is_other = false;
  Outcome there;
  std::thread([&] {
    is_other = ::unshare(CLONE_NEWUTS) == 0 && ::sethostname("other", 5) == 0;
    if (is_other) there = run(shard);
  }).join();
  // All points have a result by then: a third has nothing to write, and needs no journal.
  const Outcome third = run(shard);
  here.send(SIGCONT);
  CHECK(here.wait().exit_code == 0);
  if (!is_other) {
    WARN("this user cannot start a program under another host name");
    return;
  }
  CHECK(there.exit_code == 0);
  CHECK(third.exit_code == 0);
  CHECK(journals_of(out).size() == 2);
  CHECK(results(out) == results(folder / "undisturbed"));
  CHECK(summary(sweep(file, out))["run"] == 0);
}

TEST_CASE("A torn last line is found, dropped and its point run again") {
  const TemporaryFolder folder;
  const std::string file = folder.write("s.toml", small_sweep), out = folder / "out";
  REQUIRE(run(sweep(file, out)).exit_code == 0);
  const std::string expected = results(out);
  const fs::path journal = journals_of(out).at(0);
  fs::resize_file(journal, fs::file_size(journal) - 7);
  fs::remove(fs::path(out) / "results.csv");
  const Outcome outcome = run(sweep(file, out));
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("1 line torn or damaged in the journals, dropped"));
  CHECK_THAT(outcome.out, Catch::Contains("1 to run, 17 done"));
  CHECK(results(out) == expected);
}

TEST_CASE("On a full disk a sweep stops with a message, and loses nothing") {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() / "disk", "12k");
  if (!disk.mounted()) {
    WARN(disk.why_not());
    return;
  }
  const std::string file = folder.write("s.toml", small_sweep), out = folder / "disk/out";
  check_complaint(run(sweep(file, out)), 1, "No space left on device", "free space");
  const std::size_t kept = journal_lines(out);
  CHECK(kept > 0);
  CHECK(kept < 18);
  // What was kept is whole: moved to where there is room, it is not run again.
  fs::copy(out, folder / "out", fs::copy_options::recursive);
  CHECK(summary(sweep(file, folder / "out"))["run"] == 18 - kept);
  REQUIRE(run(sweep(file, folder / "whole")).exit_code == 0);
  CHECK(results(folder / "out") == results(folder / "whole"));
}

TEST_CASE("Bad sweeps and options are refused before anything is written") {
  const TemporaryFolder folder;
  const std::string good = folder.write("good.toml", small_sweep), out = folder / "out";
  const std::string bad =
      folder.write("bad.toml", "[fixed]\nmodel = \"gpt-tiny\"\nssd.cuont = 3\n");
  const std::string plot =
      folder.write("plot.toml", small_sweep + "[[plot]]\nkind = \"lines\"\nx = \"ssd.count\"\n");
  check_refusal(run(sweep(bad, out)), 2, bad + ":3:5: unknown key ssd.cuont", "ssd.count");
  check_refusal(run(sweep(plot, out)), 2, "names ssd.count, which is no axis", "policy");
  check_refusal(run(sweep(folder / "none.toml", out)), 2, "none.toml", "spelling");
  check_refusal(run(sweep("none", out)), 2, "none: there is no such file", "experiments/sweeps");
  check_refusal(run({"sweep", good}), 2, "--out is required", "sweep --help");
  check_refusal(run(sweep(good, good)), 2, "this is a file", "name a folder");
  for (const char* shard : {"0/2", "3/2", "2", "1/0", "a/b", "1/2/3", "-1/2"}) {
    check_refusal(run(sweep(good, out) + Words{"--shard", shard}), 2,
                  std::string("--shard ") + shard + " is not I/N", "--shard 2/8");
  }
  check_refusal(run(sweep(good, out) + Words{"--jobs", "-1"}), 2, "--jobs -1", "one job a core");
  CHECK(folder.listing() == Words{"bad.toml", "good.toml", "plot.toml"});
}

TEST_CASE("Why points are invalid is said on the terminal, also what shows only in their turn") {
  const TemporaryFolder folder;
  // 16-bit gradients go with one micro-batch only; a million micro-batches are too many.
  const std::string file =
      folder.write("s.toml",
                   "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\npolicy = "
                   "\"resident\"\n[[axis]]\nbatch = [2, 1000000]\nmicro_batch = [2, 1]\n");
  const Outcome outcome = run(sweep(file, folder / "out"));
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("1 ok, 0 not fitting, 1 invalid\n  1 point: 1000000 "
                                          "micro-batches of 1 through 4 layers in 6 steps make too "
                                          "long a schedule"));
  const nlohmann::json json = summary(sweep(file, folder / "out"));
  REQUIRE(json["invalid_because"].size() == 1);
  CHECK(json["invalid_because"][0]["points"] == 1);
}

TEST_CASE("A sweep is checked whole before its first point: series, labels, columns") {
  if (!has_gnuplot()) {
    WARN("there is no gnuplot");
    return;
  }
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& plot, const std::string& message) {
    const std::string text =
        "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\n"
        "policy = \"resident\"\n"
        "[[axis]]\nbatch = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]\n"
        "[[axis]]\n\"model.layers\" = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n"
        "[[axis]]\n\"host.memory\" = [\"1GB\", \"2GB\"]\n[[plot]]\n";
    check_refusal(run(sweep(folder.write("s.toml", text + plot), folder / "out")), 2, message, "");
    CHECK(folder.listing() == Words{"s.toml"});
  };
  refused("kind = \"lines\"\nx = \"host.memory\"\n", "plot lines: 120 series are too many");
  refused("kind = \"lines\"\nx = \"batch\"\ny = \"tokens_per_secnd\"\n",
          "there is no column tokens_per_secnd");
  refused("kind = \"lines\"\nx = \"batch\"\ny = \"bound_by\"\nwhere = { \"model.layers\" = 1 }\n",
          "bound_by holds no numbers");
  refused("kind = \"phases\"\nx = \"batch\"\n", "240 labels are too many");
  refused("kind = \"lines\"\nx = \"batch\"\nwhere = { \"model.layers\" = 11 }\n",
          "no point that it draws");
  refused("kind = \"lines\"\nx = \"batch\"\ntitle = \"a\\u001b[2Jb\"\n",
          "title holds the control character U+001B");
  refused("kind = \"lines\"\nx = \"batch\"\nname = \"" + std::string(300, 'n') + "\"\n",
          "the name of a picture has 300 characters");
  const std::string plot = "kind = \"lines\"\nx = \"batch\"\nname = \"p";
  std::string many = plot + "\"\n";
  for (int i = 0; i < 100; ++i) many += "[[plot]]\n" + plot + std::to_string(i) + "\"\n";
  refused(many, "more than 100 pictures of one sweep");
}
