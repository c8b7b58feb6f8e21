"""Parts that ask whether what is predicted comes true: calibration, then runs that are predicted first."""

import shutil

from .measuring import megabytes, shape_of, threads
from .session import LONG, Failure, Skip, file_name, last_words
from .training import DOES_NOT_FIT, Job, bytes_of, least_limits, train

# Bytes a parameter: bf16 parameters and gradients, fp32 masters and two moments.
STATE_BYTES = 16
ROOMY_GPU_SHARE, ROOMY_HOST_SHARE = 0.5, 0.5  # of the states; of what runs may take of the host


class Sizes:
    """Of the plan: models, sequence, micro-batch, steps."""

    def __init__(self, values):
        self.models, self.large_models = values["models"], values["large_models"]
        self.large_gpu_memory, self.large_batch = values["large_gpu_memory"], values["large_batch"]
        self.sequence, self.micro_batch, self.steps = values["sequence"], values["micro_batch"], values["steps"]


def main_model(session, place, sizes):
    """The largest that the drive holds: 12 bytes of optimizer state a parameter, and as much again for what policies put
    beside it."""
    for model in sizes.models[:-1]:
        if session.dry or shape_of(session, model)["parameters"] * 24 < place.disk() * 0.9:
            return model
    return sizes.models[-1]


def machine_file(session, model):
    return session.out / f"machine-{model}.toml"


def calibrate(session, place, sizes, which):
    """For the runs to come."""
    model = main_model(session, place, sizes) if which == "models" else large_job(session, place, sizes, "greedysnake").model
    return calibrate_model(session, place, sizes, model)


def calibrate_model(session, place, sizes, model):
    """Measures kernels of the model that runs will train, copies, the optimizer and the drive: OUT/machine-MODEL.toml."""
    path = machine_file(session, model)
    session.succeed(session.spillway("calibrate", "--device", "cuda", "--model", model, "--micro-batches", sizes.micro_batch,
                                     "--sequence", sizes.sequence, "--ssd", place.ssd, "--threads", threads(), "--out", path,
                                     "--quiet"), LONG)
    return path.name


def need_machine_file(session, job):
    if not session.dry and not job.machine.exists():
        raise Skip("nothing to predict with: there is no " + job.machine.name)


def settings_of(place):
    """What the drive holds now, whatever it held when it was measured; without commits, which take as much again."""
    return ("--set", f"ssd.capacity={megabytes(place.disk() * 0.9)}", "--durability", "off")


def run(session, place, sizes, name, policy, batch, level):
    """A policy with states that do not fit the GPU memory it is given. Roomy: half of the states' size, and half of what runs
    may take of the host. Tight: the least that fits."""
    model = main_model(session, place, sizes)
    job = Job(model, policy, batch, sizes.micro_batch, sizes.sequence, machine=machine_file(session, model))
    need_machine_file(session, job)
    if level == "tight":
        least_limits(session, job, settings_of(place))
    else:
        states = STATE_BYTES * (1e9 if session.dry else shape_of(session, model)["parameters"])
        job.gpu_memory = megabytes(min(states * ROOMY_GPU_SHARE, bytes_of(place.gpu_memory)))
        job.host_memory = megabytes(place.host_bytes() * ROOMY_HOST_SHARE)
    return train_and_compare(session, place, job, name, level, sizes.steps)


def train_and_compare(session, place, job, name, level, steps):
    safe = file_name(name)
    folder, drive = session.out / "runs" / safe, place.ssd / safe
    trace = session.out / "traces" / f"{safe}.json.gz"
    if not session.dry:
        trace.parent.mkdir(exist_ok=True)
        shutil.rmtree(drive, ignore_errors=True)  # of a call that was killed
        drive.mkdir(parents=True)
    try:
        extra = (*settings_of(place), "--ssd", drive, "--trace", trace)
        finished = train(session, job, folder, steps, LONG, extra, threads())
        # On the GPU it may need a little more than was estimated for the machine file; a roomy limit may be too small, too.
        while finished.code == DOES_NOT_FIT and job.raise_limits(finished.err):
            finished = train(session, job, folder, steps, LONG, extra, threads())
        command = session.commands[-1]
    finally:
        if not session.dry:
            shutil.rmtree(drive, ignore_errors=True)
    if finished.code == DOES_NOT_FIT:
        raise Skip("does not fit: " + last_words(finished))
    if finished.code != 0:
        raise Failure(f"exit code {finished.code}: {last_words(finished)}")
    compared = session.succeed(session.spillway("validate", trace, "--json"), LONG)
    same = Job(**{**vars(job), "machine": folder / "machine.toml"})
    described = session.succeed(session.spillway("simulate", *same.words(), "--durability", "off", "--json"), LONG, note=False)
    if session.dry:
        return ""
    row = row_of(job, name, level, steps, command, compared.json("validate"), described.json("simulate"))
    row["trace"] = trace.name
    rows = [other for other in session.facts.get("validation", []) if other["name"] != name]
    session.facts["validation"] = rows + [row]
    lane = row["busiest"]
    return (f"predicted {row['predicted']:.3g} s, measured {row['measured']:.3g} s ({row['error']:+.1%}); "
            f"{lane} busy {row['lanes'][lane]:.0%}, simulated {row['simulated'][lane]:.0%}")


def row_of(job, name, level, steps, command, compared, described):
    """The busiest lane is that of the simulation: what the schedule was made to wait for."""
    lanes = {lane: times["measured_busy"] for lane, times in compared["lanes"].items()}
    simulated = {lane: times["predicted_busy"] for lane, times in compared["lanes"].items()}
    bound = described.get("bound_seconds")
    return {"name": name, "model": job.model, "policy": job.policy, "batch": job.batch, "micro_batch": job.micro_batch,
            "level": level, "gpu_memory": job.gpu_memory, "host_memory": job.host_memory, "steps": steps,
            "predicted": compared["predicted_step_seconds"], "measured": compared["measured_step_seconds"],
            "error": compared["error"], "extrapolated": compared["extrapolated"], "lanes": lanes, "simulated": simulated,
            "busiest": max(simulated, key=simulated.get), "bound": bound, "bound_by": described.get("bound_by"),
            "of_bound": bound / compared["measured_step_seconds"] if bound else None, "command": command}


# --- a model that is larger than its GPU memory ---


def large_job(session, place, sizes, policy):
    """The largest model that fits drive and host memory; its states are larger than the GPU memory given."""
    for model in sizes.large_models:
        job = Job(model, policy, sizes.large_batch, sizes.micro_batch, sizes.sequence, gpu_memory=sizes.large_gpu_memory,
                  host_memory=place.host_memory, machine=machine_file(session, model))
        if session.dry:
            return job
        # Whether it fits is the same on any machine of these sizes, calibrated or not.
        question = Job(**{**vars(job), "machine": "h200"})
        if session.question("estimate", *question.words(), *settings_of(place), "--json").code == 0:
            return job
    raise Skip(f"no large model fits {place.disk() / 1e9:.0f} GB of drive and {place.host_memory} of host memory")


def large(session, place, sizes, name, policy):
    """What a policy keeps on the drive decides which model is the largest, so that it may not be the one that was calibrated."""
    job = large_job(session, place, sizes, policy)
    if not session.dry and not job.machine.exists():
        calibrate_model(session, place, sizes, job.model)
    return train_and_compare(session, place, job, name, sizes.large_gpu_memory, sizes.steps)
