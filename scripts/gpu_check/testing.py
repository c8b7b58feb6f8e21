"""The parts `build` and `test`: is what runs on this GPU right?"""

import os
import re
import shutil
import signal
import subprocess
import time

from . import machine
from .session import Failure, Skip, last_words, unpack
from .training import POLICIES, Job, losses, train, train_tight
from .verdicts import BF16_TOLERANCE, FP32_TOLERANCE

PRESET = "cuda"
TARGETS = ("spillway", "spillway_cuda", "tests_cuda_gpu", "tests_exec")
PARITY_STEPS = 50
POLICY_STEPS = 20
RESUME_STEPS, COMMITS_BEFORE_KILL = 300, 20


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


def ctest_counts(text):
    """Of what ctest prints at its end; None where it did not come so far. CMake 4 names no failures where there are none."""
    passed = re.search(r"\d+% tests passed(?:, (\d+) tests? failed)? out of (\d+)", text)
    if not passed:
        return None
    return {"tests": int(passed.group(2)), "failed": int(passed.group(1) or 0),
            "skipped": len(re.findall(r"\*\*\*Skipped", text))}


def test(session):
    tests = session.program.parent / "tests"

    def run_ctest():
        finished = session.run(["ctest", "--test-dir", session.program.parent, "-L", "gpu", "--no-tests=error",
                                "--output-on-failure"], 400)
        if session.dry:
            return ""
        counts = ctest_counts(finished.out)
        if not counts:
            raise Failure(last_words(finished))
        session.facts["ctest"] = counts
        if counts["failed"]:
            raise Failure(f"{counts['failed']} of {counts['tests']} tests failed: logs/cuda-tests.log")
        return f"{counts['tests']} tests, {counts['skipped']} skipped"

    session.step("cuda tests", run_ctest)
    session.step("no gpu", lambda: no_gpu(session))
    session.step("policies", lambda: policies(session))
    if machine.is_hopper(session.summary.get("gpu")):
        session.step("policies with wgmma", lambda: policies_with_wgmma(session))
    session.step("resume", lambda: resume(session))
    session.step("parity", lambda: parity(session))
    for tool in ("memcheck", "racecheck"):
        session.step(tool, lambda tool=tool: sanitize(session, tool, tests / "tests_cuda_gpu"))


def tiny(policy, sequence=64, **options):
    return Job("gpt-tiny", policy, 4, 2, sequence, **options)


def policies_with_wgmma(session):
    """The same with attention's kernels for Hopper: heads of 64, and several tiles."""
    with machine.HopperAttention():
        return policies(session, "policies_wgmma", 320, ("--set", "model.heads=2"))


def policies(session, fact="policies", sequence=64, extra=()):
    """Every policy with the least memory it runs in: the same losses and weights as the resident run, bit for bit.

    greedysnake adds up micro-batches in another order, so it is held to that without its snake."""
    rows, reference = [], None
    for policy in POLICIES:
        job = tiny("greedysnake:snake=off" if policy == "greedysnake" else policy, sequence)
        run = session.out / "runs" / f"tiny-{policy}"
        train_tight(session, job, run, POLICY_STEPS, 120, extra)
        if session.dry:
            continue
        result = losses(run)
        reference = reference or result
        rows.append({"policy": job.policy, "gpu_memory": job.gpu_memory, "host_memory": job.host_memory, "steps": POLICY_STEPS,
                     "final_loss": result[0][-1], "weights_hash": result[1], "same": result == reference})
    session.facts[fact] = rows
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
    steps, runs = RESUME_STEPS, session.out / "runs"
    durable = ("--durability", "step")
    train_tight(session, tiny("fuyou"), runs / "straight", steps, 120, durable)
    job = tiny("fuyou", gpu_memory="32MB", host_memory="64MB")

    def kill(process):
        if commits(runs / "killed") >= COMMITS_BEFORE_KILL:
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


SANITIZER_TAG = "[sanitizer]"  # of a small case of every kernel
SANITIZER_SECONDS = 240
# By a part of their mangled names. Those of cuBLASLt would cost most of the time, and what the tools make of them is not ours.
OUR_KERNELS = ("--kernel-name", "kns=spillway")
# The backend checks what every call returns. Here "not ready" would count as an error, and what CUDA's libraries ask of
# a driver that does not know it.
NO_CALLS = ("--report-api-errors", "no")


def sanitizer_tests(program):
    listed = subprocess.run([program, "--list-test-names-only", SANITIZER_TAG], capture_output=True, text=True, check=False)
    names = [line.strip() for line in listed.stdout.splitlines() if line.strip()]
    if not names:
        raise Failure(f"{program.name} lists no test that is tagged {SANITIZER_TAG}")
    return names


def sanitize(session, tool, program, seconds=SANITIZER_SECONDS):
    """compute-sanitizer over the tests made for it, all in one process: starting one takes longer than most of them."""
    sanitizer = machine.find_tool("compute-sanitizer")
    words = [sanitizer or "compute-sanitizer", "--tool", tool, *OUR_KERNELS, *NO_CALLS, "--error-exitcode", 99, program,
             SANITIZER_TAG, "--durations", "yes"]
    if session.dry:
        session.run(words, seconds)
        return ""
    if not sanitizer:
        raise Skip("compute-sanitizer is not installed")
    names = sanitizer_tests(program)
    finished = session.run(words, seconds)
    text = finished.out + finished.err
    if "not supported" in text:
        raise Skip("compute-sanitizer does not support this device")
    ended = set(re.findall(r"^[0-9.]+ s: (.*)$", finished.out, re.MULTILINE))
    missing = [name for name in names if name not in ended]
    session.facts[tool] = {"tests": len(names) - len(missing), "of": len(names), "clean": finished.code == 0}
    if finished.code == 99:
        found = re.findall(r"^========= .*", text, re.MULTILINE)
        raise Failure(f"{found[-1] if found else 'errors'} (the first of them: {found[0] if found else 'see the log'})")
    if finished.code != 0:
        raise Failure(f"exit code {finished.code}: {last_words(finished)}")
    if missing:
        raise Failure(f"{len(missing)} of {len(names)} tests were not reached: {', '.join(missing[:3])}")
    return f"no errors in {len(names)} tests"


def no_gpu(session):
    """Where CUDA sees no GPU, --device cuda says so in one line, and a hint."""
    if "SPILLWAY_CUDA_MODULE" in os.environ:
        raise Skip("SPILLWAY_CUDA_MODULE names a module that sees no CUDA_VISIBLE_DEVICES")
    job = Job("gpt-tiny", "resident", 2, 2, 64)
    finished = session.run(session.spillway("train", "--device", "cuda", *job.words(), "--steps", 1, "--run",
                                            session.out / "runs" / "no-gpu", "--no-export"), 60,
                           env={"CUDA_VISIBLE_DEVICES": ""})
    if session.dry:
        return ""
    said = [line for line in finished.err.splitlines() if line and not line.startswith("  hint: ")]
    session.facts["no_gpu"] = {"code": finished.code, "said": said}
    if finished.code == 0 or len(said) != 1 or "there is no CUDA GPU here" not in said[0]:
        raise Failure(f"exit code {finished.code}, {len(said)} lines: {' / '.join(said)}")
    return said[0]
