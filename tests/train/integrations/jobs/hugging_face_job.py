"""A Trainer as a user would write it."""

import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).parents[4]))

from brim.train.callbacks.hugging_face import BrimCallback, newest_checkpoint
from tests.train.integrations.jobs.around import SAMPLES, after, say


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(0, 20, (6,), generator=generator), "labels": torch.tensor(index % 3)}


class Events(TrainerCallback):
    first = None

    def on_step_end(self, args, state, control, **_):
        self.first = self.first or state.global_step
        after(state.global_step, args.output_dir)


def main(out):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                        num_labels=3, hidden_dropout_prob=0.2)  # fmt: skip
    arguments = TrainingArguments(
        output_dir=out, num_train_epochs=2, per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True,
        save_strategy="steps", save_steps=3, logging_steps=2, eval_strategy="epoch", report_to=[], disable_tqdm=True,
        learning_rate=0.01, seed=5,
    )  # fmt: skip
    seen = Events()
    trainer = Trainer(
        BertForSequenceClassification(config), arguments, train_dataset=Rows(), eval_dataset=Rows(),
        callbacks=[seen, BrimCallback()],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=newest_checkpoint(out))
    say(out, trainer.model, trainer.state.global_step, seen.first)


if __name__ == "__main__":
    main(*sys.argv[1:])
