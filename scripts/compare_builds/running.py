"""Runs of `spillway simulate --json`, several at a time, each kept in a folder by program and arguments."""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import threading

from compare_builds.settings import BadInput

FITS, DOES_NOT_FIT = 0, 3
KEPT = (FITS, 2, DOES_NOT_FIT)  # exit codes that another call would give again


class Program:
    """A program is known by what is in its file."""

    def __init__(self, path):
        self.path = path
        try:
            self.digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error
        if not os.access(path, os.X_OK):
            raise BadInput(f"{path} is not a program")


@dataclasses.dataclass
class Run:
    """What one call of a program gave."""

    exit_code: int
    answer: dict  # the JSON object; empty where there is none
    message: str  # the first line on standard error

    @property
    def fits(self):
        return self.exit_code == FITS

    @property
    def failed(self):
        return self.exit_code not in (FITS, DOES_NOT_FIT)

    @property
    def step_seconds(self):
        return self.answer["step_seconds"]

    def peak(self, tier):
        return self.answer["memory"][tier]["peak_bytes"]

    def lane_bytes(self, lane):
        return self.answer["lanes"].get(lane, {"bytes": 0})["bytes"]


def key_of(program, words):
    """Of the program, the arguments, and the files that they name (a model or a machine)."""
    digest = hashlib.sha256(program.digest.encode())
    for word in words:
        digest.update(b"\0" + word.encode())
        if os.path.isfile(word):
            digest.update(b"\0" + hashlib.sha256(pathlib.Path(word).read_bytes()).digest())
    return digest.hexdigest()


class Runner:
    def __init__(self, folder, jobs, timeout):
        self.folder, self.jobs, self.timeout = folder, jobs, timeout
        self.ran = self.known = 0
        self.lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{folder}: {error.strerror}") from error

    @property
    def cpu_seconds(self):
        times = os.times()
        return times.children_user + times.children_system

    def all(self, calls):
        """{(program, words): Run} of pairs; equal calls run once."""
        by_key = {key_of(program, words): (program, words) for program, words in calls}
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            futures = {pool.submit(self.one, key, *call): key for key, call in by_key.items()}
            runs = {}
            try:
                for future in concurrent.futures.as_completed(futures):
                    runs[futures[future]] = future.result()
                    self.progress(len(runs), len(futures))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return {(program, words): runs[key_of(program, words)] for program, words in calls}

    def one(self, key, program, words):
        path = self.folder / f"{key}.json"
        kept = self.read(path)
        if kept:
            with self.lock:
                self.known += 1
            return kept
        run = self.call(program, words)
        with self.lock:
            self.ran += 1
        if run.exit_code in KEPT:
            text = json.dumps({"program": program.digest, "words": words, **dataclasses.asdict(run)})
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(text)
            unfinished.replace(path)
        return run

    @staticmethod
    def read(path):
        try:
            kept = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return Run(kept["exit_code"], kept["answer"], kept["message"])

    def call(self, program, words):
        command = [program.path.resolve(), "simulate", "--json", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self.timeout,
                                  stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return Run(124, {}, f"took longer than {self.timeout:g} s")
        except OSError as error:
            return Run(126, {}, str(error))
        message = done.stderr.strip().partition("\n")[0]
        try:
            answer = json.loads(done.stdout) if done.stdout.strip() else {}
        except ValueError:
            return Run(1, {}, "standard output is not one JSON object")
        if done.returncode == FITS and not self.complete(answer):
            return Run(1, {}, "the answer lacks a step time, a peak or the lanes")
        return Run(done.returncode, answer, message)

    @staticmethod
    def complete(answer):
        try:
            numbers = [answer["step_seconds"], *(answer["memory"][tier]["peak_bytes"] for tier in ("gpu", "host", "ssd")),
                       *(lane["bytes"] for lane in answer["lanes"].values())]
        except (KeyError, TypeError, AttributeError):
            return False
        return all(isinstance(number, (int, float)) for number in numbers)

    @staticmethod
    def progress(done, of):
        if sys.stderr.isatty():
            print(f"\r{done}/{of}", end="\n" if done == of else "", file=sys.stderr, flush=True)
        elif done % 100 == 0 or done == of:
            print(f"{done}/{of}", file=sys.stderr, flush=True)
