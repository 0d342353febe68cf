import socket

from paceline.ports import FIRST_PORT, PORTS, free_port


def test_ports_are_below_those_of_linux_and_not_given_twice() -> None:
    found = [free_port() for _ in range(50)] + [free_port(after=2) for _ in range(50)]
    assert len(set(found)) == 100
    assert all(FIRST_PORT <= port < FIRST_PORT + PORTS for port in found)


def test_a_port_whose_neighbour_is_taken_is_passed_over() -> None:
    first = free_port(after=3)
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        # The next that it would give: its second UDP port is in use.
        taken.bind(("127.0.0.1", first + 6))
        port = free_port(after=3)
    assert first + 6 not in range(port + 1, port + 4)
