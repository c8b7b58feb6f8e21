"""Two programs' runs of the same settings, side by side, and which limits they exceed."""

import dataclasses
import math

TIERS = ("gpu", "host", "ssd")
SAME = 1e-9  # ratios closer than this are equal: sums of the same numbers in another order


@dataclasses.dataclass
class Limits:
    time: float
    mean: float
    peak: float
    variant: float


def ratio(old, new):
    """new / old; where old is 0, 1 if new is too, else infinite."""
    if old == 0:
        return 1.0 if new == 0 else math.inf
    return new / old


def geometric_mean(ratios):
    """None of no ratios."""
    return math.exp(sum(math.log(value) for value in ratios) / len(ratios)) if ratios else None


@dataclasses.dataclass(eq=False)
class Row:
    setting: object
    old: object
    new: object
    variants: dict  # name -> Run

    @property
    def both_fit(self):
        return self.old.fits and self.new.fits

    @property
    def time_ratio(self):
        return ratio(self.old.step_seconds, self.new.step_seconds)

    def peak_ratio(self, tier):
        return ratio(self.old.peak(tier), self.new.peak(tier))

    def variant_ratio(self, name):
        return ratio(self.new.step_seconds, self.variants[name].step_seconds)


def compare(runner, old, new, settings, variants):
    calls = [(old, setting.old) for setting in settings] + [(new, setting.new) for setting in settings]
    calls += [(new, setting.variants[name]) for setting in settings for name in variants]
    runs = runner.all(calls)
    return [Row(setting, runs[old, setting.old], runs[new, setting.new],
                {name: runs[new, setting.variants[name]] for name in variants}) for setting in settings]


@dataclasses.dataclass
class Result:
    old: object
    new: object
    rows: list
    limits: Limits
    variants: list

    def both(self, rows=None):
        return [row for row in (self.rows if rows is None else rows) if row.both_fit]

    def lost(self):
        return [row for row in self.rows if row.old.fits and not row.new.fits and not row.new.failed]

    def gained(self):
        return [row for row in self.rows if row.new.fits and not row.old.fits]

    def failed(self):
        """The new program neither simulates nor says that it does not fit, and the old one does."""
        return [row for row in self.rows if row.new.failed and not row.old.failed]

    def mean(self, rows=None):
        return geometric_mean([row.time_ratio for row in self.both(rows)])

    def slower(self, rows=None):
        """Worst first."""
        return sorted((row for row in self.both(rows) if row.time_ratio > self.limits.time + SAME),
                      key=lambda row: -row.time_ratio)

    def larger(self, tier, rows=None):
        """Worst first."""
        return sorted((row for row in self.both(rows) if row.peak_ratio(tier) > self.limits.peak + SAME),
                      key=lambda row: -row.peak_ratio(tier))

    def with_variant(self, name):
        return [row for row in self.rows if row.new.fits and row.variants[name].fits]

    def variant_slower(self, name):
        """Worst first."""
        return sorted((row for row in self.with_variant(name) if row.variant_ratio(name) > self.limits.variant + SAME),
                      key=lambda row: -row.variant_ratio(name))

    def variant_lost(self, name):
        return [row for row in self.rows if row.new.fits and not row.variants[name].fits]

    def families(self):
        return list(dict.fromkeys(row.setting.family for row in self.rows))

    def exceeded(self):
        """A line for each limit that is exceeded."""
        lines = []

        def tell(rows, what):
            if rows:
                lines.append(f"{len(rows)} {'setting' if len(rows) == 1 else 'settings'} {what}")

        tell(self.slower(), f"above {self.limits.time:g} in step time, the worst {self.worst(self.slower())}")
        for tier in TIERS:
            tell(self.larger(tier), f"above {self.limits.peak:g} in the peak of {tier} memory")
        if self.both() and self.mean() > self.limits.mean + SAME:
            lines.append(f"the geometric mean of step times is {self.mean():.6f}, above {self.limits.mean:g}")
        tell(self.lost(), "fit the old program and not the new one")
        tell(self.failed(), "make the new program fail")
        if not self.both():
            lines.append("no setting fits both programs")
        for name in self.variants:
            tell(self.variant_slower(name), f"above {self.limits.variant:g} in the step time of {name} to that of new")
            tell(self.variant_lost(name), f"fit the new program, but not with {name}")
        return lines

    @staticmethod
    def worst(rows):
        return f"{rows[0].time_ratio:.6f}: {rows[0].setting.name}" if rows else ""
