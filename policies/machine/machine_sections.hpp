// The parts of a machine file that are lists: [[gpu.by_shape]], [[ssd.by_count]],
// [[ssd.by_queue_depth]], [[ssd.by_read_share]], [[cluster.collectives]], [[kernel]],
// [[reference]], [[trial]], [sources]. Internal to policies/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/machine/field_reader.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

// Drives that ssd.drive_read and ssd.drive_write of one drive are scaled to, at most.
inline constexpr std::int64_t most_scaled_drives = 64;

// Replaces the key `parts` of `document`, "CARD+HOST", "CARD+HOST+NxDRIVE" (machine_parts.hpp) or
// the name of a built-in file, by what these say and the document does not. Throws InputError with
// the place of the key.
void take_parts(toml::table& document, const std::string& origin);

// Each throws InputError with the place of what is wrong; `node` is the value under its key.
void read_by_shape(const toml::node& node, const std::string& origin, Machine::Gpu& gpu);
void read_by_count(const toml::node& node, const std::string& origin, Machine::Ssd& ssd);
// Of set `set` of the drives.
void read_by_queue_depth(const toml::node& node, const std::string& origin, Machine& machine,
                         int set);
void read_by_read_share(const toml::node& node, const std::string& origin, Machine& machine,
                        int set);
void read_collectives(const toml::node& node, const std::string& origin, Machine::Cluster& cluster);
void read_kernels(const toml::node& node, const std::string& origin,
                  std::vector<KernelTime>& kernels);
void read_references(const toml::node& node, const std::string& origin,
                     std::vector<KernelTime>& references);
void read_trials(const toml::node& node, const std::string& origin, std::vector<TrialTime>& trials);
void read_sources(const toml::node& node, const std::string& origin, const std::string& prefix,
                  Sources& sources);

// Append what the readers read back.
void write_by_shape(const Machine::Gpu& gpu, std::string& text);
void write_by_count(const Machine::Ssd& ssd, std::string& text);
void write_by_queue_depth(const Machine& machine, int set, std::string& text);
void write_by_read_share(const Machine& machine, int set, std::string& text);
void write_collectives(const Machine::Cluster& cluster, std::string& text);
void write_kernels(const std::vector<KernelTime>& kernels, std::string& text);
void write_references(const std::vector<KernelTime>& references, std::string& text);
void write_trials(const std::vector<TrialTime>& trials, std::string& text);

}  // namespace spillway
