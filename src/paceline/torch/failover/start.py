"""The first path of a group: all workers make their agents together, or all begin over Gloo."""

import time
from collections.abc import Callable

from paceline.errors import UserError
from paceline.live.switch_client import ControlError
from paceline.torch.failover.agent_path import AgentPath, Ticket
from paceline.torch.rendezvous import Keys

PATH_ERRORS = (OSError, RuntimeError, UserError, ControlError)
"""What making a path may raise."""


def start_together(
    keys: Keys,
    worker: int,
    workers: int,
    path: AgentPath,
    take_ticket: Callable[[], Ticket],
    timeout_s: float,
) -> str:
    """Bring `path` up on all workers; why it cannot be used on one of them, or nothing.

    A refusal by the switch is the user's mistake: every worker raises it.
    """
    if worker == 0:
        try:
            ticket = take_ticket()
        except Exception as error:
            keys.set("refused", str(error) or repr(error))  # or the others would wait for it
            raise
        keys.set("refused", "")
        path.publish(ticket)
    refused = keys.get("refused")
    if refused:
        raise UserError(refused)
    trouble = ""
    try:
        end = time.monotonic() + timeout_s
        while not path.step():
            if time.monotonic() > end:
                raise TimeoutError("not all workers told their address")
            time.sleep(0.005)
    except PATH_ERRORS as error:
        trouble = str(error) or repr(error)
    keys.set(f"begun/{worker}", trouble)
    answers = [keys.get(f"begun/{other}") for other in range(workers)]
    return next((answer for answer in answers if answer), "")
