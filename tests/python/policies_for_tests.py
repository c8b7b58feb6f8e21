"""Policies of the tests. Hybrid is that of docs/write-a-policy.md, as it stands there."""

# [example begins]
import spillway


@spillway.register
class Hybrid(spillway.Policy):
    """lower layers take all micro-batches in a row, upper layers one at a time"""

    name = "hybrid-in-python"
    lower = spillway.Option(0.5, spillway.fraction, help="share of the layers that are lower")
    optimizer_ssd = spillway.Option(
        0.0, spillway.fraction, frugal=[0.5, 1.0],
        help="share of the optimizer state that rests on the SSD")

    def step(self, step):
        lower = int(self.lower * step.layers)
        for layer in range(lower):
            for m in step.ascending():
                step.forward(layer, m)
        for m in step.ascending():
            for layer in range(lower, step.layers):
                step.forward(layer, m)
            for layer in reversed(range(lower, step.layers)):
                step.backward(layer, m)
                if m + 1 == step.micro_batches:
                    step.update(layer)
        for layer in reversed(range(lower)):
            for m in step.ascending():
                step.backward(layer, m)
            step.update(layer)
        for unit in step.outer():
            step.update(unit)

    def plan(self, problem, costs):
        plan = spillway.Plan()
        plan.parameters.rest = {"host": 1}
        plan.optimizer_state.rest = {"host": 1 - self.optimizer_ssd, "ssd": self.optimizer_ssd}
        return plan
# [example ends]


@spillway.register
class Vertical(spillway.Policy):
    """all micro-batches of a layer before the next, with every kind of option"""

    name = "vertical-in-python"
    paper = "a test"
    state_ssd = spillway.Option(None, spillway.fraction.or_auto(), help="of the optimizer state")
    slots = spillway.Option(2, spillway.Whole(0, 4), help="buffers that updates take in turns")
    checkpoints = spillway.Option("host", spillway.Choice("gpu", "host"), help="where they rest")
    snake = spillway.Option(False, spillway.OnOff(), help="every second layer in reverse")
    group = spillway.Option(5e8, spillway.Elements(1), help="elements of an update")

    def placements(self, problem):
        if self.state_ssd is not None:
            return [{}]
        return [{"state_ssd": share / 4} for share in range(5)]

    def check(self, problem):
        if problem.workload.sequence == 13:
            raise spillway.InputError("13 brings bad luck", "take 14")

    def plan(self, problem, costs):
        plan = spillway.Plan(parameters__rest={"host": 1})
        share = self.state_ssd or 0
        plan.optimizer_state.rest = {"host": 1 - share, "ssd": share}
        plan.optimizer_state.slots = self.slots
        plan.checkpoints.rest = {self.checkpoints: 1}
        plan.optimizer.group = "at_most"
        plan.optimizer.elements = self.group
        plan.order.row = 0
        plan.order.snake = self.snake
        return plan
