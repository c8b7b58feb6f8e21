"""Training from Python, by built-in policies and by those of Python."""

import policies_for_tests
import pytest

import spillway


def train(tmp_path, text_file, policy, run, **more):
    settings = {"steps": 6, "batch": 4, "micro_batch": 1, "sequence": 16, "gpu_memory": "64MB",
                "host_memory": "64MB", "no_export": True, **more}
    return spillway.train("gpt-tiny", policy=policy, data=text_file, run=tmp_path / run, **settings)


def test_a_policy_in_python_trains_bit_for_bit_as_resident_does(tmp_path, text_file):
    resident = train(tmp_path, text_file, "resident", "resident")
    assert resident.losses.shape == (6,) and len(set(resident.losses)) == 6
    hybrid = policies_for_tests.Hybrid
    for number, policy in enumerate([hybrid, hybrid(lower=0, optimizer_ssd=1), hybrid(lower=1),
                                     policies_for_tests.Vertical(state_ssd=0.5)]):
        seen = []
        run = train(tmp_path, text_file, policy, f"run-{number}", on_step=seen.append)
        assert (run.losses == resident.losses).all()
        assert run.weights_hash == resident.weights_hash
        assert [step["loss"] for step in seen] == list(run.losses)
        assert run.policy.split(":")[0] == policy.name


def test_its_run_goes_on_to_the_same_weights(tmp_path, text_file, program):
    whole = train(tmp_path, text_file, "resident", "whole")

    def stop_after_three(step):
        if step["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, text_file, policies_for_tests.Hybrid(optimizer_ssd=0.5), "part",
              on_step=stop_after_three)
    rest = spillway.resume(tmp_path / "part")
    assert 0 < rest.first_step < 6 and rest.steps == 6 and not rest.stopped
    assert rest.weights_hash == whole.weights_hash
    assert (rest.losses == whole.losses[rest.first_step:]).all()
    assert rest.policy == "hybrid-in-python:optimizer_ssd=0.5"
    assert "hybrid-in-python" in program("runs", tmp_path)
    config = (tmp_path / "part/config.toml").read_text()
    assert "Python class policies_for_tests.Hybrid" in config


def test_the_program_says_that_the_policy_is_of_python(tmp_path, text_file, program):
    import subprocess

    train(tmp_path, text_file, policies_for_tests.Hybrid, "run")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        program("train", "--resume", "--run", tmp_path / "run", "--steps", 8)
    assert failed.value.returncode == 2
    assert "its policy hybrid-in-python is the Python class policies_for_tests.Hybrid" in (
        failed.value.stderr)


def test_a_trace_has_what_was_measured(tmp_path, text_file):
    run = train(tmp_path, text_file, "zero-infinity", "run")
    trace = run.trace()
    assert trace.metadata["source"] == "executor"
    assert (trace.spans["end_ns"] >= trace.spans["start_ns"]).all()
    assert set(trace.spans["step"]) == set(range(6))


def test_weights_are_exported_and_notes_told(tmp_path, text_file):
    run = train(tmp_path, text_file, "resident", "run", no_export=False)
    assert run.weights.endswith("model.safetensors")


def test_wrong_settings_are_refused(tmp_path, text_file):
    with pytest.raises(spillway.InputError, match="no setting stepz"):
        train(tmp_path, text_file, "resident", "run", stepz=3)
    with pytest.raises(spillway.FitError):
        train(tmp_path, text_file, "resident", "run", gpu_memory="1MB")
    assert not (tmp_path / "run").exists()
    assert {"steps", "learning_rate"} <= {one["name"] for one in spillway.train_settings()}
