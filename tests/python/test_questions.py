"""Simulations, comparisons, searches and sweeps: the numbers are the program's."""

import json
import threading

import numpy as np
import pytest
from conftest import TESTBED, WORKLOAD

import spillway


def simulate(policy="zero-infinity", **more):
    return spillway.simulate(**TESTBED, policy=policy, **{**WORKLOAD, **more})


def without_times(metrics):
    return {key: value for key, value in metrics.items()
            if key not in ("schedule_seconds", "simulate_seconds")}


def test_simulate_says_what_the_program_says(program):
    for policy in ("zero-infinity", "greedysnake:alpha=0.2", "auto"):
        result = simulate(policy, set={"ssd.count": 1}, moments="bf16")
        said = json.loads(program("simulate", "--model", "gpt-tiny", "--machine", "testbed",
                                  "--policy", policy, "--batch", 4, "--micro-batch", 1,
                                  "--sequence", 16, "--set", "ssd.count=1", "--moments", "bf16",
                                  "--json"))
        assert without_times(result.metrics) == without_times(said)
        assert result.step_seconds == said["step_seconds"] == result["step_seconds"]
        assert result["memory.gpu.peak_bytes"] == said["memory"]["gpu"]["peak_bytes"]
        assert result["lanes.ssd.read.bytes"] == said["lanes"]["ssd.read"]["bytes"]


def test_tasks_are_an_array_of_the_schedule():
    result = simulate()
    tasks = result.tasks
    assert tasks.shape == (result["tasks"],)
    assert list(tasks["task"]) == list(range(len(tasks)))
    assert (tasks["end_ns"] >= tasks["start_ns"]).all()
    kind = np.array(spillway.task_kinds)[tasks["kind"]]
    layers, steps, micro_batches = 4, result._core.steps, 4
    assert (kind == "backward").sum() == steps * layers * micro_batches
    # A lane runs its tasks one after another, in order.
    for lane in range(len(spillway.lanes)):
        of_lane = tasks[tasks["lane"] == lane]
        assert (of_lane["start_ns"][1:] >= of_lane["end_ns"][:-1]).all()
    edges = result.edges
    assert (edges["before"] < edges["after"]).all()
    assert (tasks["end_ns"][edges["before"]] <= tasks["start_ns"][edges["after"]]).all()
    buffers = result.buffers
    for tier, name in enumerate(spillway.tiers):
        ends = (buffers["offset"] + buffers["bytes"])[buffers["tier"] == tier]
        peak = result[f"memory.{name}.peak_bytes"]
        assert (ends.max(initial=0) == peak) or name == "ssd"  # the store has copies, too
    with pytest.raises(ValueError):
        tasks["bytes"][0] = 1


def test_a_trace_is_that_of_the_program(program, tmp_path):
    result = simulate()
    path = tmp_path / "trace.json.gz"
    result.trace().write(path)
    read = spillway.read_trace(path)
    assert (read.spans == result.trace().spans).all()
    assert read.metadata["policy"] == "zero-infinity"
    assert (read.spans["start_ns"] == result.tasks["start_ns"]).all()
    said = json.loads(program("validate", path, "--json"))
    assert abs(said["error"]) < 1e-9


def test_compare_has_every_policy_and_those_that_do_not_fit():
    compared = spillway.compare("gpt-6b", "rtx4090-2ssd", batch=8, micro_batch=8)
    names = {one.policy.split(":")[0] for one in compared}
    assert {"resident", "zero-infinity", "greedysnake"} <= names
    assert not compared["resident"].fits and compared["resident"].step_seconds is None
    assert compared.auto.step_seconds == min(one.step_seconds for one in compared if one.fits)
    published = [one for one in compared if one.fits and not one.policy.startswith("spillway:")]
    assert compared.fastest.step_seconds == min(one.step_seconds for one in published)
    two = spillway.compare("gpt-6b", "rtx4090-2ssd", ["zero-infinity", "greedysnake"], batch=8)
    assert [one.policy.split(":")[0] for one in two] == ["zero-infinity", "greedysnake"]


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = spillway.compare("gpt-6b", "rtx4090-2ssd", batch=8).to_pandas()
    assert frame["fastest"].sum() == 1
    assert frame.set_index("policy")["memory.gpu.peak_bytes"].notna().all()
    tasks = simulate().tasks_to_pandas()
    busy = tasks.assign(ns=tasks.end_ns - tasks.start_ns).groupby("lane", observed=True).ns.sum()
    assert busy["gpu.compute"] > 0
    assert isinstance(spillway.machines().to_pandas(), pandas.DataFrame)


def test_what_does_not_fit_says_what_would():
    with pytest.raises(spillway.FitError) as raised:
        spillway.simulate("gpt-13b", "rtx4090-2ssd", "resident", batch=1)
    assert "gpu memory" in raised.value.message
    assert "policy='" in raised.value.hint or "gpu_memory=" in raised.value.hint
    assert "--" not in raised.value.hint


@pytest.mark.parametrize(("settings", "message", "hint"), [
    ({"policy": "nothing"}, "unknown policy 'nothing'", "spillway.load_plugin('FILE')"),
    ({"policy": "greedysnake:alpha=2"}, "alpha=2 is not", "alpha"),
    ({"micro_batch": 3}, "micro-batch 3 does not divide batch 4", "micro_batch=4"),
    ({"batches": 3}, "no setting batches", "help(spillway.simulate)"),
    ({"set": {"ssd.cuont": 3}}, "ssd.cuont", "ssd.count"),
    ({"steps": 0}, "steps=0 is not in", "steady"),
])
def test_wrong_input_says_what_and_what_would_do(settings, message, hint):
    with pytest.raises(spillway.InputError) as raised:
        simulate(**{"policy": "resident", **settings})
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert isinstance(raised.value, ValueError)


def test_plans_are_values():
    plan = spillway.plan(**TESTBED, policy="greedysnake:optimizer_ssd=0.5", **WORKLOAD)
    assert plan.optimizer_state.rest == {"host": 0.5, "ssd": 0.5}
    other = plan.copy()
    other.order.snake = False
    assert other != plan and plan.differences(other)["order.snake"] == (True, False)
    assert spillway.Plan(str(plan)) == plan and hash(spillway.Plan(str(plan))) == hash(plan)
    assert simulate(other).policy.startswith("spillway:")
    with pytest.raises(spillway.InputError, match="is not a number from 0 to 1|is not"):
        plan.order.delayed = 3
    with pytest.raises(spillway.InputError, match="parameters.rest"):
        plan.parameters.rst = 1
    with pytest.raises(AttributeError):
        plan.parameters.rst
    plan.parameters.rest = [{"gpu": 1}, {"gpu": 1}, {"host": 1}, {"host": 1}]
    assert str(plan["parameters.rest"]) == "gpu:1x2/host:1x2"
    assert {field["name"] for field in spillway.Plan.fields()} > {"order.row", "saved.slots"}


def test_tune_finds_nothing_slower_than_published_policies():
    seen = []
    tuned = spillway.tune(**TESTBED, **WORKLOAD, effort=30, threads=1,
                          progress=lambda done, effort: seen.append((done, effort)))
    fastest = spillway.compare(**TESTBED, **WORKLOAD).auto
    assert tuned.bound_seconds <= tuned.best.step_seconds <= fastest.step_seconds * 1.001
    assert tuned.metrics["explored"] > 0 and seen


def test_sweep_of_a_dictionary_of_a_file_and_of_a_folder_that_has_it(program, tmp_path):
    pytest.importorskip("pandas")
    settings = {**TESTBED, "sequence": 16, "micro_batch": 1,
                "policy": ["resident", "zero-infinity"], "batch": np.array([2, 4])}
    swept = spillway.sweep(settings, jobs=1)
    frame = swept.to_pandas()
    assert list(frame["batch"]) == [2, 4, 2, 4]
    assert (frame["status"] == "ok").all() and frame["step_seconds"].dtype == float
    one = simulate("zero-infinity", batch=2)
    row = frame[(frame.policy == "zero-infinity") & (frame.batch == 2)].iloc[0]
    assert row["step_seconds"] == one.step_seconds
    file = tmp_path / "s.toml"
    file.write_text('[fixed]\nmodel = "gpt-tiny"\nmachine = "testbed"\nsequence = 16\n'
                    'micro_batch = 1\n[[axis]]\npolicy = ["resident", "zero-infinity"]\n'
                    "[[axis]]\nbatch = [2, 4]\n")
    of_file = spillway.sweep(file, tmp_path / "out")
    assert of_file.rows == swept.rows and of_file.run == 4
    assert spillway.sweep(file, tmp_path / "out").run == 0
    program("sweep", file, "--out", tmp_path / "by-program", "--json")
    assert (tmp_path / "by-program/results.csv").read_bytes() == (
        tmp_path / "out/results.csv").read_bytes()


def test_estimate_of_a_whole_training():
    result = spillway.estimate("gpt-6b", "rtx4090-2ssd", "zero-infinity", batch=8, tokens=1e9)
    assert result["wear.steps"] == -(-10**9 // (8 * 1024))
    whole = spillway.estimate("gpt-6b", "rtx4090-2ssd", batch=8, run_steps=100)
    assert whole["wear.steps"] == 100
    assert whole.policy == spillway.simulate("gpt-6b", "rtx4090-2ssd", batch=8).policy


def test_lists():
    assert spillway.policy("greedysnake")["options"][0]["values"]
    assert spillway.policies().named("resident")["origin"] == "built in"
    assert spillway.models().named("gpt-13b")["layers"] == 40
    assert spillway.model("gpt-13b", {"layers": 20}).layers == 20
    assert spillway.machine("rtx4090-12ssd", set={"ssd.count": 4}).ssd.count == 4
    assert {"batch", "micro_batch", "sequence"} <= {one["name"] for one in
                                                    spillway.workload_settings()}
    assert "<table>" in spillway.machines()._repr_html_()


def test_others_work_while_c_plus_plus_does():
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    spillway.simulate("gpt-13b", "rtx4090-12ssd", "zero-infinity", batch=32, micro_batch=1)
    after = counted[0]
    done.set()
    thread.join()
    assert after - before > 1000  # none if the interpreter had been locked all the time


def test_fit_says_what_the_program_says(program):
    told = []
    found = spillway.fit(**TESTBED, policies=["zero-infinity", "greedysnake"], least=["gpu", "host"],
                         progress=lambda done, all: told.append((done, all)), **WORKLOAD)
    said = json.loads(program("fit", "--model", "gpt-tiny", "--machine", "testbed", "--policy",
                              "zero-infinity", "--policy", "greedysnake", "--batch", 4,
                              "--micro-batch", 1, "--sequence", 16, "--least", "gpu", "--least",
                              "host", "--json"))
    assert found.metrics == said
    assert found["greedysnake"]["least_memory"]["gpu"]["bytes"] > 0
    assert all(all_ == 4 and 0 <= done <= 4 for done, all_ in told) and told
    least = found["greedysnake"]["least_memory"]["host"]["bytes"]
    assert simulate("greedysnake", host_memory=least).fits
    with pytest.raises(KeyError):
        found["fuyou"]


def test_fit_without_a_batch_asks_for_it():
    found = spillway.fit(**TESTBED, policies="resident", largest="batch", sequence=16)
    assert set(found["resident"]) == {"policy", "largest_batch"}
    assert found["resident"]["largest_batch"]["batch"] > 4
    with pytest.raises(spillway.InputError) as raised:
        spillway.fit(**TESTBED, policies="resident", largest="batch", **WORKLOAD)
    assert "the batch is the answer here" in raised.value.message
    with pytest.raises(spillway.InputError) as raised:
        spillway.fit(**TESTBED, least="gpus", **WORKLOAD)
    assert "gpu, host or ssd" in raised.value.hint


def test_knee_says_what_the_program_says(program):
    found = spillway.knee(**TESTBED, policy="zero-infinity",
                          resources={"ssd.count": [1, 2], "pcie": [1, 4]}, gain=0.05, **WORKLOAD)
    said = json.loads(program("knee", "--model", "gpt-tiny", "--machine", "testbed", "--policy",
                              "zero-infinity", "--batch", 4, "--micro-batch", 1, "--sequence", 16,
                              "--resource", "ssd.count=1,2", "--resource", "pcie=1,4", "--gain",
                              "5%", "--json"))
    plan = said.pop("plan")
    assert found.metrics == said
    assert found.now.step_seconds == plan["step_seconds"]
    assert found.now.policy == plan["policy"]
    assert found.knees == {one["resource"]: one["knee"] for one in said["resources"]}
    assert list(found.knees) == ["ssd.count", "pcie"]
    assert {row["resource"] for row in found.points()} == {"ssd.count", "pcie"}
    memory = spillway.machine("testbed").host.memory
    sizes = spillway.knee(**TESTBED, policy="zero-infinity",
                          resources={"host.memory": [memory, 2 * memory], "ssd.count": 2},
                          **WORKLOAD)
    assert {2.0 * memory, 2.0} <= {row["value"] for row in sizes.points()}

    def stop(done, all):
        calls.append(done)
        raise KeyError("stop")

    calls = []
    with pytest.raises(KeyError):
        spillway.fit(**TESTBED, policies="auto", progress=stop, **WORKLOAD)
    assert len(calls) <= 8
    with pytest.raises(spillway.InputError):
        spillway.knee(**TESTBED, resources=["drives"], **WORKLOAD)
    with pytest.raises(spillway.InputError):
        spillway.knee(**TESTBED, gain=3, **WORKLOAD)
