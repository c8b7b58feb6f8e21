#!/usr/bin/env python3
"""Runs the commands that README.md and docs/*.md show: commands_test.py PROGRAM [PAGE...] [--list]

Every line of a code block that begins with `spillway` is a command, also after `$ ` or `chrt --fifo 5`. Those of a page run
one after the other in a folder of the page's own, which holds what pages take for given: texts, chats, a model's folder, runs.
What a page leaves to its reader (`DIR`, `...`) is filled in and trainings are cut short by the table FILLED. A command that
does not run here is in SKIPPED, with what tests it instead. Each has to end with exit code 0, but those in REFUSED.
What a block shows below a command after `$ ` has to be in what the command prints, line by line in this order. A page may leave
out lines; where one ends in ` ...`, more may follow on it. Commands that are filled in print other things and are not compared.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 600  # more than any command here takes

# Commands that are not run here, and why.
SKIPPED = [
    (r"--device cuda", "needs a GPU: tests/cuda, scripts/gpu-check"),
    (r"^mpirun", "tests/cli/train/ranks_test.cpp starts ranks"),
    (r"openai-community/|org/name", "needs what Hugging Face's tools have downloaded: tests/peer/transformers"),
    (r"spillway (testbed|bench|papers)( |$)(?!--list)", "minutes: tests/cli/testbed_test.cpp, bench_test.cpp, papers_test.cpp"),
    (r"tune --benchmark", "a form, not a command: tests/cli/tune_test.cpp"),
    (r"--policy P \[", "a form, not a command: tests/cli/validate_kineto_test.cpp"),
    (r"spillway calibrate", "minutes: tests/cli/calibrate_test.cpp"),
    (r"spillway chat ", "asks at the terminal: tests/cli/generate_test.cpp"),
    (r"sweep .*--shard", "one of many processes: tests/scripts, tests/cli/sweep_test.cpp"),
    (r"data cache --remove", "tests/cli/options, tests/text"),
]

# Commands that show a refusal, and its exit code.
REFUSED = [(r"--tokens-per-second 50000", 3)]

MODEL_FOLDER = "model-folder"
TRAIN = r"^(spillway train )(?!.*--(?:dry-run|resume))"

# (pattern, replacement) of every command, in this order.
FILLED = [
    (r"^chrt --fifo \d+ ", ""),
    (r" \.\.\.$|(?<=--data text/) \.\.\.$", ""),
    (r"^(spillway train) \.\.\.", r"\1 --model gpt-tiny --data book.txt --batch 8 --micro-batch 4"),
    (r"^(spillway (?:estimate|compare)) \.\.\.", r"\1 --model gpt-13b --machine rtx4090-12ssd"),
    (r"^(spillway simulate) \.\.\.", r"\1 --model gpt-13b --machine rtx4090-12ssd --policy zero-infinity"),
    (r"runs/\.\.\.", "runs/first"),
    (r"--data FILES", "--data book.txt"),
    (r"\./(Qwen2\.5-0\.5B|SmolLM2-135M(-Instruct)?)(?= |$)|path/to/folder", MODEL_FOLDER),
    (r"(?<=--model )(DIR|MODEL)(?= |$)", MODEL_FOLDER),
    (r"(?<=export )RUN(?= )", "runs/adapters"),
    (r"^spillway report DIR(?= )", "spillway report runs/chat"),
    (r"(?<= )(?:trace|a)\.json\.gz(?= .*--out report)", "runs/first/trace.json.gz"),
    (r"(?<= )b\.json\.gz(?= .*--out report)", "runs/chat/trace.json.gz"),
    (r"(?<=--out )DIR(?= |$)", "out"),
    (r"/mnt/nvme\d", "ssd"),
    (r"ssd,ssd", "ssd,ssd2"),
    (r"\$K(?=/)", str(ROOT / "tests" / "reference" / "kineto")),
    (r"(?<=--seed )N", "1"),
    (r"fp32\|bf16", "fp32"),
    # Trainings of a few steps.
    (TRAIN + r"(.*) --(steps|epochs|tokens) \S+", r"\1\2 --steps 4"),
    (TRAIN + r"(?!.*--steps)", r"\1--steps 4 "),
    (r"(?<=--resume )(?!.*--steps)", "--steps 6 "),
    (r"--(evaluate|sample|keep)-every \d+", r"--\1-every 2"),
    (r"(?<=generate runs/chat --step )\d+", "2"),
]


def commands_of(page):
    """The (line, command, output that is shown) of a page, and its blocks of code that begin with `# NAME.py` or
    `# NAME.toml`: {name: text}."""
    found, files = [], {}
    block, begun = None, 0
    for number, line in enumerate(page.read_text().split("\n"), 1):
        if not line.startswith("```"):
            if block is not None:
                block.append(line)
            continue
        if block is None:
            block, begun = [], number + 1
            continue
        named = re.match(r"# (\w+\.(?:py|toml))$", block[0]) if block else None
        if named:
            files[named.group(1)] = "\n".join(block) + "\n"
        found += commands_of_block(block, begun)
        block = None
    return found, files


def commands_of_block(block, begun):
    found, pending, first, shown = [], "", begun, None
    for offset, line in enumerate(block):
        if line.startswith("$ "):
            shown = None
        elif shown is not None and not pending:
            shown += [line] if line.strip() not in ("", "...") else []
            continue
        text = pending + (line[2:] if line.startswith("$ ") else line)
        first = first if pending else begun + offset
        if text.endswith("\\"):
            pending = text[:-1].rstrip() + " "
            continue
        pending = ""
        if re.match(r"((chrt|mpirun) [^|]*)?spillway +[a-z]|python3 \w+\.py$", text):
            found.append((first, command_in(text), []))
            shown = found[-1][2] if block[first - begun].startswith("$ ") else None
    return found


def first_not_printed(shown, output):
    """The first of the shown lines that the output does not have after those before it; None: it has all."""
    printed = iter(output.split("\n"))
    for line in shown:
        begun = line.removesuffix(" ...")
        if not any(other.startswith(begun) if begun != line else other.rstrip() == line.rstrip() for other in printed):
            return line
    return None


def command_in(line):
    """Without the explanation after it: a comment, or what stands after two spaces and is no option."""
    line = re.sub(r"\s+# .*$", "", line)
    line = re.sub(r" {2,}(?=--|\.\.\.)", " ", line)
    return re.split(r"(?<=\S) {2,}", line, maxsplit=1)[0].strip()


def filled(command):
    for pattern, replacement in FILLED:
        command = re.sub(pattern, replacement, command)
    return command


class Runner:
    def __init__(self, program, work):
        self.work = work
        self.plugin = Path(program).resolve().parent / "tests" / "plugins" / "hybrid.so"  # the page's own, built by the tests
        self.given = work / "given"
        (work / "bin").mkdir(parents=True)
        (work / "home").mkdir()
        (work / "bin" / "spillway").symlink_to(Path(program).resolve())
        self.env = dict(os.environ, HOME=str(work / "home"), PATH=f"{work / 'bin'}:{os.environ['PATH']}")
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            self.env.pop(name, None)

    def run(self, command, folder):
        return subprocess.run(["bash", "-c", command], cwd=folder, env=self.env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, text=True, errors="replace")

    def make_given(self):
        """What pages take for given, made by the commands of the tutorial."""
        folder = self.given
        folder.mkdir()
        _, files = commands_of(ROOT / "docs" / "fine-tuning.md")
        (folder / "make_chats.py").write_text(files["make_chats.py"])
        texts = [(ROOT / "docs" / name).read_text() for name in ("train.md", "store.md", "tune.md")]
        for name, text in (("book.txt", "".join(texts)), ("notes.txt", texts[0]), ("notes/one.txt", texts[1]),
                           ("books/one.txt", texts[0]), ("books/two.txt", texts[2]), ("text/one.txt", texts[2])):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        for name in ("ssd", "ssd2"):
            (folder / name).mkdir()
        shutil.copy(ROOT / "machines" / "testbed.toml", folder / "machine.toml")
        if self.plugin.exists():
            shutil.copy(self.plugin, folder / "hybrid.so")
        (folder / "README.md").write_text(texts[0])
        (folder / "experiments").symlink_to(ROOT / "experiments")
        (folder / "traces").symlink_to(ROOT / "traces")
        (folder / "docs").mkdir()
        (folder / "docs" / "one.md").write_text(texts[0])
        (folder / "exec").mkdir()
        (folder / "exec" / "one.txt").write_text(texts[1])
        tiny = "--set model.vocabulary=400 model.layers=6 --tokenizer tokenizer --batch 16 --sequence 64 --steps 2"
        for command in (
                "python3 make_chats.py && cp first/chats.jsonl chats.jsonl",
                "spillway tokenizer train first chats --vocabulary 400 --special '<|im_start|>' --special '<|im_end|>' --out tokenizer",
                f"spillway train --model llama-tiny {tiny} --data first --chat-template chatml --keep 3 --keep-every 2 --run runs/chat",
                f"spillway export runs/chat --out {MODEL_FOLDER}",
                "spillway train --model gpt-tiny --data book.txt --batch 2 --sequence 64 --steps 2 --run runs/first",
                f"spillway train --model {MODEL_FOLDER} --lora rank=4 --data first --chat-template chatml --batch 2 --sequence 64"
                " --steps 2 --run runs/adapters",
                "spillway export runs/adapters --out their-adapter"):
            done = self.run(command, folder)
            if done.returncode:
                sys.exit(f"what pages take for given cannot be made: {command}\n{done.stdout}")

    def page(self, page):
        """Runs a page's commands. Returns how many ran, and what failed as text."""
        commands, files = commands_of(page)
        ran, failed, folder, made = 0, [], None, set()
        for line, command, shown in commands:
            where = f"{page.relative_to(ROOT)}:{line}"
            if any(re.search(pattern, command) for pattern, _ in SKIPPED):
                continue
            if folder is None:
                folder = self.work / "pages" / page.stem
                shutil.copytree(self.given, folder, symlinks=True)
                for name, text in files.items():
                    (folder / name).write_text(text)
            made_again = re.search(r"--(?:run|out) (\S+)", filled(command))
            if made_again and made_again[1] not in made and "--resume" not in command:
                shutil.rmtree(folder / made_again[1], ignore_errors=True)  # what the page makes was not given to it
                made.add(made_again[1])
            start = time.monotonic()
            try:
                done = self.run(filled(command), folder)
                code, output = done.returncode, done.stdout
            except subprocess.TimeoutExpired as late:
                code, output = 124, str(late)
            ran += 1
            print(f"{where}: {code}, {time.monotonic() - start:.1f} s: {filled(command)}", flush=True)
            if code != next((refusal for pattern, refusal in REFUSED if re.search(pattern, command)), 0):
                failed.append(f"{where}: exit code {code}\n  {command}\n  run as: {filled(command)}\n{output[-2000:]}")
            elif filled(command) == command and (missing := first_not_printed(shown, output)):
                failed.append(f"{where}: it shows a line that is not printed\n  {command}\n{missing}\nprinted:\n{output[:6000]}")
        if folder is not None:
            shutil.rmtree(folder)
        return ran, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("page", nargs="*", type=Path)
    parser.add_argument("--list", action="store_true", help="only what would be run, and what not")
    options = parser.parse_args()
    pages = [page.resolve() for page in options.page] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if options.list:
        for page in pages:
            for line, command, _ in commands_of(page)[0]:
                why = next((why for pattern, why in SKIPPED if re.search(pattern, command)), None)
                print(f"{page.relative_to(ROOT)}:{line}: {'skipped, ' + why if why else filled(command)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="spillway-docs-") as work:
        runner = Runner(options.program, Path(work))
        runner.make_given()
        ran, failed = 0, []
        for page in pages:
            count, failures = runner.page(page)
            ran += count
            failed += failures
    for failure in failed:
        print(f"\n{failure}")
    print(f"{ran} commands ran, {len(failed)} failed")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
