"""What an agent sets once a round of results: the patience of its custodian, by the round trip of its sender."""

from paceline.dataplane import congestion
from paceline.dataplane.compiled import compiled_apart
from paceline.live.agent_state import ROUNDS, Loop


@compiled_apart
def end_round(loop: Loop, now_ns: int) -> None:
    """A batch of results has been taken: maybe a round has ended."""
    sender = loop.senders.state[0]
    if not congestion.end_round(sender, now_ns):
        return
    loop.counters[ROUNDS] += 1
    if sender.srtt_ns > 0.0:
        patience_ns = congestion.patience_ns(sender)
        loop.custodians.state[0].patience_led_ns = patience_ns
        if sender.custody != 0:
            patience_ns = max(patience_ns, loop.roles.watch[0].patience_ns)
        loop.custodians.state[0].patience_ns = patience_ns
