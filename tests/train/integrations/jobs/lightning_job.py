"""A Lightning Trainer as a user would write it."""

import os
import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parents[4]))

from brim.train.callbacks.lightning import BrimCallback, ResumableLoader, newest_checkpoint
from tests.train.integrations.jobs.around import SAMPLES, after, net, rows, say


class Rows(Dataset):
    """Items with noise from the generators that the callback has to bring back."""

    def __init__(self):
        self.x, self.y = rows()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(8), self.y[index]


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]) + torch.rand(()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Events(Callback):
    first, last = None, 0

    def __init__(self, out):
        self.out = out

    def on_train_start(self, trainer, *_):
        self.last = trainer.global_step

    def on_validation_start(self, trainer, *_):
        if trainer.sanity_checking:
            after(0, self.out)

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step != self.last:
            self.first, self.last = self.first or trainer.global_step, trainer.global_step
            after(self.last, self.out)


class Begins(Callback):
    def on_train_epoch_start(self, trainer, *_):
        trainer.accumulate_grad_batches = 2


def main(out, *options):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    seed_everything(5)
    kind = DataLoader if "plain" in options else ResumableLoader
    size, seen = int(os.environ.get("WORLD_SIZE", "1")), Events(out)
    callbacks = [seen, *([Begins()] if "begins" in options else []), BrimCallback(out)]
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", devices=size, strategy="ddp" if size > 1 else "auto", logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
        accumulate_grad_batches=2, limit_train_batches=6, max_steps=100 if "max_steps" in options else -1,
    )  # fmt: skip
    model = Model()
    loader = kind(Rows(), batch_size=4, shuffle=True, num_workers=int("worker" in options))
    trainer.fit(model, loader, DataLoader(Rows(), batch_size=4), ckpt_path=newest_checkpoint(out))
    say(out, model.net, trainer.global_step, seen.first)


if __name__ == "__main__":
    main(*sys.argv[1:])
