// Settings as they are given on the command line. The rest of Spillway names settings
// (base/message.hpp); this is the one place that knows their flags.
#pragma once

#include <string>

#include "base/message.hpp"

namespace spillway::cli {

// "micro_batch" -> "--micro-batch", and back.
std::string flag_of(const std::string& setting);
std::string setting_of(const std::string& flag);

// "--micro-batch 4"; a key of a machine or a model file is "--set ssd.count=6", and the limits of
// memory have flags of their own: "--host-memory 287GB".
std::string flag_text(const Setting& setting);

// A message with each setting as its flag.
std::string flags_in(const Message& message);

}  // namespace spillway::cli
