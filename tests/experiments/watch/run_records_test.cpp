// The files that a run writes about itself: they follow from metrics.jsonl, also where a run is
// resumed.
#include "experiments/watch/run_records.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "base/errors.hpp"
#include "experiments/watch/run_events.hpp"
#include "experiments/watch/tensorboard.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Lines = std::vector<std::string>;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Lines lines_of_file(const fs::path& path) {
  Lines lines;
  std::istringstream text(text_of(path));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

ordered_json start(std::int64_t first_step) {
  return {{"event", "start"},
          {"model", "gpt-tiny"},
          {"steps", 6},
          {"workload", {{"batch", 4}, {"sequence", 8}}},
          {"first_step", first_step},
          {"time", 1'700'000'000},
          {"evaluation", {{"batches", 2}, {"every", 2}}}};
}

ordered_json step(std::int64_t number) {
  return {{"event", "step"},
          {"step", number},
          {"loss", 5.0 / static_cast<double>(number + 1)},
          {"tokens_per_second", 64.0},
          {"step_seconds", 0.5},
          {"grad_norm", 1.25},
          {"learning_rate", 0.001}};
}

ordered_json evaluation(std::int64_t number) {
  return {{"event", "evaluation"}, {"step", number}, {"loss", 4.0},
          {"perplexity", 54.6},    {"tokens", 64},   {"seconds", 0.25}};
}

// Steps [first, last) with an evaluation before every second one.
void write_steps(RunRecords& records, std::int64_t first, std::int64_t last) {
  for (std::int64_t number = first; number < last; ++number) {
    if (number % 2 == 0) records.write(evaluation(number));
    records.write(step(number));
  }
}

void write_end(RunRecords& records) {
  records.write(evaluation(6));
  records.write({{"event", "end"}, {"steps", 6}});
}

// What a file of TensorBoard's holds, record by record.
Lines records_in(const std::string& bytes) {
  Lines records;
  std::size_t at = 0;
  while (at + 16 <= bytes.size()) {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < 8; ++i)
      length |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
    records.push_back(bytes.substr(at + 12, length));
    CHECK(tensorboard_record(records.back()) == bytes.substr(at, length + 16));
    at += length + 16;
  }
  CHECK(at == bytes.size());
  return records;
}

Lines tensorboard_files(const fs::path& folder) {
  Lines names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("events.out.tfevents.")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("A run that is resumed leaves the rows, scalars and picture of one that was not") {
  const test::TemporaryFolder whole, broken;
  {
    RunRecords records{Directory(whole.path())};
    records.write(start(0));
    write_steps(records, 0, 6);
    write_end(records);
    CHECK(records.warnings().empty());
  }
  {
    RunRecords records{Directory(broken.path())};
    records.write(start(0));
    write_steps(records, 0, 5);  // of which steps 3 and 4 are not committed
  }
  // A crash cuts the last line, of any of the files.
  for (const std::string& name :
       {std::string("metrics.jsonl"), std::string("metrics.csv"), tensorboard_file(1)})
    fs::resize_file(broken / name, fs::file_size(broken / name) - 7);
  {
    RunRecords records(Directory(broken.path()), 3);
    records.write(start(3));
    write_steps(records, 3, 6);
    write_end(records);
    CHECK(records.history().steps().size() == 6);
    CHECK(records.history().evaluations().size() == 4);
    CHECK(records.warnings().empty());
  }
  CHECK(lines_of_file(broken / "metrics.csv") == lines_of_file(whole / "metrics.csv"));
  CHECK(lines_of_file(whole / "metrics.csv").size() == 1 + 6 + 4);
  CHECK(tensorboard_files(whole.path()) == Lines{tensorboard_file(1)});
  CHECK(tensorboard_files(broken.path()) == Lines{tensorboard_file(1), tensorboard_file(2)});
  CHECK(records_in(text_of(broken / tensorboard_file(1))).size() == 1);  // the version alone
  // Two records at the beginning, and one a row; times are those since the last start.
  CHECK(records_in(text_of(whole / tensorboard_file(1))).size() == 2 + 6 + 4);
  CHECK(records_in(text_of(broken / tensorboard_file(2))).size() == 2 + 6 + 4);
  const auto picture = [](const fs::path& folder) {
    std::string text = text_of(folder / "loss.svg");
    const std::string name = folder.filename().string();
    for (std::size_t at = 0; (at = text.find(name)) != std::string::npos;)
      text.erase(at, name.size());
    return text;
  };
  CHECK(picture(broken.path()) == picture(whole.path()));
  CHECK_THAT(picture(whole.path()), Catch::Contains("evaluation loss"));
}

TEST_CASE("Of a run that is resumed often, few empty event files are left") {
  const test::TemporaryFolder folder;
  for (int i = 0; i < 30; ++i) {
    RunRecords records(Directory(folder.path()), i);
    records.write(start(i));
    records.write(step(i));
    CHECK(records.warnings().empty());
  }
  const Lines files = tensorboard_files(folder.path());
  CHECK(files.size() == 11);
  CHECK(files.back() == tensorboard_file(30));
  CHECK(records_in(text_of(folder / files.back())).size() == 2 + 30);
  for (std::size_t i = 0; i + 1 < files.size(); ++i) CHECK(fs::file_size(folder / files[i]) == 40);
}

TEST_CASE("A training that goes on from a step says it, its evaluation and what follows anew") {
  std::string text;
  const auto add = [&](const ordered_json& event) { text += event_line(event) + "\n"; };
  add(start(0));
  add(evaluation(0));
  add(step(0));
  add(step(1));
  add({{"event", "commit"}, {"step", 2}});
  add(evaluation(2));
  const std::string kept = event_line(start(0)) + "\n" + event_line(evaluation(0)) + "\n" +
                           event_line(step(0)) + "\n" + event_line(step(1)) + "\n" +
                           R"({"event":"commit","step":2})" + "\n";
  CHECK(events_before(text, 2) == kept);
  add(step(2));
  text += R"({"event":"step","step":3,"lo)";
  CHECK(events_before(text, 2) == kept);
  CHECK(events_before("no JSON\n[1]\n{\"event\":7}\n{}\n" + text, 2) == kept);
  const std::string until_3 = text.substr(0, text.rfind("{\"event\":\"step\",\"step\":3"));
  CHECK(events_before(text, 3) == until_3);
  // After Ctrl-C; what goes on has another end.
  const ordered_json end = {{"event", "end"}, {"steps", 3}, {"interrupted", true}};
  CHECK(events_before(until_3 + event_line(end) + "\n", 3) == until_3);
}

TEST_CASE("What is a user's under the name of one of these files stays, and training goes on") {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "metrics.csv") << "my own table\n";
  std::ofstream(folder / "loss.svg") << "<svg>my own picture</svg>\n";
  fs::create_directory(folder / tensorboard_file(1));
  RunRecords records{Directory(folder.path())};
  records.write(start(0));
  write_steps(records, 0, 2);
  write_end(records);
  CHECK(records.warnings().size() == 2);
  CHECK_THAT(records.warnings().front(), Catch::Contains("metrics.csv is not written any more"));
  CHECK_THAT(records.warnings().back(), Catch::Contains("loss.svg is not written any more"));
  CHECK(text_of(folder / "metrics.csv") == "my own table\n");
  CHECK(text_of(folder / "loss.svg") == "<svg>my own picture</svg>\n");
  CHECK(fs::exists(folder / tensorboard_file(2)));
  CHECK(lines_of_file(folder / "metrics.jsonl").size() == 1 + 3 + 2);
  std::ofstream(folder / "metrics.jsonl") << "my own notes\n";
  CHECK_THROWS_AS(RunRecords(Directory(folder.path())), InputError);
}

TEST_CASE("A row of the table has the figures of its event, and nothing for what it has not") {
  const test::TemporaryFolder folder;
  RunRecords records{Directory(folder.path())};
  records.write(start(0));
  records.write(evaluation(0));
  ordered_json skipped = step(0);
  skipped["grad_norm"] = nullptr;
  skipped["skipped"] = true;
  skipped["gpu_power_watts"] = 301.5;
  records.write(skipped);
  CHECK(lines_of_file(folder / "metrics.csv") ==
        Lines{"event,step,loss,perplexity,learning_rate,grad_norm,skipped,step_seconds,"
              "tokens_per_second,tokens,seconds,ssd_bytes_read,ssd_bytes_written,gpu_power_watts,"
              "gpu_clock_mhz",
              "evaluation,0,4,54.6,,,,,,64,0.25,,,,", "step,0,5,,0.001,,true,0.5,64,,,,,301.5,"});
}

}  // namespace spillway
