"""A session of gpu-check: parts of the plan that are done once, each with a time limit, remembered in a folder.

A part is a function that runs commands. What it found out goes into `facts`, what became of it into `parts`; both are in
OUT/summary.json, which is written before and after every part, and packed (packs.py). So a call that is killed loses no
more than the part under way. What was not tried yet comes first; a part that was under way when a call was killed is tried
once more after that, and last comes again what failed.
"""

import ctypes
import fnmatch
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tarfile
import time

PASSED, FAILED, SKIPPED, LEFT, RUNNING = "passed", "FAILED", "skipped", "left", "running"
FORMAT = 2
LONG = 600  # seconds: more than any part has, whose own limit ends a command
MOST_KILLS = 2  # of calls in which one part was under way
LAST = 4  # rank of a part that failed


class Failure(Exception):
    """What was checked does not hold, or a command failed."""


class Skip(Exception):
    """The part cannot be done here; the message says why."""


class OutOfTime(Exception):
    """The time of this call is used up; the part is done by the next call."""


class Finished:
    """What a command left behind."""

    def __init__(self, code=0, out="", err="", late=False):
        self.code, self.out, self.err, self.late = code, out, err, late

    def json(self, what):
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise Failure(f"{what} printed no JSON: {error}") from error


class Session:
    """`seconds` are those of this call, `budget` those of all calls together."""

    def __init__(self, out, seconds, program, budget=float("inf"), dry=False, only="*", speak=print, saved=None):
        self.out, self.program, self.dry, self.speak = pathlib.Path(out), pathlib.Path(program), dry, speak
        self.seconds, self.began = seconds, time.monotonic()
        self.deadline, self.part_deadline = self.began + seconds, None
        self.budget, self.only = budget, only
        self.saved = saved or (lambda: None)  # called after every part
        self.commands, self.log, self.last = [], None, Finished()
        self.environment = {}  # of the commands of ours
        self.help_texts = {}
        self.summary = {"format": FORMAT, "parts": [], "facts": {}, "spent_seconds": 0}
        if not dry:
            (self.out / "logs").mkdir(parents=True, exist_ok=True)
            self.load()
        self.spent_before = self.summary["spent_seconds"]

    # --- what is remembered ---

    @property
    def facts(self):
        return self.summary["facts"]

    def load(self):
        path = self.out / "summary.json"
        if not path.exists():
            return
        try:
            known = json.loads(path.read_text())
        except ValueError:
            known = {}
        if known.get("format") == FORMAT:
            self.summary = known
        for index, entry in enumerate(self.summary["parts"]):
            if entry["result"] == RUNNING:
                self.summary["spent_seconds"] += entry["expected"]
                self.summary["parts"][index] = killed(entry)

    def spent(self):
        return self.spent_before + time.monotonic() - self.began

    def save(self):
        if self.dry:
            return
        self.summary["spent_seconds"] = round(self.spent(), 1)
        part = self.out / "summary.json.part"
        part.write_text(json.dumps(self.summary, indent=1) + "\n")
        part.replace(self.out / "summary.json")

    def entry(self, name):
        return next((entry for entry in self.summary["parts"] if entry["name"] == name), None)

    def result_of(self, name):
        entry = self.entry(name)
        return entry and entry["result"]

    def put(self, entry):
        """In the place of the last one of its name; else at the end."""
        parts = self.summary["parts"]
        places = [index for index, other in enumerate(parts) if other["name"] == entry["name"]]
        if places:
            parts[places[0]] = entry
        else:
            parts.append(entry)
        self.save()

    # --- parts ---

    def order(self, parts):
        """By rank, and in each as in the plan. No part is begun as long as another call can do what this one left of a
        lower rank: the minutes are for that."""
        ranks = {part.name: self.rank(part) for part in parts}  # before any of them is done in this call
        for part in sorted(parts, key=lambda part: ranks[part.name]):
            if self.another_call_helps(parts, [other for other in parts if ranks[other.name] < ranks[part.name]]):
                return
            yield part

    def rank(self, part):
        """0 for what was not tried yet; what a killed call was at comes after that, for it may have been the reason; then
        what is done if time is left; last what failed, for it would fail again. What others need keeps its place."""
        known = self.entry(part.name) or {}
        if part.needed:
            return 0
        return LAST if known.get("result") == FAILED else 2 * part.spare + bool(known.get("kills"))

    def another_call_helps(self, parts, among=None):
        """Whether one of the parts that was left fits into the minutes that are left, after what every call begins with."""
        room = self.budget - self.spent() - sum(part.seconds for part in parts if part.always)
        return any(self.result_of(part.name) == LEFT and self.due(part) and (0 if part.always else self.least(part)) <= room
                   for part in (parts if among is None else among))

    def least(self, part):
        """The seconds that have to be left for a part to be begun: what it is expected to take, unless no call has so much."""
        return max(min(5, 0.9 * self.seconds), min(part.seconds, 0.9 * self.seconds))

    def due(self, part):
        """What passed is not done again; what failed, and what was skipped, is. What was under way in two calls that
        were killed is not tried a third time."""
        known = self.entry(part.name) or {}
        wanted = fnmatch.fnmatch(part.name, self.only) and known.get("result") != PASSED
        return part.always or (wanted and known.get("kills", 0) < MOST_KILLS)

    def do(self, part, function):
        """Does `function` if it is due. With less time left than it is expected to take it is not begun, unless this call
        never had more."""
        if not self.due(part):
            return
        if self.dry:
            try:
                function()
            except Skip as skip:
                self.speak(f"# skipped: {skip}")
            return
        self.commands, began = [], time.monotonic()
        self.part_deadline = began + part.limit
        before = self.entry(part.name) or {}
        entry = {"stage": part.stage, "name": part.name, "result": RUNNING, "seconds": 0, "expected": part.seconds, "note": "",
                 "commands": [], "kills": before.get("kills", 0)}
        known = before if before.get("result") in (PASSED, FAILED) else None  # in an earlier call, and it is done again
        result, note = PASSED, ""
        with open(self.out / "logs" / (file_name(part.name) + ".log"), "w") as self.log:
            try:
                if self.time_left() < self.least(part):
                    raise OutOfTime("too little time was left")
                self.put({**entry, "before": known} if known else entry)
                note = function() or ""
            except OutOfTime as error:
                result, note = LEFT, str(error)
            except Skip as error:
                result, note = SKIPPED, str(error)
            except Failure as error:
                result, note = FAILED, str(error)
            except OSError as error:
                result, note = FAILED, f"{error.strerror}: {error.filename}"
            except Exception as error:  # pylint: disable=broad-except
                # An answer in another form than expected, say: it costs its own part only.
                result, note = FAILED, f"{type(error).__name__}: {error}"
        self.part_deadline = None
        seconds = round(time.monotonic() - began, 1)
        ended = {**entry, "result": result, "seconds": seconds, "note": note, "commands": list(dict.fromkeys(self.commands))[:12]}
        self.put(known if known and result == LEFT else ended)  # for want of time, nothing new was learnt
        self.saved()
        self.speak(f"   {result:<8} {part.name} ({seconds:g} s){': ' + note if note else ''}")

    # --- commands ---

    def time_left(self):
        """Of this call and of all of them."""
        return min(self.deadline - time.monotonic(), self.budget - self.spent())

    def part_left(self):
        """Of the time limit of the part under way."""
        return self.part_deadline - time.monotonic() if self.part_deadline else LONG

    def plain(self, argv):
        """The command as a person would type it: without this machine's paths."""
        text = shlex.join(str(word) for word in argv).replace(str(self.program), "spillway").replace(str(self.out) + "/", "OUT/")
        for folder in (self.program.parent / "tests", self.program.parent, pathlib.Path(__file__).parent):
            text = text.replace(f"{folder}/", "")
        return text

    def run(self, argv, limit, env=None, note=True, watch=None, ours=True):
        """Runs a command for at most `limit` seconds, and no longer than the part and this call have.

        Returns what it printed, whatever its exit code; it is in `last`, too, where this ends in an exception. `watch`,
        called every 5 ms with the process, may end it. With `note`, the command stands beside the figures of the part.
        `ours` are commands that need the libraries that the program needs.
        """
        argv = [str(word) for word in argv]
        if note:
            self.commands.append(self.plain(argv))
        if self.dry:
            self.speak("  " + shlex.join(argv))
            return Finished()
        self.last = Finished()
        part_left = self.part_left()
        allowed = min(limit, part_left, self.time_left())
        if allowed < 1 and self.time_left() < 1:
            raise OutOfTime("no time was left")
        if allowed < 1:
            raise Failure("the part's time limit was used up before its last command")
        self.log.write(f"$ {shlex.join(argv)}\n")
        self.log.flush()
        environment = {**os.environ, **(self.environment if ours else {}), **(env or {})}
        self.last = finish(argv, allowed, environment, self.out / "logs", watch)
        self.log.write(f"{self.last.out}{self.last.err}-> {'ended' if self.last.late else self.last.code}\n\n")
        self.log.flush()
        if self.last.late and allowed < min(limit, part_left):
            raise OutOfTime(f"it needs more than the {allowed:.0f} s that were left")
        if self.last.late:
            raise Failure(f"took longer than {allowed:.0f} s: {argv[0]}")
        return self.last

    def succeed(self, argv, limit, **options):
        """Runs a command that has to end with exit code 0."""
        finished = self.run(argv, limit, **options)
        if finished.code != 0:
            raise Failure(f"exit code {finished.code}: {last_words(finished)}")
        return finished

    def spillway(self, *words):
        return [self.program, *words]

    def supports(self, command, option):
        """Whether `spillway COMMAND` of this build has the option."""
        if command not in self.help_texts:
            self.help_texts[command] = self.question(command, "--help").out
        return option in self.help_texts[command].replace(",", " ").replace("=", " ").split()

    def question(self, *words):
        """Asks the program about itself, in a dry run, too; not noted."""
        try:
            done = subprocess.run([str(word) for word in (self.program, *words)], capture_output=True, text=True,
                                  check=False, env={**os.environ, **self.environment}, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Finished(127, "", str(error))
        return Finished(done.returncode, done.stdout, done.stderr)


LIBC = ctypes.CDLL(None)  # loaded here, for little may be done between fork and exec
PR_SET_PDEATHSIG = 1


def own_group():
    """Of a process that is about to become a command: all its processes can be ended, and it ends with gpu-check, even
    where that is killed, for the next call needs the GPU."""
    os.setpgrp()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def finish(argv, seconds, environment, folder, watch=None):
    """Runs a command, all of whose processes are ended after so many seconds. Its words go to files first, so that it
    never waits for a reader, and so that they are there whatever becomes of it."""
    out_path, err_path = folder / "stdout", folder / "stderr"
    ended = time.monotonic() + seconds
    with open(out_path, "wb") as out, open(err_path, "wb") as err:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                                   preexec_fn=own_group)
        try:
            while process.poll() is None and time.monotonic() < ended:
                if watch:
                    watch(process)
                try:
                    process.wait(0.005 if watch else 0.2)
                except subprocess.TimeoutExpired:
                    pass
        finally:
            late = process.poll() is None
            if late:
                os.killpg(process.pid, signal.SIGKILL)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                pass  # it hangs in the driver, where no signal reaches it: the others can still be tried
    return Finished(process.returncode, out_path.read_text(errors="replace"), err_path.read_text(errors="replace"), late)


def killed(entry):
    """What becomes of a part that was under way when a call was killed. One that was done again keeps its result."""
    kills = entry.get("kills", 0) + 1
    if "before" in entry:
        return {**entry["before"], "kills": kills}
    return {**entry, "kills": kills, "result": LEFT if kills < MOST_KILLS else FAILED,
            "note": f"it was under way when a call was killed ({kills} of {MOST_KILLS})"}


def unpack_once(archive, folder):
    """The folder in the archive's that has its MANIFEST; None: there is none. Each archive has a folder of its own, named by
    its digest, which is there only when it is whole, so that neither an older archive nor a kill leaves its files for this
    one's; those of others are removed."""
    target = folder / hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    if not target.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        fresh = folder / "part"
        unpack(archive, fresh)
        fresh.replace(target)
    return next((path.parent for path in sorted(target.glob("*/MANIFEST"))), None)


def file_name(part):
    return part.replace(" ", "-").replace("/", "-")


def unpack(archive, folder):
    """A .tgz into a folder; nothing of it can land outside, where Python knows how to see to that."""
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):
            opened.extractall(folder, filter="data")
        else:
            opened.extractall(folder)


def last_words(finished):
    """The line that says what went wrong."""
    lines = [line for line in (finished.err + "\n" + finished.out).splitlines() if line.strip()]
    for line in lines:
        if line.startswith("spillway: "):
            return line[len("spillway: "):].strip()
    for line in lines:
        if "error" in line.lower() and ": " in line:  # the first of a compiler's, or the loader's
            return line.strip()
    return lines[-1].strip() if lines else "it printed nothing"
