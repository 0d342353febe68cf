"""PyTorch: the `paceline` backend of `torch.distributed`, and what builds on it.

    torch.distributed.init_process_group("paceline")

Importing this registers the backend, and `import torch` does so by itself where the package is installed
(`paceline.torch_autoload`). It costs little, since everything else is imported when a group is made.
"""

import os
from typing import Any

import torch.distributed

BACKEND = "paceline"


def register() -> None:
    """Make `paceline` known to torch."""
    if torch.distributed.is_available() and BACKEND.upper() not in torch.distributed.Backend._plugins:
        torch.distributed.Backend.register_backend(BACKEND, _create, extended_api=True, devices=devices())
        if os.environ.get("PACELINE_BACKEND"):
            from paceline.torch.auto_backend import install

            install()


def devices() -> list[str]:
    """The types of devices whose tensors a group takes here."""
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def _create(options: Any, backend_options: Any = None) -> Any:
    from paceline.torch.process_group import create

    return create(options, backend_options)


def status() -> list[dict[str, Any]]:
    """What the groups of this process do: path, counters, the latest events."""
    from paceline.torch.process_group import GROUPS

    return sorted((group.status() for group in GROUPS), key=lambda shown: str(shown["group"]))


register()
