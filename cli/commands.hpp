// The subcommands of `spillway`, one file each. Each function adds its subcommand to the program;
// the callback runs it and stores the exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace spillway::cli {

// Exit codes: see DESIGN in docs/. 0 ok, 1 the run failed, 2 bad usage or input, 3 does not fit.
// 130 Ctrl-C.
inline constexpr int exit_ok = 0, exit_failed = 1, exit_input = 2, exit_does_not_fit = 3;
inline constexpr int exit_interrupted = 130;

void add_calibrate(CLI::App& app, int& exit_code);
void add_estimate(CLI::App& app, int& exit_code);
void add_fit(CLI::App& app, int& exit_code);
void add_simulate(CLI::App& app, int& exit_code);
void add_compare(CLI::App& app, int& exit_code);
void add_knee(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);
void add_sweep(CLI::App& app, int& exit_code);
void add_init(CLI::App& app);
void add_train(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_data(CLI::App& app, int& exit_code);  // show, cache
void add_runs(CLI::App& app);
void add_watch(CLI::App& app);
void add_generate(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_export(CLI::App& app);
void add_merge(CLI::App& app);
void add_store(CLI::App& app, int& exit_code);  // inspect, remove
void add_validate(CLI::App& app, int& exit_code);
void add_report(CLI::App& app);
void add_meshes(CLI::App& app, int& exit_code);
void add_pipeline(CLI::App& app, int& exit_code);
void add_wan_map(CLI::App& app);
void add_papers(CLI::App& app, int& exit_code);
void add_testbed(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_tokenizer(CLI::App& app);              // train, encode, decode, show
void add_lists(CLI::App& app, int& exit_code);  // policies, models, machines

}  // namespace spillway::cli
