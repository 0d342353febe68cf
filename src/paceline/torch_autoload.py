"""What `import torch` calls by itself, through the entry point group `torch.backends`: makes the backend known.

It stands outside `paceline.torch`, since that package may be the very one whose import has brought torch in, and be
half loaded; it then registers itself a moment later. Nothing here may make `import torch` fail.
"""

import logging
import os


def autoload() -> None:
    """Register the backend; costs a millisecond, what it needs is imported when a group is made."""
    try:
        import paceline.torch  # noqa: F401
    except Exception as error:
        # A torch without `distributed`, or one that differs from what we know: asking for the backend then fails.
        logging.getLogger("paceline.torch").debug("the backend paceline is not registered: %r", error)
        return
    adapt()
    if path := os.environ.get("PACELINE_PROFILE"):
        # `paceline profile` runs this script, and wants to know what it does.
        from paceline.torch.profile import profile

        profile(path, int(os.environ.get("PACELINE_PROFILE_STEPS", "20")))


def adapt() -> None:
    """What the environment asks of a program that uses torch; also for a process forked from one that has loaded it."""
    try:
        if os.environ.get("PACELINE_BACKEND"):
            from paceline.torch import auto_backend

            auto_backend.install()
        if os.environ.get("PACELINE_PROGRESS"):
            from paceline.torch import progress

            progress.install()
    except Exception as error:
        logging.getLogger("paceline.torch").debug("the environment was not followed: %r", error)
