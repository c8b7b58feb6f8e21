"""What a part of the plan does: from the word in plan.json to the function."""

from . import machine, measuring, predicting, probes, programs, report, testing
from .session import PASSED, Failure, Skip


class Parts:
    """All that functions need to know of this call."""

    def __init__(self, session, found, plan, gpu, drive, host_memory):
        self.session, self.programs, self.gpu, self.drive, self.host_memory = session, found, gpu, drive, host_memory
        self.sizes = predicting.Sizes(plan.sizes)
        self.starts = session.dry  # whether a program was seen to train in this call
        self.grown = False

    def do(self, part):
        """Does a part; one for Hopper with its kernels of attention. Nothing but the first parts goes without a program."""
        if part.hopper and not machine.is_hopper(self.gpu):
            return
        name = "do_" + part.do
        if not hasattr(self, name):
            raise Failure(f"plan: {part.name} is to do {part.do}, which is nothing that parts.py knows")

        def function():
            if not self.starts and part.do not in ("machine", "start", "build"):
                raise Skip("no program starts here")
            before = dict(self.session.environment)
            if part.hopper:
                self.session.environment = {**before, **machine.HOPPER_ATTENTION}
            try:
                return getattr(self, name)(part, **part.arguments)
            finally:
                if part.hopper:
                    self.session.environment = before

        self.session.do(part, function)

    def place(self):
        return measuring.Machine(self.session, self.gpu, self.drive, self.host_memory)

    def roomy_place(self):
        """With the host memory that was promised, which some machines give only to who uses it."""
        if self.host_memory and not self.grown and not self.session.dry:
            there = machine.grow_memory(int(self.host_memory[:-2]) * 1.1e6)
            self.session.speak(f"   {there / 1e9:.0f} GB of host memory, of which runs may take {self.host_memory}")
            self.grown = True
        return self.place()

    # --- does it start? ---

    def do_machine(self, _):
        if self.session.dry:
            return ""
        host = machine.describe_host()
        self.drive.mkdir(parents=True, exist_ok=True)
        facts = probes.look(self.drive)
        self.session.summary.update({"gpu": self.gpu, "host": host, "nvcc": machine.nvcc_version(), "date": report.today()})
        self.session.facts["machine"] = facts
        return probes.said(facts, self.gpu, host)

    def do_start(self, _, model, steps):
        if not self.programs.given and not self.programs.prebuilt:
            raise Skip("no program was brought along (--prebuilt): it is built here")
        self.session.program = self.programs.first(self.session.dry).absolute()
        said = programs.try_out(self.session, model, steps)
        self.starts = True
        return said

    def do_build(self, _, model, steps):
        if self.programs.given:
            raise Skip("--program names the program that is checked")
        if self.starts and not self.session.dry:
            raise Skip("not needed: the program starts")
        programs.build(self.session, self.programs, self.gpu)
        said = programs.try_out(self.session, model, steps)
        self.starts = True
        return said

    def do_sanitizer_works(self, _):
        return testing.sanitizer_works(self.session)

    def do_no_gpu(self, _):
        return testing.no_gpu(self.session)

    # --- is it right? ---

    def do_tests(self, _, tag, also=""):
        return testing.tests(self.session, tag, also)

    def do_parity(self, _, model, length, steps):
        return testing.parity(self.session, model, length, steps)

    def do_policies(self, part, length, steps, settings=()):
        return testing.policies(self.session, length, steps, settings, part.hopper)

    def do_resume(self, _, steps, commits):
        return testing.resume(self.session, steps, commits)

    def do_sanitize(self, part, tool, tags):
        if self.session.result_of("sanitizer") not in (None, PASSED):
            raise Skip(f"compute-sanitizer: {self.session.facts.get('sanitizer', 'it was not tried')}")
        return testing.sanitize(self.session, tool, tags, part.name)

    # --- is it fast? ---

    def do_bench(self, part, name):
        return measuring.bench(self.session, self.place(), name, part.hopper)

    def do_torch(self, _, words=()):
        return measuring.torch(self.session, *words)

    def do_mfu(self, part, model, batch, micro_batches, steps, settings=()):
        return measuring.mfu(self.session, self.place(), part.name, model, batch, micro_batches, steps, self.sizes.sequence,
                             settings, part.hopper)

    # --- was it predicted? ---

    def do_calibrate(self, _, which):
        return predicting.calibrate(self.session, self.roomy_place(), self.sizes, which)

    def do_run(self, part, policy, batch, level):
        return predicting.run(self.session, self.roomy_place(), self.sizes, part.name, policy, batch, level)

    def do_large(self, part, policy):
        return predicting.large(self.session, self.roomy_place(), self.sizes, part.name, policy)
