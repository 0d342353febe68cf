"""A training job of the demonstration: the same command with and without Paceline.

The loop is that of `paceline.experiments.live.training`: gradients of a real model over Gloo, or, beside a switch,
summed by it, with ranks that help a slow one. A sleep stands for the device.
"""

from paceline.experiments.live.training import main

if __name__ == "__main__":
    main()
