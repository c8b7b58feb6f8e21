"""Parts that ask whether what runs on this GPU is right."""

import os
import re
import signal
import subprocess
import time
import xml.sax.saxutils

from . import machine
from .programs import tests_of
from .session import LONG, Failure, OutOfTime, Skip, last_words
from .training import POLICIES, Job, losses, train, train_tight
from .verdicts import BF16_TOLERANCE, FP32_TOLERANCE

# Tags of tests/cuda; a test with none of them is of "rest".
TAGS = ("matmul", "kernels", "attention", "step", "policies", "resume", "hopper")
AS_XML = ("--reporter", "xml", "--durations", "yes")  # written as it goes, so that it says what a process had done that died
GROUP_SHARE = 0.75  # of a part's time limit: a test that hangs leaves time to try the others alone
ALONE_SECONDS, MOST_ALONE = 60, 6  # tests that failed among others are tried alone


# --- tests of Catch2 ---


def pattern(tag, also=""):
    return ("".join(f"~[{other}]" for other in TAGS) if tag == "rest" else f"[{tag}]") + also


def test_names(program, tags, environment=None):
    listed = subprocess.run([str(program), "--list-test-names-only", tags], capture_output=True, text=True, check=False,
                            env={**os.environ, **(environment or {})})
    return [line.strip() for line in listed.stdout.splitlines() if line.strip()]


# What failed in a test, where, as Catch2's XML has it.
WRONG = re.compile(r'<Expression success="false"[^>]*filename="([^"]*)" line="(\d+)".*?<Expanded>(.*?)</Expanded>', re.DOTALL)
THROWN = re.compile(r'<(?:Exception|FatalErrorCondition)[^>]*filename="([^"]*)" line="(\d+)"[^>]*>(.*?)</', re.DOTALL)
OVERALL = re.compile(r'<OverallResult success="(true|false)"(?: durationInSeconds="([^"]*)")?')


def plain(text):
    return " ".join(xml.sax.saxutils.unescape(text, {"&quot;": '"', "&apos;": "'"}).split())


def parse_results(text):
    """What Catch2's XML says of each test: {name: (passed, seconds, first words of what failed)}; of one that had begun when
    the process ended, passed is None."""
    results = {}
    for chunk in re.split(r"(?=<TestCase )", text)[1:]:
        name = plain(re.match(r'<TestCase name="([^"]*)"', chunk).group(1))
        overall, said, why = OVERALL.search(chunk), WRONG.search(chunk) or THROWN.search(chunk), ""
        if said:
            why = f"{said.group(1).rsplit('/', 1)[-1]}:{said.group(2)}: {plain(said.group(3))[:160]}"
        results[name] = (overall.group(1) == "true", float(overall.group(2) or 0), why) if overall else (None, 0.0, why)
    return results


def catch_name(name):
    """As an argument: commas, brackets and stars mean something to Catch2."""
    return re.sub(r"([,\[\]*\\~\"])", r"\\\1", name)


def tests(session, tag, also=""):
    """The tests with a tag in one process; what failed there once more, each alone: after a fault on the device all that
    follows in a process fails, too."""
    program, tags = tests_of(session), pattern(tag, also)
    words = [program, tags, *AS_XML]
    if session.dry:
        session.run(words, LONG)
        return ""
    if not program.exists():
        raise Skip(f"there is no {program}")
    names = test_names(program, tags, session.environment)
    if not names:
        raise Skip(f"no test is tagged {tags}")
    how, left = "", None
    try:
        ended = session.run(words, GROUP_SHARE * session.part_left())
        how = f"exit code {ended.code}" if ended.code else ""
    except Failure as failure:
        how = str(failure)
    except OutOfTime as out_of_time:  # what was done is noted; the next call does all of them again
        how, left = str(out_of_time), out_of_time
    facts = sort_out(names, parse_results(session.last.out), how)
    session.facts.setdefault("tests", {})[tag] = facts
    if left:
        raise left
    if facts["failed"] or facts["unreached"]:
        session.save()
        try_alone(session, program, facts)
    return judge(facts, how)


def sort_out(names, results, how):
    """Which tests passed, which failed and why, and which the process did not come to."""
    facts = {"of": len(names), "passed": [], "failed": {}, "unreached": [], "alone": []}
    for name in names:
        passed, _, why = results.get(name, (None, 0, ""))
        if passed:
            facts["passed"].append(name)
        elif name in results:
            facts["failed"][name] = why or how
        else:
            facts["unreached"].append(name)
    return facts


def judge(facts, how):
    count, failed, unreached, alone = facts["of"], facts["failed"], facts["unreached"], facts["alone"]
    if failed or unreached:
        first = ": ".join(next(iter(failed.items()))) if failed else unreached[0]
        raise Failure(f"{len(failed)} of {count} tests failed, {len(unreached)} were not reached: {first}")
    if alone:
        raise Failure(f"{count} tests passed, {len(alone)} of them only alone: {alone[0]}")
    if how:
        raise Failure(f"all {count} tests passed, but the process ended with {how}")
    return f"{count} test{'s'[:count > 1]} passed"


def try_alone(session, program, facts):
    """Each in a process of its own, as many as the part's time allows."""
    for name in [*facts["failed"], *facts["unreached"]][:MOST_ALONE]:
        if session.part_left() < 1:
            return
        if name in facts["unreached"]:
            facts["unreached"].remove(name)
        try:
            finished = session.run([program, catch_name(name), *AS_XML], ALONE_SECONDS, note=False)
        except Failure as failure:
            facts["failed"][name] = f"alone, too: {failure}"
            continue
        passed, _, why = parse_results(finished.out).get(name, (None, 0, ""))
        if finished.code == 0 and passed:
            facts["alone"].append(name)
            facts["passed"].append(name)
            facts["failed"].pop(name, None)
        else:
            facts["failed"][name] = f"alone, too: {why or last_words(finished)}"[:240]


# --- through the program ---


def tiny(policy, length, **options):
    return Job("gpt-tiny", policy, 4, 2, length, **options)


def policies(session, length, steps, settings=(), hopper=False):
    """Every policy with the least memory it runs in: the same losses and weights as the resident run, bit for bit.

    greedysnake adds up micro-batches in another order, so it is held to that without its snake."""
    rows, reference = [], None
    extra = [word for setting in settings for word in ("--set", setting)]
    fact = "policies_wgmma" if hopper else "policies"
    for policy in POLICIES:
        job = tiny("greedysnake:snake=off" if policy == "greedysnake" else policy, length)
        run = session.out / "runs" / f"tiny-{policy}"
        train_tight(session, job, run, steps, LONG, extra)
        if session.dry:
            continue
        result = losses(run)
        reference = reference or result
        rows.append({"policy": job.policy, "gpu_memory": job.gpu_memory, "host_memory": job.host_memory, "steps": steps,
                     "final_loss": result[0][-1], "weights_hash": result[1], "same": result == reference})
        session.facts[fact] = rows
        session.save()
    different = [row["policy"] for row in rows if not row["same"]]
    if different:
        raise Failure(f"other losses or weights than resident: {', '.join(different)}")
    return f"{len(rows)} policies, the same losses and weights to the bit"


def commits(run):
    try:
        return (run / "metrics.jsonl").read_text().count('"event":"commit"')
    except OSError:
        return 0


def resume(session, steps, commits_before):
    """A run that is killed and resumed gives the losses and weights of one that was not."""
    runs = session.out / "runs"
    durable = ("--durability", "step")
    train_tight(session, tiny("fuyou", 64), runs / "straight", steps, LONG, durable)
    job = tiny("fuyou", 64, gpu_memory="256MB", host_memory="256MB")

    def kill(process):
        if commits(runs / "killed") >= commits_before:
            os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.05)

    finished = train(session, job, runs / "killed", steps, LONG, durable, watch=kill)
    before = commits(runs / "killed")
    if not session.dry and finished.code == 0:
        raise Failure(f"it ended before it could be killed, after {before} commits")
    if not session.dry and finished.code != -signal.SIGKILL:
        raise Failure(last_words(finished))
    session.succeed(session.spillway("train", "--resume", "--run", runs / "killed", "--device", job.device, "--quiet"), LONG)
    if session.dry:
        return ""
    same = losses(runs / "straight") == losses(runs / "killed")
    session.facts["resume"] = {"steps": steps, "commits_before_kill": before, "same": same}
    if not same:
        raise Failure("the run that was killed and resumed has other losses or weights")
    return f"killed after {before} commits; {steps} losses and the weights are the same to the bit"


def parity(session, model, length, steps):
    """Losses of bf16 and fp32 on the GPU beside those of the CPU in fp32."""
    curves = {}
    for name, device, precision in (("cpu", "cpu", "fp32"), ("bf16", "cuda", "bf16"), ("fp32", "cuda", "fp32")):
        job = Job(model, "resident", 4, 2, length, gpu_memory="2GB", host_memory="2GB", device=device, precision=precision)
        run = session.out / "runs" / f"parity-{name}"
        finished = train(session, job, run, steps, LONG, threads=max(1, machine.cores() // 2))
        if finished.code != 0:
            raise Failure(last_words(finished))
        if not session.dry:
            curves[name] = losses(run)[0]
    if session.dry:
        return ""
    facts = {"steps": steps, "cpu_last_loss": curves["cpu"][-1]}
    for name in ("bf16", "fp32"):
        facts[name] = max(abs(a - b) / abs(b) for a, b in zip(curves[name], curves["cpu"]))
    session.facts["parity"] = facts
    if facts["bf16"] > BF16_TOLERANCE:
        raise Failure(f"bf16 losses differ by up to {facts['bf16']:.2%} of the CPU's, more than {BF16_TOLERANCE:.0%}")
    if facts["fp32"] > FP32_TOLERANCE:
        raise Failure(f"fp32 losses differ by up to {facts['fp32']:.2g} of the CPU's, more than {FP32_TOLERANCE:g}")
    if facts["fp32"] >= facts["bf16"] > 0:
        raise Failure(f"fp32 ({facts['fp32']:.2g}) is no closer to the CPU's losses than bf16 ({facts['bf16']:.2g})")
    return f"relative to the CPU's losses: bf16 {facts['bf16']:.2g}, fp32 {facts['fp32']:.2g}"


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


# --- compute-sanitizer ---

# By a part of their mangled names. Those of cuBLASLt would cost most of the time, and what the tools make of them is not ours.
OUR_KERNELS = ("--kernel-name", "kns=spillway")
# The backend checks what every call returns. Here "not ready" would count as an error, and what CUDA's libraries ask of
# a driver that does not know it.
NO_CALLS = ("--report-api-errors", "no")
SMALLEST = "Column sums of no rows are zero, or leave what there was"


def sanitizer_words(tool, program, tests_to_run):
    return [machine.find_tool("compute-sanitizer") or "compute-sanitizer", "--tool", tool, *OUR_KERNELS, *NO_CALLS,
            "--error-exitcode", 99, program, tests_to_run, *AS_XML]


def sanitizer_works(session):
    """Some machines refuse it: said once, before minutes are spent on it."""
    words = sanitizer_words("memcheck", tests_of(session), catch_name(SMALLEST))
    if session.dry:
        session.run(words, 60)
        return ""
    if not machine.find_tool("compute-sanitizer"):
        session.facts["sanitizer"] = "not installed"
        raise Skip("compute-sanitizer is not installed")
    finished = session.run(words, 60)
    refused = re.search(r"^.*not supported.*$", finished.out + finished.err, re.MULTILINE)
    done = [name for name, (passed, _, _) in parse_results(finished.out).items() if passed is not None]
    if refused:
        session.facts["sanitizer"] = refused.group().strip()
        raise Skip(f"this machine refuses compute-sanitizer: {session.facts['sanitizer']}")
    if finished.code != 0 or not done:
        session.facts["sanitizer"] = last_words(finished) if finished.code != 0 else f'no test ended: "{SMALLEST}"'
        raise Failure(session.facts["sanitizer"])
    session.facts["sanitizer"] = "works"
    return "compute-sanitizer works here"


def sanitize(session, tool, tags, fact):
    """compute-sanitizer over the tests made for it, all in one process: starting one takes longer than most of them."""
    program = tests_of(session)
    words = sanitizer_words(tool, program, tags)
    if session.dry:
        session.run(words, LONG)
        return ""
    if not machine.find_tool("compute-sanitizer"):
        raise Skip("compute-sanitizer is not installed")
    names = test_names(program, tags, session.environment)
    if not names:
        raise Failure(f"{program.name} lists no test that is tagged {tags}")
    try:
        finished, late = session.run(words, LONG), ""
    except Failure as failure:
        finished, late = session.last, str(failure)
    text = finished.out + finished.err
    if "not supported" in text:
        raise Skip("compute-sanitizer does not support this device")
    done = {name for name, (passed, _, _) in parse_results(finished.out).items() if passed is not None}
    missing = [name for name in names if name not in done]
    session.facts[fact] = {"tests": len(names) - len(missing), "of": len(names), "clean": finished.code == 0}
    found = [line for line in re.findall(r"^========= .*", text, re.MULTILINE) if "= COMPUTE-SANITIZER" not in line]
    if finished.code == 99 or (late and len(found) > 1):
        raise Failure(f"{found[-1] if found else 'errors'} (the first of them: {found[0] if found else 'see the log'})")
    if late:
        raise Failure(f"{late}; no errors in the {len(done)} of {len(names)} tests that were done")
    if finished.code != 0:
        raise Failure(f"exit code {finished.code}: {last_words(finished)}")
    if missing:
        raise Failure(f"{len(missing)} of {len(names)} tests were not reached: {', '.join(missing[:3])}")
    return f"no errors in {len(names)} tests"
