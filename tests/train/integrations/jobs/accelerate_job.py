"""A loop with Accelerate as a user would write it."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

sys.path.insert(0, str(Path(__file__).parents[4]))

from brim.train.callbacks.accelerate import BrimLoop
from tests.train.integrations.jobs.around import after, net, rows, say


def main(out):
    torch.set_num_threads(1)
    set_seed(5)
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True), gradient_accumulation_steps=2
    )
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows()), batch_size=4, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    loop, first = BrimLoop(accelerator, out), None
    for _ in loop.epochs(3):
        for x, y in loop.batches(loader):
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                first = first or loop.steps + 1
                after(loop.steps + 1, out)
            loop.step(loss.item())
        loop.save()
    say(out, accelerator.unwrap_model(model), loop.steps, first)


if __name__ == "__main__":
    main(*sys.argv[1:])
