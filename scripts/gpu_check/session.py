"""A session of gpu-check: steps that are done once, each with a time limit, remembered in a folder.

A step is a function that runs commands. What it found out goes into `facts`, what became of it into `steps`;
both are written to OUT/summary.json after every step, so that a call that is ended loses one step at most.
"""

import fnmatch
import json
import os
import pathlib
import shlex
import signal
import subprocess
import tarfile
import time

PASSED, FAILED, SKIPPED, LEFT = "passed", "FAILED", "skipped", "left"
FORMAT = 1


class Failure(Exception):
    """What was checked does not hold, or a command failed."""


class Skip(Exception):
    """The step cannot be done here; the message says why."""


class OutOfTime(Exception):
    """The time of this call is used up; the step is done by the next call."""


class Finished:
    """What a command left behind."""

    def __init__(self, code=0, out="", err=""):
        self.code, self.out, self.err = code, out, err

    def json(self, what):
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise Failure(f"{what} printed no JSON: {error}") from error


class Session:
    def __init__(self, out, seconds, program, dry=False, only="*", speak=print):
        self.out, self.program, self.dry, self.speak = pathlib.Path(out), program, dry, speak
        self.seconds, self.deadline = seconds, time.monotonic() + seconds
        self.part, self.only = "", only
        self.commands, self.log = [], None
        self.help_texts = {}
        self.summary = {"format": FORMAT, "steps": [], "facts": {}}
        if not dry:
            (self.out / "logs").mkdir(parents=True, exist_ok=True)
            self.load()

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

    def save(self):
        if self.dry:
            return
        part = self.out / "summary.json.part"
        part.write_text(json.dumps(self.summary, indent=1) + "\n")
        part.replace(self.out / "summary.json")

    def forget(self, part):
        """The steps of this part are done again."""
        self.summary["steps"] = [step for step in self.summary["steps"] if step["part"] != part]
        self.save()

    def result_of(self, name):
        for step in self.summary["steps"]:
            if step["name"] == name:
                return step["result"]
        return None

    def of_part(self, part):
        return [step for step in self.summary["steps"] if step["part"] == part]

    # --- steps ---

    def step(self, name, function, always=False, needs=5):
        """Does `function` unless an earlier call did. What failed, and what was skipped, is tried again.

        With less than `needs` seconds left it is not begun, unless this call never had more."""
        if not always and (self.result_of(name) == PASSED or not fnmatch.fnmatch(name, self.only)):
            return
        if self.dry:
            self.speak(f"# {self.part}: {name}")
            try:
                function()
            except Skip as skip:
                self.speak(f"# skipped: {skip}")
            return
        self.commands, began = [], time.monotonic()
        self.log = open(self.out / "logs" / (name.replace(" ", "-").replace("/", "-") + ".log"), "w")
        result, note = PASSED, ""
        try:
            if self.time_left() < max(5, min(needs, 0.9 * self.seconds)):
                raise OutOfTime("no time was left" if self.time_left() < 5 else "too little time was left")
            note = function() or ""
        except OutOfTime as error:
            result, note = LEFT, str(error)
        except Skip as error:
            result, note = SKIPPED, str(error)
        except Failure as error:
            result, note = FAILED, str(error)
        except OSError as error:
            result, note = FAILED, f"{error.strerror}: {error.filename}"
        finally:
            self.log.close()
        seconds = round(time.monotonic() - began, 1)
        entry = {"part": self.part, "name": name, "result": result, "seconds": seconds, "note": note,
                 "commands": list(dict.fromkeys(self.commands))[:12]}
        others = [step for step in self.summary["steps"] if step["name"] != name]
        self.summary["steps"] = others + [entry]
        self.save()
        self.speak(f"   {result:<8} {name} ({seconds:g} s){': ' + note if note else ''}")

    # --- commands ---

    def time_left(self):
        return self.deadline - time.monotonic()

    def plain(self, argv):
        """The command as a person would type it: without this machine's paths."""
        text = shlex.join(str(word) for word in argv)
        return text.replace(str(self.program), "spillway").replace(str(self.out) + "/", "OUT/")

    def run(self, argv, limit, env=None, note=True, watch=None):
        """Runs a command for at most `limit` seconds, and no longer than this call has.

        Returns what it printed, whatever its exit code. `watch`, called every 5 ms with the process, may
        end it. With `note`, the command stands beside the figures of the step.
        """
        argv = [str(word) for word in argv]
        if note:
            self.commands.append(self.plain(argv))
        if self.dry:
            self.speak(shlex.join(argv))
            return Finished()
        allowed = min(limit, self.time_left())
        if allowed < 1:
            raise OutOfTime("no time was left")
        self.log.write(f"$ {shlex.join(argv)}\n")
        self.log.flush()
        out_path, err_path = self.out / "logs" / "stdout", self.out / "logs" / "stderr"
        ended = time.monotonic() + allowed
        with open(out_path, "wb") as out, open(err_path, "wb") as err:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       env={**os.environ, **(env or {})}, preexec_fn=os.setpgrp)
            try:
                while process.poll() is None:
                    if time.monotonic() > ended:
                        break
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
                process.wait()
        finished = Finished(process.returncode, out_path.read_text(errors="replace"),
                            err_path.read_text(errors="replace"))
        self.log.write(f"{finished.out}{finished.err}-> {'ended' if late else finished.code}\n\n")
        self.log.flush()
        if late and allowed < limit:
            raise OutOfTime(f"it needs more than the {allowed:.0f} s that were left")
        if late:
            raise Failure(f"took longer than {limit} s: {argv[0]}")
        return finished

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
            self.help_texts[command] = self.ask(command, "--help")
        return option in self.help_texts[command].replace(",", " ").replace("=", " ").split()

    def speed_tests(self):
        """The names that `spillway bench` of this build knows."""
        try:
            listed = json.loads(self.ask("bench", "--list", "--json"))
        except ValueError:
            return []
        return [test["name"] for kind in listed.values() for test in kind]

    def ask(self, *words):
        """What the program says of itself; asked in a dry run, too."""
        return self.question(*words).out

    def question(self, *words):
        """Runs the program for an answer, outside of any step."""
        try:
            done = subprocess.run([str(word) for word in (self.program, *words)], capture_output=True, text=True,
                                  check=False)
        except OSError as error:
            return Finished(127, "", str(error))
        return Finished(done.returncode, done.stdout, done.stderr)


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
            return line[len("spillway: "):]
    for line in lines:
        if "error:" in line.lower():  # the first of a compiler's
            return line.strip()
    return lines[-1].strip() if lines else "it printed nothing"
