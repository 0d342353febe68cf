"""The window's rule, by itself. Round trips in ns; the shortest is 10 ms, so a queue is one of more than 20 ms."""

from paceline.dataplane.congestion import QUEUE_NS, next_window

SHORTEST = 10e6
QUEUED = SHORTEST + QUEUE_NS + 1e6


def test_without_loss_it_grows_until_the_queue_is_long() -> None:
    assert next_window(100.0, 0, 100, SHORTEST, SHORTEST) == 150.0
    assert next_window(100.0, 1, 99, SHORTEST, SHORTEST) == 150.0
    assert next_window(100.0, 0, 100, QUEUED, SHORTEST) == 100.0


def test_heavy_loss_halves_it_whatever_the_round_trip() -> None:
    assert next_window(100.0, 50, 50, SHORTEST, SHORTEST) == 50.0


def test_some_loss_shrinks_it_only_where_the_path_queues() -> None:
    assert next_window(100.0, 9, 91, QUEUED, SHORTEST) == 85.0
    assert next_window(100.0, 9, 91, SHORTEST, SHORTEST) > 100.0
    assert next_window(100.0, 9, 91, SHORTEST + 0.8 * QUEUE_NS, SHORTEST) == 100.0


def test_random_loss_settles_where_the_path_holds_the_window() -> None:
    """A path of 100 chunks in 10 ms: what is under way beyond that queues; 9 % of the chunks are late."""
    for window in (8.0, 5000.0):
        seen = []
        for _ in range(100):
            rtt = max(SHORTEST, SHORTEST * window / 100.0)
            window = next_window(window, 9, 91, rtt, SHORTEST)
            seen.append(window)
        assert min(seen[50:]) >= 100.0
        assert max(seen[50:]) <= 350.0
