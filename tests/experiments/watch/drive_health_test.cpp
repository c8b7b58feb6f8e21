// What drives say of themselves: found below a directory, asked of a smartctl that is a script
// here.
#include "experiments/watch/drive_health.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// /sys of a machine: nvme0n1 with a partition, and dm-0 over that partition and over sda.
class FakeSystem {
 public:
  FakeSystem() {
    const fs::path devices = folder_ / "devices";
    fs::create_directories(devices / "nvme0n1/nvme0n1p1");
    std::ofstream(devices / "nvme0n1/nvme0n1p1/partition") << "1\n";
    fs::create_directories(devices / "nvme0n1/slaves");
    fs::create_directories(devices / "sda");
    fs::create_directories(devices / "dm-0/slaves");
    fs::create_directory_symlink(devices / "nvme0n1/nvme0n1p1", devices / "dm-0/slaves/nvme0n1p1");
    fs::create_directory_symlink(devices / "sda", devices / "dm-0/slaves/sda");
    fs::create_directories(sys() / "dev/block");
    link("259:1", "nvme0n1/nvme0n1p1");
    link("8:0", "sda");
    link("253:0", "dm-0");
  }
  fs::path sys() const { return folder_ / "sys"; }
  void link(const std::string& number, const std::string& device) const {
    fs::create_directory_symlink(folder_ / "devices" / device, sys() / "dev/block" / number);
  }
  // The number of the device that the folder itself lies on.
  std::string own_number() const {
    struct ::stat status {};
    REQUIRE(::stat(folder_.path().c_str(), &status) == 0);
    return std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
  }
  // A program that runs `script`.
  std::string program(const std::string& script) const {
    const fs::path path = folder_ / "smartctl";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(path, fs::perms::owner_all);
    return path.string();
  }
  const fs::path& path() const { return folder_.path(); }

 private:
  test::TemporaryFolder folder_;
};

constexpr const char* nvme_answer =
    R"({"json_format_version":[1,0],"smartctl":{"exit_status":0},"nvme_smart_health_information_log":)"
    R"({"percentage_used":3,"data_units_read":77,"data_units_written":2000000}})";
constexpr const char* sata_answer =
    R"({"logical_block_size":512,"ata_smart_attributes":{"table":[{"id":9,"name":"Power_On_Hours",)"
    R"("raw":{"value":7}},{"id":241,"name":"Total_LBAs_Written","raw":{"value":1000000}}]},)"
    R"("endurance_used":{"current_percent":12}})";

}  // namespace

TEST_CASE("Drives are found below partitions and the device mapper") {
  const FakeSystem system;
  CHECK(drives_below("259:1", system.sys()) == Names{"nvme0n1"});
  CHECK(drives_below("8:0", system.sys()) == Names{"sda"});
  CHECK(drives_below("253:0", system.sys()) == Names{"nvme0n1", "sda"});
  CHECK(drives_below("0:42", system.sys()).empty());
}

TEST_CASE("What a drive says is read from smartctl's answer") {
  const DriveHealth nvme = parse_drive_health(nvme_answer, "/dev/nvme0n1");
  CHECK(*nvme.bytes_written == Approx(2000000 * 512e3));
  CHECK(*nvme.life_used == Approx(0.03));
  const DriveHealth sata = parse_drive_health(sata_answer, "/dev/sda");
  CHECK(*sata.bytes_written == Approx(512e6));
  CHECK(*sata.life_used == Approx(0.12));
  for (const char* none :
       {"", "no JSON", "[]", "{}", R"({"ata_smart_attributes":{"table":[7,{}]}})",
        R"({"nvme_smart_health_information_log":[1]})",
        R"({"nvme_smart_health_information_log":{"percentage_used":"3"}})"}) {
    const DriveHealth nothing = parse_drive_health(none, "/dev/sda");
    CHECK_FALSE(nothing.bytes_written);
    CHECK_FALSE(nothing.life_used);
  }
}

TEST_CASE("The drives below a directory are asked by a program, and what is missing is said") {
  const FakeSystem system;
  system.link(system.own_number(), "nvme0n1/nvme0n1p1");
  DriveSources sources{system.sys(), "/dev", "", 5};
  sources.smartctl =
      system.program("test \"$4\" = /dev/nvme0n1 && echo '" + std::string(nvme_answer) + "'");
  const DrivesHealth health = read_drives_health({system.path(), system.path()}, sources);
  CHECK(health.why_not.empty());
  CHECK(
      drives_json(health).dump() ==
      R"({"drives":[{"device":"/dev/nvme0n1","bytes_written":1024000000000.0,"life_used":0.03}]})");

  sources.smartctl = system.program("echo '{\"smartctl\":{\"exit_status\":2}}'");
  CHECK_THAT(drives_json(read_drives_health({system.path()}, sources)).dump(),
             Catch::Contains("smartctl says nothing of /dev/nvme0n1"));
  sources.smartctl = (system.path() / "not-there").string();
  CHECK_THAT(read_drives_health({system.path()}, sources).why_not,
             Catch::Contains("not installed"));
  // One that never ends, and one that never stops talking.
  sources.seconds = 0;
  sources.smartctl = system.program("exec sleep 600");
  CHECK(read_drives_health({system.path()}, sources).drives.empty());
  sources.seconds = 60;
  sources.smartctl = system.program("exec yes");
  CHECK(read_drives_health({system.path()}, sources).drives.empty());
  // No drive at all: a file system in memory or over a network.
  sources.sys = system.path();
  CHECK_THAT(read_drives_health({system.path()}, sources).why_not,
             Catch::Contains("lies on no drive"));
}

}  // namespace spillway
