// The host and the device share one bf16.
#pragma once

#include "exec/cpu/bf16.hpp"
