// The host and the device share one bf16.
#pragma once

#include "exec/bf16.hpp"
