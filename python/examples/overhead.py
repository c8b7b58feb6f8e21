"""What Python costs: python/examples/overhead.py PROGRAM [PLUGIN]

One simulate() at 13B against the time that the library takes for the same (schedule_seconds +
simulate_seconds): in the program, and within that very call, which says what the call adds. And the
time in which a policy in Python builds a schedule against that of the same policy in C++
(tests/plugins/hybrid.cpp, as a plugin). Each is the least of several, taken in turns.
"""

import json
import pathlib
import subprocess
import sys
import time

import spillway

sys.path.append(str(pathlib.Path(__file__).parents[2] / "tests/python"))
import policies_for_tests  # noqa: E402, F401

TIMES = 15
ASKED = {"model": "gpt-13b", "machine": "rtx4090-12ssd"}
WORKLOAD = {"batch": 32, "micro_batch": 1}


def program_seconds(program, policy, *more):
    said = json.loads(subprocess.run(
        [program, "simulate", "--model", ASKED["model"], "--machine", ASKED["machine"], "--policy",
         policy, "--batch", "32", "--micro-batch", "1", "--json", *more],
        check=True, capture_output=True, text=True).stdout)
    return said["schedule_seconds"] + said["simulate_seconds"], said["step_seconds"]


def python_seconds(policy):
    begun = time.perf_counter()
    result = spillway.simulate(**ASKED, policy=policy, **WORKLOAD)
    taken = time.perf_counter() - begun
    return taken, result.step_seconds, result["schedule_seconds"] + result["simulate_seconds"]


def building_seconds(policy):
    result = spillway.simulate("gpt-13b", "h200", policy, **WORKLOAD)
    return result["schedule_seconds"], result["tasks"]


def main(program, plugin=None):
    for policy in ("zero-infinity", "greedysnake"):
        taken = [(program_seconds(program, policy), python_seconds(policy)) for _ in range(TIMES)]
        assert all(by_program[1] == by_python[1] for by_program, by_python in taken)
        by_program = min(one[0][0] for one in taken)
        by_python = min(one[1][0] for one in taken)
        added = sorted(one[1][0] / one[1][2] for one in taken)[TIMES // 2]
        print(f"simulate {policy}: in the program {1e3 * by_program:.1f} ms, from Python "
              f"{1e3 * by_python:.1f} ms, ratio {by_python / by_program:.3f}; "
              f"the call by itself {added:.4f}")
    if plugin:
        spillway.load_plugin(plugin)
        taken = [(building_seconds("hybrid"), building_seconds("hybrid-in-python"))
                 for _ in range(TIMES)]
        tasks = taken[0][0][1]
        in_cpp = min(one[0][0] for one in taken)
        in_python = min(one[1][0] for one in taken)
        print(f"build hybrid: C++ {tasks / in_cpp / 1e6:.2f} million tasks a second, "
              f"Python {tasks / in_python / 1e6:.2f}, ratio {in_cpp / in_python:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
