"""Lightning over Paceline: one argument of the strategy.

pip install lightning
torchrun --standalone --nproc-per-node 2 examples/frameworks/lightning_fit.py
"""

import os
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from spirals import build, dataset, loss_of
from torch.utils.data import DataLoader


class Spirals(lightning.LightningModule):
    """What Lightning trains."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build()

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        loss = loss_of(self.model, batch)
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_end(self) -> None:
        if self.global_rank == 0:
            loss = float(self.trainer.callback_metrics["loss"])
            print(
                f"backend {dist.get_backend()}, ranks {self.trainer.world_size}, loss {loss:.4f}", flush=True
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


if __name__ == "__main__":
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy=DDPStrategy(process_group_backend="paceline"),  # the one change
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Spirals(), DataLoader(dataset(), batch_size=32, shuffle=True))
