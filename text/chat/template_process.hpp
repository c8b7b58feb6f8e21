// The child process that renders a model's own chat template: template_worker.py, with python3 and
// jinja2.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_descriptor.hpp"

namespace spillway {

class TemplateProcess {
 public:
  // Starts the first python3 that has jinja2: Debian's, then those on PATH. Throws InputError that
  // says what to install where there is none, MachineError where no process can be made. `first` is
  // what the process is told first, as JSON (template_worker.py), and reply() the answer.
  TemplateProcess(const std::string& first, std::chrono::seconds time);
  TemplateProcess(const TemplateProcess&) = delete;
  TemplateProcess& operator=(const TemplateProcess&) = delete;
  ~TemplateProcess();  // ends the process

  const std::string& reply() const { return reply_; }
  // What the process answers to a message. Throws InputError where it takes longer than its time,
  // ends, or answers more than `most_bytes`; it is then ended.
  std::string ask(const std::string& message, std::uint64_t most_bytes);

 private:
  bool start(const std::string& python, const std::string& first);
  std::string exchange(const std::string& message, std::uint64_t most_bytes);
  void end() noexcept;

  std::chrono::seconds time_;
  pid_t child_ = -1;
  FileDescriptor to_, from_;
  std::string reply_;
};

}  // namespace spillway
