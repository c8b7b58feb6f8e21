// Messages name settings; whoever shows them spells them.
#include "base/message.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"

using namespace spillway;

namespace {

std::string as_keyword(const Setting& setting) { return "<" + setting.name + ">" + setting.value; }

}  // namespace

TEST_CASE("a message is put together from text and settings, and each is written as is asked") {
  const Message message = "use " + Setting{"micro_batch", "4"} + " or a smaller " +
                          Setting{"gpu.memory"} + std::string(", or less");
  CHECK(message.text() == "use micro_batch = 4 or a smaller gpu.memory, or less");
  CHECK(message.text(as_keyword) == "use <micro_batch>4 or a smaller <gpu.memory>, or less");
  CHECK(message.settings() == std::vector<Setting>{{"micro_batch", "4"}, {"gpu.memory", ""}});
}

TEST_CASE("a message is empty when there is nothing in it, and can be added to itself") {
  CHECK(Message().empty());
  CHECK(Message("").empty());
  CHECK((Message("") + "").text().empty());
  Message twice = "a " + Setting{"b"};
  twice += twice;
  CHECK(twice.text() == "a ba b");
}

TEST_CASE("errors carry settings in what is wrong and in what to do about it") {
  const InputError error("m.toml", 3, Setting{"batch", "0"} + " is not possible",
                         "use " + Setting{"batch", "8"});
  CHECK(std::string(error.what()) == "m.toml:3: batch = 0 is not possible");
  CHECK(error.message().text(as_keyword) == "m.toml:3: <batch>0 is not possible");
  CHECK(error.hint() == "use batch = 8");
  CHECK(error.advice().text(as_keyword) == "use <batch>8");
  const MachineError machine = MachineError::from_errno("cannot open " + Setting{"ssd", "/d"}, 2);
  CHECK(machine.message().text(as_keyword) == "cannot open <ssd>/d: No such file or directory");
}
