"""Policies in Python: the schedules are what they say, and are those of C++ where they say the
same."""

import itertools
import os

import numpy as np
import policies_for_tests
import pytest
from conftest import TESTBED, WORKLOAD

import spillway


def simulate(policy, **more):
    return spillway.simulate(**TESTBED, policy=policy, **{**WORKLOAD, **more})


def plugin(name):
    folder = os.environ.get("SPILLWAY_PLUGINS_FOLDER")
    if not folder:
        pytest.skip("SPILLWAY_PLUGINS_FOLDER names no folder of plugins")
    return os.path.join(folder, name + ".so")


def test_a_policy_is_named_by_text_class_or_object():
    by_text = simulate("hybrid-in-python:lower=0.25")
    assert by_text.policy == "hybrid-in-python:lower=0.25"
    hybrid = policies_for_tests.Hybrid(lower=0.25)
    assert str(hybrid) == "hybrid-in-python:lower=0.25"
    assert simulate(hybrid).fingerprint == by_text.fingerprint
    assert simulate(policies_for_tests.Hybrid).policy == "hybrid-in-python"
    compared = spillway.compare(**TESTBED, **WORKLOAD)
    assert compared["hybrid-in-python"].fits
    listed = spillway.policy("hybrid-in-python")
    assert listed["origin"] == "python" and listed["from"] == "policies_for_tests.Hybrid"
    assert [one["name"] for one in listed["options"]] == ["lower", "optimizer_ssd", "retention"]


def test_its_schedule_is_that_of_the_same_policy_in_c_plus_plus():
    if "hybrid" not in {one["name"] for one in spillway.policies()}:
        assert spillway.load_plugin(plugin("hybrid")) == ["hybrid"]
    for lower, ssd, batch in itertools.product((0, 0.5, 1), (0, 0.5), (1, 4)):
        options = f"lower={lower},optimizer_ssd={ssd}"
        one = simulate(f"hybrid-in-python:{options}", batch=batch)
        other = simulate(f"hybrid:{options}", batch=batch)
        assert one.step_seconds == other.step_seconds
        for name in ("kind", "lane", "step", "layer", "micro_batch", "bytes", "start_ns"):
            assert (one.tasks[name] == other.tasks[name]).all()
        assert (one.edges == other.edges).all()


def test_wrong_plugins_are_refused_with_what_to_do():
    with pytest.raises(spillway.InputError, match="built for spillway 0.0.1"):
        spillway.load_plugin(plugin("other_version"))
    with pytest.raises(spillway.InputError, match="no plugin"):
        spillway.load_plugin(plugin("no_plugin"))


def test_the_default_order_of_work_is_the_plans():
    for snake in ("on", "off"):
        result = simulate(f"vertical-in-python:state_ssd=0.5,snake={snake}")
        same = simulate(result.plan)
        assert (result.tasks == same.tasks).all()


def test_values_of_options_are_those_of_python():
    seen = {}

    class Seen(policies_for_tests.Vertical):
        """remembers its options"""

        name = "seen-in-python"

        def plan(self, problem, costs):
            seen.update({name: getattr(self, name) for name in self.options()})
            assert costs.forward_seconds() > 0 and costs.pcie_seconds(1e9) > 0
            assert problem.model.layers == 4 and problem.workload.micro_batches == 4
            return super().plan(problem, costs)

    simulate(Seen(state_ssd=0.25, slots=3, checkpoints="gpu", snake=True, group=1000))
    assert seen == {"state_ssd": 0.25, "slots": 3, "checkpoints": "gpu", "snake": True,
                    "group": 1000}
    assert all(type(value) is kind for value, kind in
               zip(seen.values(), (float, int, str, bool, int)))


@pytest.mark.parametrize(("options", "message"), [
    ("slots=5", "option slots=5 is not a whole number from 0 to 4"),
    ("slots=1.5", "is not a whole number"),
    ("checkpoints=ssd", "is not one of gpu | host"),
    ("snake=maybe", "is not one of on | off"),
    ("state_ssd=2", "is not a number from 0 to 1, or auto"),
    ("nothing=1", "has no option 'nothing'"),
])
def test_values_outside_of_a_domain_are_refused(options, message):
    with pytest.raises(spillway.InputError) as raised:
        simulate(f"vertical-in-python:{options}")
    assert message in raised.value.message


def test_every_sample_of_every_option_builds():
    for one in spillway.policy("vertical-in-python")["options"]:
        for sample in one["samples"]:
            result = simulate(f"vertical-in-python:{one['name']}={sample}")
            assert result.fits


def test_open_options_are_settled_by_what_fits():
    roomy = simulate("vertical-in-python:group=200000")
    assert roomy.policy == "vertical-in-python:state_ssd=0,group=200000"
    tight = simulate("vertical-in-python:group=200000",
                     host_memory=int(roomy["memory.host.peak_bytes"] * 0.8))
    assert float(tight.policy.split("state_ssd=")[1].split(",")[0]) > 0


def test_a_policy_refuses_a_problem():
    with pytest.raises(spillway.InputError) as raised:
        simulate("vertical-in-python", sequence=13)
    assert (raised.value.message, raised.value.hint) == ("13 brings bad luck", "take 14")
    compared = spillway.compare(**TESTBED, **{**WORKLOAD, "sequence": 13})
    assert compared.refused["vertical-in-python"].startswith("13 brings bad luck")


def test_an_order_that_is_none_is_refused_with_the_call_that_is_wrong():
    class Backwards(spillway.Policy):
        """backward first"""

        name = "backwards-in-python"

        def plan(self, problem, costs):
            return spillway.Plan()

        def step(self, step):
            step.backward(0, 0)

    with pytest.raises(spillway.InputError, match="step 0: backward of layer 0, micro-batch 0: its "
                                                  "forward is not complete"):
        simulate(Backwards)

    class OutOfRange(policies_for_tests.Hybrid):
        """says what there is not"""

        name = "out-of-range-in-python"
        call = spillway.Option("forward", spillway.Choice("forward", "backward", "update", "part"))

        def step(self, step):
            if self.call == "update":
                step.update(99)
            elif self.call == "part":
                step.update(0, 0.5, 2.0)
            else:
                getattr(step, self.call)(0, 99)

    for call, what in {"forward": "micro-batches are 0 to 3", "backward": "micro-batches are 0 to 3",
                       "update": "0 to 4", "part": "0.5 to 2 is no part"}.items():
        with pytest.raises(spillway.InputError, match=what):
            simulate(OutOfRange(call=call))

    class Lacks(spillway.Policy):
        """leaves out the backward of a layer"""

        name = "lacks-in-python"

        def plan(self, problem, costs):
            return spillway.Plan()

        def step(self, step):
            for m in step.ascending():
                for layer in step.upward():
                    step.forward(layer, m)
                for layer in step.downward():
                    if layer > 0:
                        step.backward(layer, m)

    with pytest.raises(spillway.InputError, match="backward of layer 0, micro-batch 0: it is miss"):
        simulate(Lacks)


def test_an_exception_of_the_policy_is_raised_as_it_is():
    class Fails(spillway.Policy):
        """fails"""

        name = "fails-in-python"

        def plan(self, problem, costs):
            return {}["missing"]

    with pytest.raises(KeyError, match="missing"):
        simulate(Fails)
    with pytest.raises(KeyError, match="missing"):
        spillway.sweep({**TESTBED, **WORKLOAD, "policy": [Fails, "resident"]}, jobs=2)

    class NoPlan(spillway.Policy):
        """returns no plan"""

        name = "no-plan-in-python"

        def plan(self, problem, costs):
            return "gpu"

    with pytest.raises(TypeError, match="spillway.Plan"):
        simulate(NoPlan)


def test_what_is_lent_is_not_kept():
    kept = []

    class Keeps(policies_for_tests.Hybrid):
        """keeps what it was lent"""

        name = "keeps-in-python"

        def plan(self, problem, costs):
            kept.append(costs)
            return super().plan(problem, costs)

        def step(self, step):
            kept.append(step)
            super().step(step)

    simulate(Keeps)
    for one in kept:
        with pytest.raises(spillway.InputError, match="has returned"):
            one.forward(0, 0) if isinstance(one, spillway.Step) else one.forward_seconds()


def test_what_is_no_policy_is_not_registered():
    class Named(spillway.Policy):
        """has a name that is taken"""

        name = "greedysnake"

        def plan(self, problem, costs):
            return spillway.Plan()

    with pytest.raises(spillway.InputError, match="greedysnake already, which is built in"):
        spillway.register(Named)

    class Planless(spillway.Policy):
        name = "planless-in-python"

    with pytest.raises(spillway.InputError, match="has no plan"):
        spillway.register(Planless)

    class WrongDefault(policies_for_tests.Hybrid):
        """its default is outside of the domain"""

        name = "wrong-default-in-python"
        lower = spillway.Option(2, spillway.fraction)

    with pytest.raises(spillway.InputError, match="lower: 2 is not a number from 0 to 1"):
        spillway.register(WrongDefault)
    with pytest.raises(spillway.InputError, match="no class"):
        spillway.register("greedysnake")


def test_a_class_written_anew_takes_the_place_of_the_one_before():
    def of_row(row):
        class Anew(spillway.Policy):
            """written again and again"""

            name = "anew-in-python"

            def plan(self, problem, costs):
                return spillway.Plan(parameters__rest={"host": 1}, order__row=row)

        return Anew

    counts = [simulate(of_row(row)).tasks.size for row in (0, 1)]
    assert simulate("anew-in-python").tasks.size == counts[1]
    assert counts[0] != counts[1]


def test_it_is_swept_by_its_options_in_parallel():
    swept = spillway.sweep({**TESTBED, **WORKLOAD, "policy": "hybrid-in-python",
                            "hybrid-in-python.lower": [0, 0.5, 1],
                            "hybrid-in-python.optimizer_ssd": [0, 0.5]}, jobs=4)
    assert swept.ok == 6
    times = np.array([row[swept.columns.index("step_seconds")] for row in swept.rows], float)
    assert (times > 0).all()


def test_its_schedules_are_free_of_races_and_compute_what_they_must():
    checks = pytest.importorskip("spillway_schedule_checks",
                                 reason="built with -DSPILLWAY_PYTHON=ON and the tests")
    for policy in ("hybrid-in-python", "hybrid-in-python:lower=0,optimizer_ssd=0.5",
                   "hybrid-in-python:lower=1,optimizer_ssd=1", "vertical-in-python:snake=on",
                   "vertical-in-python:checkpoints=gpu,state_ssd=0.5,group=20000"):
        for layers, batch in itertools.product((1, 2, 3, 7), (1, 2, 5)):
            result = simulate(policy, batch=batch, set={"model.layers": layers}, steps=3)
            assert checks.find_error(result._core) == ""
    # And the checks find what is wrong, if anything is.
    assert checks.find_error(simulate("resident")._core) == ""
