// The throttle: a task takes amount / rate, however late the system wakes its lane.
#include "exec/throttle/throttle.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "base/errors.hpp"
#include "policies/common/policy.hpp"

namespace spillway {
namespace {

// A clock that stands still until it is told otherwise, and whose sleeps end late.
class FakeClock : public ThrottleClock {
 public:
  std::int64_t now_ns() override { return now; }
  void sleep_until(std::int64_t time_ns) override {
    if (time_ns > now) now = time_ns + late_ns;
  }
  std::int64_t now = 1'000'000'000;
  std::int64_t late_ns = 0;
};

Schedule small_schedule() {
  Problem problem;
  problem.model = load_model("gpt-tiny", {"layers=3", "hidden=32", "heads=4"});
  problem.machine.name = "test";
  problem.machine.gpu.is_cpu = true;
  problem.machine.gpu.memory = problem.machine.host.memory = std::uint64_t{1} << 30;
  problem.machine.ssd.capacity = std::uint64_t{1} << 30;
  problem.workload = {4, 1, 16, Precision::fp32, GradientWidth::automatic};
  return build_schedule(problem, "zero-infinity", 2);
}

std::vector<TaskId> tasks_of(const Schedule& schedule, Lane lane) {
  std::vector<TaskId> ids;
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    if (schedule.tasks()[id].lane == lane) ids.push_back(id);
  }
  REQUIRE(ids.size() > 3);
  return ids;
}

// Does a task whose real work takes `work_ns`; returns the clock's time at its end.
std::int64_t perform(Throttle& throttle, FakeClock& clock, TaskId id, std::int64_t work_ns) {
  throttle.begin(id);
  clock.now += work_ns;
  throttle.end(id);
  return clock.now;
}

}  // namespace

TEST_CASE("A throttle is written KEY=RATE, and reads back what it writes") {
  const ThrottleRates rates = parse_throttle("h2d=2GB/s,ssd.read=800MB/s,gpu=1.5TFLOPS");
  CHECK(rates.h2d == 2e9);
  CHECK(rates.drives[0].read == 8e8);
  CHECK(rates.gpu == 1.5e12);
  CHECK(rates.d2h == 0);  // not throttled
  CHECK(to_text(rates) == "h2d=2GB/s,ssd.read=800MB/s,gpu=1.5TFLOPS");

  std::string all;
  for (const std::string key :
       {"h2d", "d2h", "ssd.read", "ssd.write", "ssd.total", "gpu", "gpu.optimizer", "optimizer"}) {
    const char* unit = key == "gpu"                                 ? "FLOPS"
                       : key.find("optimizer") != std::string::npos ? "param/s"
                                                                    : "B/s";
    all += (all.empty() ? "" : ",") + key + "=123456789.5" + unit;
  }
  CHECK(parse_throttle(to_text(parse_throttle(all))) == parse_throttle(all));
  CHECK_FALSE(parse_throttle("").any());
  CHECK(to_text(ThrottleRates{}).empty());
}

TEST_CASE("A throttle that cannot be meant is refused, and the message says what to write") {
  const auto complaint = [](const std::string& text) {
    try {
      parse_throttle(text);
    } catch (const InputError& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
    return std::string("no error");
  };
  using Catch::Contains;
  CHECK_THAT(complaint("h2d"), Contains("'h2d' is not KEY=RATE") && Contains("h2d=2GB/s"));
  CHECK_THAT(complaint("h2b=2GB/s"), Contains("unknown key h2b") && Contains("h2d"));
  CHECK_THAT(complaint("h2d=2"), Contains("throttle h2d") && Contains("unit is missing"));
  CHECK_THAT(complaint("gpu=2GB/s"), Contains("throttle gpu") && Contains("compute rate"));
  CHECK_THAT(complaint("h2d=0GB/s"), Contains("h2d=0GB/s nothing would ever be done"));
  CHECK_THAT(complaint("h2d=1GB/s,h2d=2GB/s"), Contains("h2d is given twice"));
  CHECK_THAT(complaint("ssd.total=1GB/s,ssd.read=1GB/s"), Contains("ssd.read and ssd.write too"));
}

TEST_CASE("The modelled time of a task is its amount / the rate of what it uses") {
  const Schedule schedule = small_schedule();
  const Throttle throttle(
      parse_throttle("h2d=1MB/s,d2h=2MB/s,ssd.read=4MB/s,ssd.write=5MB/s,gpu=1GFLOPS,"
                     "optimizer=3Mparam/s,gpu.optimizer=6Mparam/s"));
  const auto expect = [&](Lane lane, auto amount, double rate) {
    for (const TaskId id : tasks_of(schedule, lane)) {
      const Task& task = schedule.tasks()[id];
      if (amount(task) > 0)
        CHECK(throttle.modelled_ns(task) == std::ceil(amount(task) / rate * 1e9));
    }
  };
  const auto bytes = [](const Task& task) { return static_cast<double>(task.bytes); };
  expect(Lane::pcie_h2d, bytes, 1e6);
  expect(Lane::pcie_d2h, bytes, 2e6);
  expect(Lane::ssd_read, bytes, 4e6);
  expect(Lane::ssd_write, bytes, 5e6);
  expect(
      Lane::cpu_optimizer, [](const Task& t) { return static_cast<double>(t.params); }, 3e6);
  expect(
      Lane::gpu_compute, [](const Task& t) { return t.flops; }, 1e9);
  Task on_gpu;
  on_gpu.kind = TaskKind::optimizer;
  on_gpu.lane = Lane::gpu_compute;
  on_gpu.params = 6;
  CHECK(throttle.modelled_ns(on_gpu) == 1000);
  const Throttle copies_only(parse_throttle("h2d=1MB/s"));
  CHECK_FALSE(copies_only.modelled_ns(on_gpu).has_value());
}

TEST_CASE(
    "Late wake-ups do not add up: a lane at work ends n tasks n modelled times after its start") {
  const Schedule schedule = small_schedule();
  FakeClock clock;
  clock.late_ns = 70'000;
  Throttle throttle(parse_throttle("h2d=20MB/s"), clock);
  throttle.begin_run(schedule);
  std::int64_t modelled_end = clock.now;
  for (const TaskId id : tasks_of(schedule, Lane::pcie_h2d)) {
    modelled_end += *throttle.modelled_ns(schedule.tasks()[id]);
    CHECK(perform(throttle, clock, id, 1000) == modelled_end + clock.late_ns);
  }
  CHECK(throttle.warnings().empty());
}

TEST_CASE(
    "A lane that waited gains nothing: the modelled time counts from the last predecessor's end") {
  const Schedule schedule = small_schedule();
  FakeClock clock;
  Throttle throttle(parse_throttle("h2d=20MB/s"), clock);
  throttle.begin_run(schedule);
  const auto copies = tasks_of(schedule, Lane::pcie_h2d);
  perform(throttle, clock, copies[0], 0);

  clock.now += 5'000'000;  // nothing to do, until two other lanes hand something over
  const std::int64_t released = clock.now;
  throttle.released(copies[1], Lane::ssd_read, released);
  throttle.released(copies[1], Lane::gpu_compute, released - 2'000'000);
  clock.now += 90'000;  // the time it takes to wake the lane is not the link's
  const std::int64_t modelled = *throttle.modelled_ns(schedule.tasks()[copies[1]]);
  CHECK(perform(throttle, clock, copies[1], 1000) == released + modelled);

  // A predecessor on the lane itself adds nothing to the order of the lane.
  const std::int64_t end = clock.now;
  clock.now += 30'000;
  throttle.released(copies[2], Lane::pcie_h2d, clock.now);
  CHECK(perform(throttle, clock, copies[2], 0) ==
        end + *throttle.modelled_ns(schedule.tasks()[copies[2]]));
}

TEST_CASE("Work that takes longer than its modelled time is counted, said, and not made up for") {
  const Schedule schedule = small_schedule();
  FakeClock clock;
  Throttle throttle(parse_throttle("h2d=20MB/s"), clock);
  throttle.begin_run(schedule);
  const auto copies = tasks_of(schedule, Lane::pcie_h2d);
  const std::int64_t first = *throttle.modelled_ns(schedule.tasks()[copies[0]]);
  const std::int64_t late = perform(throttle, clock, copies[0], first + 1'000'000);
  CHECK(perform(throttle, clock, copies[1], 0) ==
        late + *throttle.modelled_ns(schedule.tasks()[copies[1]]));
  CHECK(throttle.tasks() == 2);
  REQUIRE(throttle.warnings().size() == 1);
  CHECK_THAT(throttle.warnings()[0], Catch::Contains("pcie.h2d was not reached by 1 of 2 tasks"));
}

TEST_CASE("What is not throttled takes the time it takes") {
  const Schedule schedule = small_schedule();
  FakeClock clock;
  Throttle throttle(parse_throttle("h2d=20MB/s"), clock);
  throttle.begin_run(schedule);
  const std::int64_t began = clock.now;
  CHECK(perform(throttle, clock, tasks_of(schedule, Lane::pcie_d2h)[0], 12345) == began + 12345);
  CHECK(throttle.tasks() == 0);
}

TEST_CASE("A failed run lets a lane go that would sleep for hours") {
  const Schedule schedule = small_schedule();
  FakeClock clock;
  Throttle throttle(parse_throttle("h2d=1B/s"), clock);
  throttle.begin_run(schedule);
  const std::int64_t began = clock.now;
  throttle.cancel();
  CHECK(perform(throttle, clock, tasks_of(schedule, Lane::pcie_h2d)[0], 0) == began);
}

TEST_CASE("A read beside a write gets its share of ssd.total, also when it comes later") {
  const Schedule schedule = small_schedule();
  FakeClock clock;
  // Alone, both go at their own rate; together each gets 3/4 of it.
  Throttle throttle(parse_throttle("ssd.read=40MB/s,ssd.write=40MB/s,ssd.total=60MB/s"), clock);
  throttle.begin_run(schedule);
  const std::int64_t began = clock.now;
  const TaskId read = tasks_of(schedule, Lane::ssd_read)[0];
  const TaskId write = tasks_of(schedule, Lane::ssd_write)[0];
  const auto seconds = [&](TaskId id, double rate) {
    return static_cast<double>(schedule.tasks()[id].bytes) / rate;
  };
  throttle.begin(write);
  throttle.begin(read);
  // Whichever ends first has had 30 MB/s; the other goes on at 40 MB/s from there.
  const double both = std::min(seconds(read, 30e6), seconds(write, 30e6));
  const bool read_first = seconds(read, 30e6) < seconds(write, 30e6);
  const double rest = both + (seconds(read_first ? write : read, 40e6) - both * 30e6 / 40e6);
  throttle.end(read_first ? read : write);
  CHECK(static_cast<double>(clock.now - began) == Approx(both * 1e9).margin(2));
  throttle.end(read_first ? write : read);
  CHECK(static_cast<double>(clock.now - began) == Approx(rest * 1e9).margin(2));
}

}  // namespace spillway
