"""Real time: the core over UDP. A software switch, its control plane, and the agent inside a training process."""
