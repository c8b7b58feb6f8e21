"""Two clusters to submit jobs to, each with a folder of its own, started and ended by the test that uses it.

StandIn has an `sbatch` and an `scontrol` that know what scripts/sweep-slurm asks of them. RealSlurm is Slurm itself on this machine:
munged, slurmctld and slurmd in the foreground, on ports of their own, with their state in a folder. It needs root and Debian's slurm-wlm.
"""

import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

PATIENCE_S = 240  # until what has to happen counts as never happening


def wait_until(holds, what):
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.02)


# As sbatch: a copy of the script runs in the folder it was submitted from, tasks of an array in their environment, two at a time.
# A job is a folder jobs/ID; it has ended when it holds `ended`, and waits for another where that is not so.
SBATCH = r'''#!{python}
import os, pathlib, re, shutil, subprocess, sys
jobs = pathlib.Path({jobs!r})
words, options = sys.argv[1:], {{}}
while words[0].startswith("--"):
    name, _, value = words.pop(0)[2:].partition("=")
    options[name] = value
script, arguments = words[0], words[1:]
for line in open(script):
    if line.startswith("#SBATCH --"):
        name, _, value = line[len("#SBATCH --"):].strip().partition("=")
        options.setdefault(name, value)
    elif not line.startswith("#") and line.strip():
        break
identity = 1 + len(list(jobs.iterdir()))
job = jobs / str(identity)
job.mkdir()
(job / "command").write_text(str(pathlib.Path(script).absolute()))
shutil.copy(script, job / "slurm_script")
tasks = [None]
environment = dict(os.environ, SLURM_JOB_ID=str(identity), SLURM_CPUS_ON_NODE=options.get("cpus-per-task", "1"))
if "cpus-per-task" in options:
    environment["SLURM_CPUS_PER_TASK"] = options["cpus-per-task"]
if "array" in options:
    tasks, step = [], 1
    for part in options["array"].partition("%")[0].split(","):
        first, last, step = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part).groups()
        step = int(step or 1)
        tasks += range(int(first), int(last or first) + 1, step)
    environment.update(SLURM_ARRAY_JOB_ID=str(identity), SLURM_ARRAY_TASK_COUNT=str(len(tasks)), SLURM_ARRAY_TASK_MIN=str(min(tasks)),
                       SLURM_ARRAY_TASK_MAX=str(max(tasks)), SLURM_ARRAY_TASK_STEP=str(step))
after = [jobs / one for one in re.findall(r"\d+", options.get("dependency", ""))]
queue = [(task, dict(environment, **({{}} if task is None else {{"SLURM_ARRAY_TASK_ID": str(task)}}))) for task in tasks]
print(identity if "parsable" in options else f"Submitted batch job {{identity}}", flush=True)
if os.fork():
    os._exit(0)
os.setsid()
for stream in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
import time
while not all((one / "ended").exists() for one in after):
    time.sleep(0.02)
running, codes = [], {{}}
while queue or running:
    while queue and len(running) < 2:
        task, env = queue.pop(0)
        log = open(f"slurm-{{identity}}" + ("" if task is None else f"_{{task}}") + ".out", "a")
        running.append((task, env, subprocess.Popen(["/bin/bash", job / "slurm_script", *arguments], env=dict(env, TASK_FOLDER=str(job), TASK=str(task)),
                                                    stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)))
    for one in list(running):
        task, env, process = one
        again = job / f"requeue-{{task}}"
        if process.poll() is None and again.exists():
            os.killpg(process.pid, 9)
            process.wait()
        if process.poll() is None:
            continue
        running.remove(one)
        codes[task] = process.returncode
        if again.exists():
            again.unlink()
            queue.append((task, dict(env, SLURM_RESTART_COUNT=str(int(env.get("SLURM_RESTART_COUNT", 0)) + 1))))
    time.sleep(0.02)
(job / "codes").write_text(repr(codes))
(job / "ended").touch()
'''

SCONTROL = r'''#!/bin/bash
if [[ $1 == show ]]; then
  printf 'JobId=%s JobName=x\n   Priority=1\n   Command=%s sweep.toml out\n   WorkDir=/\n' "$3" "$(cat "{jobs}/$3/command")"
elif [[ $1 == requeue ]]; then
  touch "$TASK_FOLDER/requeue-$TASK"
fi
'''


class StandIn:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.jobs, bin_folder = self.folder / "jobs", self.folder / "bin"
        for one in (self.jobs, bin_folder):
            one.mkdir()
        for name, text in (("sbatch", SBATCH), ("scontrol", SCONTROL)):
            path = bin_folder / name
            path.write_text(text.format(python=sys.executable, jobs=str(self.jobs)))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SPILLWAY"))}
        self.environment = dict(outside, PATH=f"{bin_folder}:{os.environ['PATH']}")

    def wait(self, job):
        wait_until((self.jobs / job / "ended").exists, f"the end of job {job}")

    def exit_codes(self, job):
        self.wait(job)
        return list(eval((self.jobs / job / "codes").read_text()).values())

    def requeue(self, job, task):
        (self.jobs / job / f"requeue-{task}").touch()

    def stop(self):
        pass  # nothing runs between jobs


CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/slurmctld
SlurmdSpoolDir={folder}/slurmd
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=100
PartitionName=all Nodes={host} Default=YES State=UP MaxTime=INFINITE
"""


class Unavailable(Exception):
    """Why Slurm cannot run here."""


class RealSlurm:
    """Requeued jobs start 5 s later (cred_expire), not after two minutes."""

    def __init__(self, folder):
        missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "scontrol") if not shutil.which(name)]
        if missing:
            raise Unavailable(f"{', '.join(missing)} not found (apt-get install slurm-wlm)")
        if os.geteuid() != 0:
            raise Unavailable("slurmd and slurmctld are started by root only")
        self.folder = pathlib.Path(folder)
        self.daemons = []
        for one in ("slurmctld", "slurmd"):
            (self.folder / one).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        configuration = self.folder / "slurm.conf"
        host = socket.gethostname().partition(".")[0]
        configuration.write_text(CONFIGURATION.format(host=host, folder=folder, ports=free_ports(2)))
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SPILLWAY"))}
        self.environment = dict(outside, SLURM_CONF=str(configuration))
        try:
            self.start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}", f"--log-file={folder}/munge.log",
                       f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed")
            wait_until(lambda: (self.folder / "munge.socket").exists() or self.dead(), "munged's socket")
            self.start("slurmctld", "-D", "-f", configuration)
            self.start("slurmd", "-D", "-f", configuration)
            wait_until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%t") or self.dead(), "an idle node")
            if self.dead():
                raise Unavailable(self.dead())
        except BaseException:
            self.stop()
            raise

    def start(self, *words):
        with open(self.folder / f"{words[0]}.out", "w") as log:
            self.daemons.append((words[0], subprocess.Popen([*map(str, words)], env=self.environment, stdout=log, stderr=log,
                                                            stdin=subprocess.DEVNULL)))

    def dead(self):
        for name, process in self.daemons:
            if process.poll() is not None:
                log = (self.folder / f"{name}.out").read_text()
                return f"{name} ended with {process.returncode}: {' / '.join(log.splitlines()[-3:])}"
        return ""

    def ask(self, *words):
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        return done.stdout

    def wait(self, job):
        wait_until(lambda: not self.ask("squeue", "--noheader", f"--jobs={job}").strip(), f"the end of job {job}")

    def exit_codes(self, job):
        self.wait(job)
        return [int(line.partition("ExitCode=")[2].partition(":")[0])
                for line in self.ask("scontrol", "--oneliner", "show", "job", job).splitlines()]

    def requeue(self, job, task):
        subprocess.run(["scontrol", "requeue", f"{job}_{task}"], env=self.environment, check=True)

    def stop(self):
        for _, process in reversed(self.daemons):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
