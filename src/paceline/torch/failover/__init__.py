"""All-reduces that outlive a path: agents, Gloo, and the way back; none lost or doubled."""
