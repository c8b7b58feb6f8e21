"""What the parts of gpu-check do, with the CPU backend standing in for a GPU, or (with the module of the emulated GPU as
second argument) the CUDA backend on one.

What is checked: limits are found that a run just fits in; failures are seen, and so is what a process that died had done;
a program that does not start says why, and one is built; results come home. Models and batches are the smallest there are.
"""

import os
import pathlib
import sys
import unittest
import unittest.mock

from helpers import GPU, HERE, Case

from gpu_check import machine, measuring, packs, plan, predicting, programs, report, session, testing, training
from gpu_check.parts import Parts
from gpu_check.session import FAILED, PASSED, SKIPPED

EMULATED = ""  # the module of an emulated GPU


def xml_of(name, body, ended=True):
    """As Catch2 writes it; a process that dies leaves out the end."""
    overall = '<OverallResult success="%s" durationInSeconds="0.5"/></TestCase>' % ("false" if "Expression" in body else "true")
    return f'<TestCase name="{name}" filename="a.cpp" line="1">{body}{overall if ended else ""}'


WRONG = ('<Expression success="false" type="CHECK" filename="/x/kernels.cpp" line="7"><Original>a == b</Original>'
         "<Expanded>1 == 2</Expanded></Expression>")


class Programs(Case):
    def set_up_tests(self, text):
        """A test program that lists three tests; `text` is a shell script's that runs them, $1 what is asked for."""
        path = self.stand_in("tests_cuda_gpu", f"""
if [[ " $* " == *" --list-test-names-only "* ]]; then printf 'first, of all\\nsecond\\nthird\\n'; exit; fi
{text}""")
        session = self.session()
        session.program = path.parent / "spillway"
        return session

    def test_what_catch2_says_is_understood_to_its_last_word(self):
        text = xml_of("a &lt;b> &quot;c&quot;", "") + xml_of("bad", WRONG) + xml_of("under way", "", ended=False)
        self.assertEqual(testing.parse_results(text), {'a <b> "c"': (True, 0.5, ""), "bad": (False, 0.5, "kernels.cpp:7: 1 == 2"),
                                                       "under way": (None, 0.0, "")})

    def test_a_group_of_tests_that_passes(self):
        session = self.set_up_tests(f"""[[ $1 == '[matmul][small]' ]] || exit 9
echo '{xml_of("first, of all", "")}{xml_of("second", "")}{xml_of("third", "")}'""")
        self.assertEqual(self.do(session, "tests", lambda: testing.tests(session, "matmul", "[small]")), PASSED, self.said)
        self.assertEqual(session.facts["tests"]["matmul"], {
            "of": 3, "passed": ["first, of all", "second", "third"], "failed": {}, "unreached": [], "alone": []})

    def test_what_fails_after_another_is_tried_alone(self):
        """The first test ends the process in the second, as a fault on the device would; alone, the third is good."""
        session = self.set_up_tests(f"""case $1 in
  '[kernels]') echo '{xml_of("first, of all", "")}{xml_of("second", "", ended=False)}'; exit 139 ;;
  second) echo '{xml_of("second", WRONG)}'; exit 1 ;;
  third) echo '{xml_of("third", "")}' ;;
  *) exit 9 ;;
esac""")
        self.assertEqual(self.do(session, "tests", lambda: testing.tests(session, "kernels")), FAILED)
        self.assertIn("1 of 3 tests failed, 0 were not reached: second: alone, too: kernels.cpp:7: 1 == 2", self.said[-1])
        self.assertEqual(session.facts["tests"]["kernels"]["passed"], ["first, of all", "third"])
        self.assertEqual(session.facts["tests"]["kernels"]["alone"], ["third"])

    def test_one_that_hangs_costs_the_others_nothing(self):
        """The second hangs, among others and alone; the third passes alone."""
        session = self.set_up_tests(f"""case $1 in
  '[step]') echo '{xml_of("first, of all", "")}{xml_of("second", "", ended=False)}'; sleep 100 ;;
  second) sleep 100 ;;
  third) echo '{xml_of("third", "")}' ;;
esac""")
        with unittest.mock.patch.multiple(testing, GROUP_SHARE=0.1, ALONE_SECONDS=2):
            self.assertEqual(self.do(session, "tests", lambda: testing.tests(session, "step"), limit=20), FAILED)
        facts = session.facts["tests"]["step"]
        self.assertEqual((facts["passed"], list(facts["failed"]), facts["alone"]), (["first, of all", "third"], ["second"], ["third"]))
        self.assertIn("alone, too: took longer than", facts["failed"]["second"])

    def test_names_with_signs_of_catch2_are_quoted(self):
        self.assertEqual(testing.catch_name("a, b [c] *d"), "a\\, b \\[c\\] \\*d")

    def test_the_rest_is_what_no_tag_names(self):
        self.assertEqual(testing.pattern("rest"), "".join(f"~[{tag}]" for tag in testing.TAGS))

    def test_a_program_that_does_not_start_says_all_that_is_missing(self):
        session = self.session()
        session.program = self.stand_in("spillway", "echo 'spillway: error while loading shared libraries: liba.so.1: cannot open' >&2; exit 127")
        self.stand_in("ldd", "printf '\\tliba.so.1 => not found\\n\\tlibc.so.6 => /lib/libc.so.6 (0x1)\\n\\tlibb.so.2 => not found\\n'")
        self.environment(PATH=f"{self.folder}/tools:{os.environ['PATH']}")
        self.assertEqual(self.do(session, "start", lambda: programs.try_out(session, "gpt-tiny", 2)), FAILED)
        self.assertIn("it does not start: error while loading shared libraries: liba.so.1", self.said[-1])
        self.assertIn("(missing: liba.so.1, libb.so.2)", self.said[-1])

    def test_a_module_without_its_library_is_told_where_to_find_it(self):
        session = self.session()
        session.program = self.stand_in("spillway", """[[ $1 != --version ]] || exit 0
echo 'spillway: --device cuda: there is no CUDA GPU here: the CUDA module cannot be loaded: libcublasLt.so.99: cannot open' >&2; exit 4""")
        (session.program.parent / "libspillway_cuda.so").write_bytes(b"...libcublasLt.so.99\0...")
        self.assertEqual(self.do(session, "start", lambda: programs.try_out(session, "gpt-tiny", 2)), FAILED)
        self.assertIn("gpt-tiny does not train on CUDA: --device cuda: there is no CUDA GPU here", self.said[-1])
        self.assertIn("libcublasLt.so.99 was not found in the toolkit", self.said[-1])

    def test_libraries_of_cuda_are_found_where_the_loader_does_not_look(self):
        """In a folder that LD_LIBRARY_PATH names, and in a Python package; the folder is handed to our commands only."""
        folder = self.folder / "site" / "nvidia" / "cu13" / "lib"
        folder.mkdir(parents=True)
        (folder / "libcublasLt.so.98").write_bytes(b"")
        with unittest.mock.patch.object(machine, "python_folders", lambda: [self.folder / "site"]):
            self.assertEqual(machine.find_library("libcublasLt.so.98"), str(folder / "libcublasLt.so.98"))
            session = self.session()
            session.program = self.stand_in("spillway", "")
            (session.program.parent / "libspillway_cuda.so").write_bytes(b"libcublasLt.so.98")
            programs.find_libraries(session)
        self.assertEqual(session.environment["LD_LIBRARY_PATH"].split(":")[0], str(folder))
        self.assertNotIn(str(folder), os.environ.get("LD_LIBRARY_PATH", ""))
        self.environment(LD_LIBRARY_PATH=folder)
        self.assertEqual(machine.find_library("libcublasLt.so.98"), str(folder / "libcublasLt.so.98"))

    def parts(self, script, **given):
        """Those of a call on a machine where scripts/build is `script`, in a repository of its own."""
        root = self.folder / "root"
        (root / "scripts").mkdir(parents=True)
        (root / "scripts" / "build").write_text(f"#!/bin/bash\n{script}")
        (root / "scripts" / "build").chmod(0o755)
        session = self.session()
        found = programs.Programs(root, self.folder, **given)
        return Parts(session, found, plan.load(HERE / "tiny_plan.json"), GPU, self.folder / "ssd", "400MB")

    BUILDS = f"""echo "$* $CMAKE_ARGUMENTS" >{{asked}}
mkdir -p "${{{{0%/*}}}}/../build/cuda/tests"; cp {HERE}/stand_in/spillway "${{{{0%/*}}}}/../build/cuda/"
"""

    def first_parts(self, parts):
        found = plan.load(HERE / "tiny_plan.json").parts
        for one in found[:5]:  # machine, start, build, sanitizer, no gpu
            parts.do(one)
        return {name: parts.session.result_of(name) for name in ("start", "build", "no gpu")}

    def test_what_was_built_elsewhere_and_does_not_start_is_built_here(self):
        broken = self.folder / "prebuilt"
        broken.mkdir()
        (broken / "MANIFEST").write_text("prebuilt 1\ncommit abc\n")
        (broken / "spillway").write_text("#!/bin/bash\necho './spillway: version `GLIBC_2.99 not found' >&2; exit 1\n")
        (broken / "spillway").chmod(0o755)
        asked = self.folder / "asked"
        parts = self.parts(self.BUILDS.format(asked=asked), prebuilt=broken)
        self.assertEqual(self.first_parts(parts), {"start": FAILED, "build": PASSED, "no gpu": PASSED}, self.said)
        self.assertIn("GLIBC_2.99", parts.session.entry("start")["note"])
        self.assertEqual(parts.session.program, self.folder / "root" / "build" / "cuda" / "spillway")
        self.assertIn("built here: gpt-tiny trains on the GPU", parts.session.entry("build")["note"])
        words = asked.read_text()
        self.assertTrue(words.startswith("cuda spillway spillway_cuda") and "CMAKE_CUDA_ARCHITECTURES=90-real" in words, words)

    def test_without_a_program_brought_along_one_is_built_and_nothing_failed(self):
        parts = self.parts(self.BUILDS.format(asked=self.folder / "asked"))
        self.assertEqual(self.first_parts(parts), {"start": SKIPPED, "build": PASSED, "no gpu": PASSED}, self.said)

    def test_where_nothing_starts_the_other_parts_say_so(self):
        parts = self.parts("echo 'CMake Error: no compiler' >&2; exit 1")
        self.assertEqual(self.first_parts(parts), {"start": SKIPPED, "build": FAILED, "no gpu": SKIPPED}, self.said)
        self.assertIn("CMake Error: no compiler", parts.session.entry("build")["note"])
        self.assertEqual(parts.session.entry("no gpu")["note"], "no program starts here")

    def test_as_many_compilers_as_processors_unless_a_limit_says_otherwise(self):
        """1.5 GB each; what is free at the moment is not asked."""
        self.assertEqual([programs.jobs(16, limit) for limit in (None, 128e9, 8e9, 1e9)], [16, 16, 5, 1])

    def test_headers_and_libraries_that_are_missing_are_named_with_their_package(self):
        """A bundle with the headers of two and the libraries of two: libfmt is of headers only there, libglpk has a version."""
        for name in ("include/fmt/format.h", "include/liburing.h", "lib/libglpk.so.40", "lib/libnuma.a"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text("")
        missing = programs.missing_here(self.folder)
        self.assertFalse([line for line in missing if "fmt" in line], missing)
        self.assertEqual([line for line in missing if "uring" in line], ["liburing.so or liburing.a (liburing-dev)"])
        self.assertEqual([line for line in missing if "glpk" in line or "numa" in line],
                         ["glpk.h (libglpk-dev)", "numa.h (libnuma-dev)"])
        said = programs.advice(self.folder, None)
        for words in ("there is no nvcc", "liburing.so or liburing.a (liburing-dev)", "--bundle FILE.tgz", "-DSPILLWAY_TESTS=OFF"):
            self.assertIn(words, said)

    def test_an_installed_library_is_one_that_can_be_linked(self):
        """libglpk.so.40 comes with a program that was built elsewhere; libglpk.so with libglpk-dev."""
        folder = self.folder / "lib" / "x86_64-linux-gnu"
        folder.mkdir(parents=True)
        with unittest.mock.patch.object(programs, "roots", lambda bundle: [self.folder]):
            for name, there in (("libglpk.so.40", False), ("libglpk.so", True)):
                (folder / name).write_text("")
                self.assertEqual(programs.has_library(None, "libglpk"), there, name)

    def archive(self, name, content, folder="gpu-prebuilt"):
        """A .tgz as scripts/gpu-bundle --prebuilt makes it."""
        source = self.folder / "source" / folder
        source.mkdir(parents=True, exist_ok=True)
        (source / "MANIFEST").write_text("prebuilt 1\n")
        (source / "spillway").write_text(content)
        packs.pack(self.folder / name, [(source, folder)])
        return self.folder / name

    def test_a_newer_program_takes_the_place_of_an_older_one(self):
        """In the same OUT; by what is in the archive, whatever its name. One that is there is not unpacked again."""
        old, new = self.archive("old.tgz", "old"), self.archive("new.tgz", "new")
        for archive, content in ((old, "old"), (new, "new"), (old, "old")):
            found = programs.Programs(self.folder, self.folder, prebuilt=archive)
            self.assertEqual(found.first().read_text(), content)
            self.assertEqual(len(list((self.folder / "prebuilt").iterdir())), 1)
        found.first().write_text("tried")
        self.assertEqual(found.first().read_text(), "tried")

    def test_a_program_that_was_unpacked_by_half_is_unpacked_again(self):
        """The call is killed while it unpacks, when the MANIFEST is there and the program is not."""
        archive = self.archive("prebuilt.tgz", "whole")

        def half(_, folder):
            (folder / "gpu-prebuilt").mkdir(parents=True)
            (folder / "gpu-prebuilt" / "MANIFEST").write_text("prebuilt 1\n")
            raise KeyboardInterrupt

        with unittest.mock.patch.object(session, "unpack", half), self.assertRaises(KeyboardInterrupt):
            programs.Programs(self.folder, self.folder, prebuilt=archive).first()
        self.assertEqual(programs.Programs(self.folder, self.folder, prebuilt=archive).first().read_text(), "whole")

    def test_a_sanitizer_that_finds_something_is_a_failure(self):
        """Two tests with the tag, one with a comma in its name. The tool ends with 99 where a test is bad, and with 0 where
        one is not reached."""
        tests = self.stand_in("tests_cuda_gpu", f"""
names='a, b\\ngood\\n'
[[ $MOOD != untagged ]] || names=
if [[ $1 == --list-test-names-only ]]; then [[ $2 != '[sanitizer]' ]] || printf "$names"; exit; fi
[[ $1 == '[sanitizer]' && $2 == --reporter ]] || exit 2
echo '{xml_of("a, b", "")}'; [[ $MOOD == unreached ]] || echo '{xml_of("good", "")}'""")
        self.stand_in("compute-sanitizer", """
[[ "${*:2:7}" == 'memcheck --kernel-name kns=spillway --report-api-errors no --error-exitcode 99' ]] || exit 3
[[ $MOOD != refused ]] || { echo '========= Error: Device not supported. Please refer to the documentation' ; exit 1; }
"${@:9}" || exit
[[ $MOOD != bad ]] || { echo '========= Invalid __global__ write of size 4 bytes'; exit 99; }""")
        self.environment(PATH=f"{self.folder}/tools:{os.environ['PATH']}", MOOD="good")
        session = self.session()
        session.program = tests.parent / "spillway"
        sanitize = lambda: testing.sanitize(session, "memcheck", "[sanitizer]", "memcheck all")  # noqa: E731
        self.assertEqual(self.do(session, "memcheck", sanitize), PASSED, self.said)
        self.assertEqual(session.entry("memcheck")["note"], "no errors in 2 tests", self.said)
        self.assertEqual(session.facts["memcheck all"], {"tests": 2, "of": 2, "clean": True})
        for mood, said in (("bad", "========= Invalid __global__ write"), ("unreached", "1 of 2 tests were not reached: good"),
                           ("untagged", "lists no test that is tagged [sanitizer]")):
            self.environment(MOOD=mood)
            self.assertEqual(self.do(session, mood, sanitize), FAILED)
            self.assertIn(said, self.said[-1])
        self.environment(MOOD="refused")
        self.assertEqual(self.do(session, "probe", lambda: testing.sanitizer_works(session)), SKIPPED)
        self.assertIn("this machine refuses compute-sanitizer: ========= Error: Device not supported", self.said[-1])

    def test_the_sanitizer_works_where_it_ran_a_test(self):
        """The test is asked for by its name, whose comma would mean "or"; a tool that ends well without it says nothing."""
        tests = self.stand_in("tests_cuda_gpu", f"""
[[ $1 == 'Column sums of no rows are zero\\, or leave what there was' ]] || exit 0
[[ $MOOD == none ]] || echo '{xml_of("Column sums of no rows are zero, or leave what there was", "")}'""")
        self.stand_in("compute-sanitizer", 'exec "${@:9}"')
        self.environment(PATH=f"{self.folder}/tools:{os.environ['PATH']}", MOOD="good")
        session = self.session()
        session.program = tests.parent / "spillway"
        probe = lambda: testing.sanitizer_works(session)  # noqa: E731
        self.assertEqual(self.do(session, "good", probe), PASSED, self.said)
        self.assertEqual(session.facts["sanitizer"], "works")
        self.environment(MOOD="none")
        self.assertEqual(self.do(session, "none", probe), FAILED)
        self.assertIn('no test ended: "Column sums of no rows are zero', self.said[-1])

    def test_no_gpu_is_said_in_one_line(self):
        message = "spillway: --device cuda: there is no CUDA GPU here: cudaErrorNoDevice"
        for text, result in ((f"echo '{message}' >&2; echo '  hint: use --device cpu' >&2; exit 4", PASSED),
                             (f"echo '{message}' >&2; echo 'and more' >&2; exit 4", FAILED), ("exit 0", FAILED),
                             ("echo 'Segmentation fault' >&2; exit 139", FAILED)):
            session = self.session()
            session.program = self.stand_in("spillway", f'[[ -z ${{CUDA_VISIBLE_DEVICES-unset}} ]] || exit 9\n{text}\n')
            self.assertEqual(self.do(session, "no gpu", lambda: testing.no_gpu(session), always=True), result, self.said)

    def test_both_kinds_of_attention_have_figures_of_their_own(self):
        """The program follows the environment, as training does."""
        parts = self.parts("exit 1")
        parts.session.program, parts.starts = self.stand_in("spillway", """
echo '{"figures": [{"name": "gpu/attention/a", "what": "'${SPILLWAY_CUDA_ATTENTION:-mma}'"}]}'"""), True
        for one in plan.load(HERE / "tiny_plan.json").parts:
            if one.name.startswith("bench gpu/attention"):
                parts.do(one)
        self.assertEqual([(figure["name"], figure["what"]) for figure in parts.session.facts["figures"]],
                         [("gpu/attention/a", "mma"), ("gpu/attention/a with wgmma", "wgmma")])

    def test_a_pytorch_that_breaks_off_leaves_the_figures_before(self):
        """A line cut in half is none; one that was not done is counted."""
        self.stand_in("python3", """echo '{"torch": "2.0"}'; echo '{"name": "matmul/a", "backend": "matmul", "tflops": 100}'
echo '{"name": "attention/b", "backend": "FLASH_ATTENTION", "error": "no kernel"}'; printf '{"name": "matm'; exit 134""")
        self.environment(PATH=f"{self.folder}/tools:{os.environ['PATH']}")
        session = self.session()
        self.assertEqual(self.do(session, "torch", lambda: measuring.torch(session)), FAILED)
        self.assertEqual([figure["name"] for figure in session.facts["torch"]["figures"]], ["matmul/a", "attention/b"])
        self.assertIn("1 figures of PyTorch 2.0, 1 it does not do", self.said[-1])


class Memory(unittest.TestCase):
    def test_memory_that_comes_when_it_is_used_is_waited_for(self):
        """A machine of 8 GB that begins with 3 and is given 1 more whenever less than 2 are left."""
        step, total, taken = machine.GROW_STEP, [3], []

        class Taken:
            def close(self):
                taken.remove(self)

        def take(size):
            self.assertEqual(size, step)
            taken.append(Taken())
            if total[0] - len(taken) < 2:
                total[0] = min(total[0] + 1, 8)
            return taken[-1]

        def available():
            return (total[0] - len(taken)) * step

        self.assertEqual(machine.grow_memory(5 * step, 0.2, available, take), 7 * step)
        self.assertEqual(machine.grow_memory(6 * step, 0.2, available, lambda size: self.fail("it was there")), 7 * step)
        self.assertEqual(machine.grow_memory(100 * step, 0.2, available, take), 8 * step)
        self.assertEqual(taken, [])
        one = machine.take_memory(8 << 20)
        self.assertEqual(len(one), 8 << 20)
        one.close()


class Flow(Case):
    def test_every_policy_runs_in_the_least_memory_with_the_same_numbers(self):
        session = self.session()
        self.assertEqual(self.do(session, "policies", lambda: testing.policies(session, 64, 4), limit=900), PASSED, self.said)
        rows = session.facts["policies"]
        self.assertEqual([row["policy"].split(":")[0] for row in rows], list(training.POLICIES))
        self.assertTrue(all(row["same"] for row in rows))
        needs = {row["policy"]: training.bytes_of(row["gpu_memory"]) for row in rows}
        self.assertLess(needs["fuyou"], needs["resident"])  # it was the least, and not one limit for all

    def test_a_killed_run_is_resumed_and_compared(self):
        session, (steps, commits) = self.session(), (24, 3) if EMULATED else (60, 5)  # an emulated GPU takes its time
        self.assertEqual(self.do(session, "resume", lambda: testing.resume(session, steps, commits), limit=900), PASSED, self.said)
        self.assertTrue(session.facts["resume"]["same"])
        self.assertGreaterEqual(session.facts["resume"]["commits_before_kill"], commits)

    def test_other_losses_than_the_resident_run_are_a_failure(self):
        learns_faster = self.stand_in("spillway", f"""
if [[ " $* " == *" fuyou "* ]]; then set -- "$@" --learning-rate 0.0011; fi
exec {HERE}/stand_in/spillway "$@"
""")
        session = self.session()
        session.program = learns_faster
        self.assertEqual(self.do(session, "policies", lambda: testing.policies(session, 64, 4), limit=900), FAILED)
        self.assertIn("than resident: fuyou", self.said[-1])

    def test_losses_beside_those_of_the_cpu(self):
        """The stand-in computes the CPU's own losses, so the difference is nothing; an emulated GPU's are off by rounding,
        more so in bf16; one that learns faster is far off."""
        session = self.session()
        parity = lambda: testing.parity(session, "gpt-small", 128, 4)  # noqa: E731
        self.assertEqual(self.do(session, "parity", parity, limit=900), PASSED, self.said)
        bf16, fp32 = session.facts["parity"]["bf16"], session.facts["parity"]["fp32"]
        if EMULATED:
            self.assertTrue(0 < fp32 < bf16, (fp32, bf16))
        else:
            self.assertEqual((bf16, fp32), (0, 0))
        session.program = self.stand_in("spillway", f"""
if [[ " $* " == *" bf16 "* ]]; then set -- "$@" --learning-rate 0.01; fi
exec {HERE}/stand_in/spillway "$@"
""")
        self.assertEqual(self.do(session, "parity of another", parity, limit=900), FAILED)
        self.assertIn("bf16 losses differ by up to", self.said[-1])

    def test_runs_that_are_predicted_end_in_tables(self):
        session = self.session()
        session.summary.update({"gpu": GPU, "host": machine.describe_host(), "nvcc": "13.0", "date": "2026-01-02"})
        place = measuring.Machine(session, GPU, self.folder / "ssd", "400MB")
        sizes = predicting.Sizes({"models": ["gpt-tiny"], "large_models": ["gpt-tiny"], "large_gpu_memory": "96MB", "large_batch": 4,
                                  "sequence": 32, "micro_batch": 2, "steps": 3})
        for name, function in (("calibrate", lambda: predicting.calibrate(session, place, sizes, "models")),
                               ("fuyou tight", lambda: predicting.run(session, place, sizes, "fuyou tight", "fuyou", 4, "tight")),
                               ("greedysnake roomy", lambda: predicting.run(session, place, sizes, "greedysnake roomy", "greedysnake", 4, "roomy")),
                               ("large fuyou", lambda: predicting.large(session, place, sizes, "large fuyou", "fuyou")),
                               ("mfu", lambda: measuring.mfu(session, place, "mfu", "gpt-tiny", 4, [4, 2], 4, 32)),
                               ("bench", lambda: measuring.bench(session, place, "gpu/matmul"))):
            self.assertEqual(self.do(session, name, function, limit=900), PASSED, self.said)
        rows = session.facts["validation"]
        self.assertEqual([row["name"] for row in rows], ["fuyou tight", "greedysnake roomy", "large fuyou"])
        for row in rows:
            self.assertAlmostEqual(row["error"], row["predicted"] / row["measured"] - 1)
            self.assertAlmostEqual(row["of_bound"], row["bound"] / row["measured"])
            self.assertLessEqual(row["bound"], 1.0001 * row["predicted"])
            self.assertEqual(row["simulated"][row["busiest"]], max(row["simulated"].values()))
            self.assertEqual(set(row["simulated"]), set(row["lanes"]))
        self.assertLess(training.bytes_of(rows[0]["gpu_memory"]), training.bytes_of(rows[2]["gpu_memory"]))
        self.assertFalse(list((self.folder / "ssd").iterdir()))  # nothing stays on the drive

        report.write(self.folder, session.summary)
        packs.write(session, self.folder / "packed")
        root = self.folder / "repository"
        (root / "docs").mkdir(parents=True)
        (root / "docs" / "gpu.md").write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
        target = report.collect(root, self.folder / "packed")
        self.assertEqual(target, root / "traces" / "recorded" / "nvidia-stand-in")
        self.assertTrue((target / "fuyou-tight.json.gz").exists())
        self.assertTrue((target / "machine-gpt-tiny.toml").exists())
        text = (root / "docs" / "gpu.md").read_text()
        self.assertIn("| gpt-tiny | fuyou | 4 in 2 | tight |", text)
        self.assertNotIn("old", text)
        self.assertTrue(report.refresh(root, check=True))


if __name__ == "__main__":
    os.environ["SPILLWAY"] = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if len(sys.argv) > 1 and sys.argv[1].endswith(".so"):
        os.environ["EMULATED_MODULE"] = EMULATED = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
