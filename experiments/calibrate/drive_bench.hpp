// Measures the directories of the ssd tier through the store that training uses.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "exec/io/io_choice.hpp"
#include "exec/run/arena.hpp"
#include "experiments/calibrate/sampler.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

// Fills in machine.ssd, through rings of `io`: reads and writes alone by size and by queue depth,
// and mixed; with all samples. `brief`: a smaller test file, and no queue depths but the
// executor's. `memory` (at least 64 MiB) is what is written and read into. `next` is told what
// comes, drive_figures(brief) times. Test files are in a folder of their own in each directory:
// what is there before stays as it is. Throws MachineError where the store cannot be made or fails;
// nothing is left in the directories.
void measure_drives(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                    bool brief, const SamplingRule& rule, const Arena& memory, Machine& machine,
                    const std::function<void(const std::string&)>& next);

int drive_figures(bool brief);

}  // namespace spillway
