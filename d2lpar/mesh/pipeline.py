"""A pipeline as one axis of a mesh: other axes wait for its last micro-batch.

Two micro-batches on one stage, which averages its gradients over the data axis:

    F0    F1    B0              B1
                nothing leaves  buckets leave as they fill

Serial truth: `Pipeline`, which has no other axis.
"""

from ..pipeline import Pipeline


class MeshPipeline(Pipeline):
    """Execute a schedule; gradients travel in a stage's last backward only."""

    ddp = moment = None
    begins = ()  # the number of each micro-batch's first row

    def step(self, inputs, targets, rows=None, begin=0):
        """Do the same as a Pipeline, with rows that begin at number `begin`."""
        self.begins = [begin]
        for part in inputs.tensor_split(self.schedule.m):
            self.begins.append(self.begins[-1] + len(part))
        return Pipeline.step(self, inputs, targets, rows)

    def forward(self, action):
        """Run a stage forward, with the masks of its rows."""
        self.moment.first = self.begins[action.micro]
        Pipeline.forward(self, action)

    def backward(self, action):
        """Run a stage backward; after its last micro-batch, buckets may leave."""
        self.moment.first = self.begins[action.micro]  # if it runs forward again
        mine = [a for a in self.row if a.stage == action.stage]
        last = [a for a in mine if a.kind == "B"][-1]
        complete = action == last and not self.schedule.splits
        if self.ddp is None or complete:
            Pipeline.backward(self, action)
        else:
            with self.ddp.no_sync():
                Pipeline.backward(self, action)
