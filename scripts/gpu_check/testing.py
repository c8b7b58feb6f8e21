"""The parts `build` and `test`: is what runs on this GPU right?"""

import os
import re
import shutil
import signal
import subprocess
import time

from . import machine
from .session import Failure, OutOfTime, Skip, last_words, unpack
from .training import POLICIES, Job, losses, train, train_tight

PRESET = "cuda"
TARGETS = ("spillway", "spillway_cuda", "tests_cuda_gpu", "tests_exec")
PARITY_STEPS = 50

# Relative difference of a step's loss from that of the CPU in fp32. A bf16 number is off by up to 2^-9 of itself;
# losses are means over many, so 1 % is far above what rounding does and far below what a mistake does.
BF16_TOLERANCE = 0.01
FP32_TOLERANCE = 0.0005


def build(session, root, bundle, gpu, architecture):
    """Only for the GPU at hand, so that it fits into minutes."""

    def compile_all():
        settings = {"CMAKE_ARGUMENTS": f"-DCMAKE_CUDA_ARCHITECTURES={architecture or machine.architecture(gpu)}"}
        if bundle:
            settings["SPILLWAY_BUNDLE"] = str(bundle)
        nvcc = machine.find_tool("nvcc")
        if nvcc and not shutil.which("nvcc") and "CUDACXX" not in os.environ:
            settings["CUDACXX"] = nvcc  # CMake looks on PATH alone
        # As a person would type it.
        words = ["env", *(f"{name}={value}" for name, value in settings.items())]
        session.succeed([*words, root / "scripts" / "build", PRESET, *TARGETS], 585)

    session.step("build", compile_all, always=True)


def unpack_bundle(session, bundle):
    """A folder as it is; a .tgz unpacked into OUT/bundle."""
    if not bundle.is_file() or session.dry:
        return bundle
    target = session.out / "bundle"
    unpack(bundle, target)
    folders = [path.parent for path in target.rglob("MANIFEST")]
    if not folders:
        raise Failure(f"{bundle} is no archive of scripts/gpu-bundle: it holds no MANIFEST")
    return folders[0]


def test(session):
    tests = session.program.parent / "tests"

    def run_ctest():
        finished = session.run(["ctest", "--test-dir", session.program.parent, "-L", "gpu", "--no-tests=error",
                                "--output-on-failure"], 400)
        passed = re.search(r"(\d+)% tests passed, (\d+) tests? failed out of (\d+)", finished.out)
        if session.dry:
            return ""
        if not passed:
            raise Failure(last_words(finished))
        skipped = len(re.findall(r"\*\*\*Skipped", finished.out))
        counts = {"tests": int(passed.group(3)), "failed": int(passed.group(2)), "skipped": skipped}
        session.facts["ctest"] = counts
        if counts["failed"]:
            raise Failure(f"{counts['failed']} of {counts['tests']} tests failed: logs/cuda-tests.log")
        return f"{counts['tests']} tests, {skipped} skipped"

    session.step("cuda tests", run_ctest)
    session.step("policies", lambda: policies(session))
    session.step("resume", lambda: resume(session))
    session.step("parity", lambda: parity(session))
    for tool in ("memcheck", "racecheck"):
        session.step(tool, lambda tool=tool: sanitize(session, tool, tests / "tests_cuda_gpu"))


def tiny(policy, **options):
    return Job("gpt-tiny", policy, 4, 2, 64, **options)


def policies(session):
    """Every policy with the least memory it runs in: the same losses and weights as the resident run, bit for bit.

    greedysnake adds up micro-batches in another order, so it is held to that without its snake."""
    rows, reference = [], None
    for policy in POLICIES:
        job = tiny("greedysnake:snake=off" if policy == "greedysnake" else policy)
        run = session.out / "runs" / f"tiny-{policy}"
        train_tight(session, job, run, 20, 120)
        if session.dry:
            continue
        result = losses(run)
        reference = reference or result
        rows.append({"policy": job.policy, "gpu_memory": job.gpu_memory, "host_memory": job.host_memory, "steps": 20,
                     "final_loss": result[0][-1], "weights_hash": result[1], "same": result == reference})
    session.facts["policies"] = rows
    different = [row["policy"] for row in rows if not row["same"]]
    if different:
        raise Failure(f"other losses or weights than resident: {', '.join(different)}")
    return f"{len(rows)} policies, the same losses and weights to the bit"


def commits(run):
    try:
        return (run / "metrics.jsonl").read_text().count('"event":"commit"')
    except OSError:
        return 0


def resume(session):
    """A run that is killed and resumed gives the losses and weights of one that was not."""
    steps, runs = 300, session.out / "runs"
    durable = ("--durability", "step")
    train_tight(session, tiny("fuyou"), runs / "straight", steps, 120, durable)
    job = tiny("fuyou", gpu_memory="32MB", host_memory="64MB")

    def kill(process):
        if commits(runs / "killed") >= 20:
            os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.05)

    finished = train(session, job, runs / "killed", steps, 120, durable, watch=kill)
    before = commits(runs / "killed")
    if not session.dry and finished.code == 0:
        raise Failure(f"it ended before it could be killed, after {before} commits")
    if not session.dry and finished.code != -signal.SIGKILL:
        raise Failure(last_words(finished))
    session.succeed(session.spillway("train", "--resume", "--run", runs / "killed", "--device", job.device, "--quiet"), 120)
    if session.dry:
        return ""
    same = losses(runs / "straight") == losses(runs / "killed")
    session.facts["resume"] = {"steps": steps, "commits_before_kill": before, "same": same}
    if not same:
        raise Failure("the run that was killed and resumed has other losses or weights")
    return f"killed after {before} commits; {steps} losses and the weights are the same to the bit"


def parity(session):
    """Losses of bf16 and fp32 on the GPU beside those of the CPU in fp32."""
    curves = {}
    for name, device, precision in (("cpu", "cpu", "fp32"), ("bf16", "cuda", "bf16"), ("fp32", "cuda", "fp32")):
        job = Job("gpt-small", "resident", 4, 2, 128, gpu_memory="2GB", host_memory="2GB", device=device,
                  precision=precision)
        run = session.out / "runs" / f"parity-{name}"
        finished = train(session, job, run, PARITY_STEPS, 180, threads=max(1, machine.cores() // 2))
        if finished.code != 0:
            if precision == "fp32" and device == "cuda" and "fp32" in finished.err:
                continue  # this build has no such path; said below
            raise Failure(last_words(finished))
        if not session.dry:
            curves[name] = losses(run)[0]
    if session.dry:
        return ""
    facts = {"steps": PARITY_STEPS, "cpu_last_loss": curves["cpu"][-1]}
    for name in ("bf16", "fp32"):
        if name in curves:
            facts[name] = max(abs(a - b) / abs(b) for a, b in zip(curves[name], curves["cpu"]))
    session.facts["parity"] = facts
    if facts["bf16"] > BF16_TOLERANCE:
        raise Failure(f"bf16 losses differ by up to {facts['bf16']:.2%} of the CPU's, more than {BF16_TOLERANCE:.0%}")
    if "fp32" not in facts:
        return f"bf16 within {facts['bf16']:.2g} of the CPU's losses; no fp32 on the GPU in this build"
    if facts["fp32"] > FP32_TOLERANCE:
        raise Failure(f"fp32 losses differ by up to {facts['fp32']:.2g} of the CPU's, more than {FP32_TOLERANCE:g}")
    if facts["fp32"] >= facts["bf16"] > 0:
        raise Failure(f"fp32 ({facts['fp32']:.2g}) is no closer to the CPU's losses than bf16 ({facts['bf16']:.2g})")
    return f"relative to the CPU's losses: bf16 {facts['bf16']:.2g}, fp32 {facts['fp32']:.2g}"


def test_names(program):
    """Those made for a sanitizer, which slows kernels down a hundredfold; else all."""
    for tag in ("[sanitizer]", "~[slow]~[nightly]"):
        listed = subprocess.run([program, "--list-test-names-only", tag], capture_output=True, text=True, check=False)
        names = [line.strip() for line in listed.stdout.splitlines() if line.strip()]
        if names:
            return names
    raise Failure(f"{program} lists no tests")


def sanitize(session, tool, program, seconds=120):
    """compute-sanitizer over one test after the other, as many as fit the time."""
    sanitizer = machine.find_tool("compute-sanitizer")
    if session.dry:
        session.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", 99, program, "[sanitizer]"], seconds)
        return ""
    if not sanitizer:
        raise Skip("compute-sanitizer is not installed")
    names, began, done = test_names(program), time.monotonic(), 0
    for name in names:
        left = seconds - (time.monotonic() - began)
        if left < 5:
            break
        escaped = re.sub(r"([\[\],\\])", r"\\\1", name)
        try:
            finished = session.run([sanitizer, "--tool", tool, "--error-exitcode", 99, program, escaped], left,
                                   note=done == 0)
        except Failure:
            break  # its time is over, which says nothing about the test
        except OutOfTime:
            if done == 0:
                raise
            break
        if "not supported" in finished.out + finished.err:
            raise Skip("compute-sanitizer does not support this device")
        if finished.code == 99:
            summary = re.findall(r"========= .*", finished.out + finished.err)
            raise Failure(f"{name}: {summary[-1] if summary else 'errors'}")
        if finished.code != 0:
            raise Failure(f"{name}: exit code {finished.code}: {last_words(finished)}")
        done += 1
    session.facts[tool] = {"tests": done, "of": len(names)}
    if done == 0:
        raise Failure(f"not one test ended within {seconds} s")
    return f"no errors in {done} of {len(names)} tests"
