"""The contract for targets that keep a changelog."""

from headwater.testing.sinks import SinkContract
from headwater.testing.sinks.sink_contract import row


class ChangelogContract(SinkContract):
    """The same stories; what is applied are records, one for each row that goes and one for each that comes."""

    mode = "changelog"
    key = ()

    def test_two_processes_never_both_apply_a_change(self) -> None:
        self.feed.tick([row(1)])
        one = self.run()
        first = self.target
        two = self.run()
        second = self.target
        for step in range(2, 8):
            self.feed.tick([row(i, str(step)) for i in range(1, step)])
            for applier in (one, two) if step % 2 else (two, one):
                self.catch_up(applier)
            self.assert_holds()
        applied = sum(len(change) for target in (first, second) for change in target.applied)
        assert applied == 1 + 2 * sum(range(1, 7)) - 6 + 1
