"""TRL's GRPOTrainer, a step at a time."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch

with warnings.catch_warnings():  # about versions of engines that TRL would use
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

from mempo.bench.race import Lap
from mempo.bench.subject import Subject


class _Clock(TrainerCallback):
    """Times what TRL does from a step's begin to its end, the optimiser's step included."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.begin = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        wall, cpu = self.begin
        self.lap = Lap(time.perf_counter() - wall, time.process_time() - cpu)


class TrlStep:
    """A trainer with all prompts in each step; what is not named here is TRL's default."""

    def __init__(
        self,
        subject: Subject,
        prompts_Q: Sequence[list[int]],
        reward: Callable[[Sequence[int]], float],
        *,
        group: int,
        output: int,
        dtype: str,
        micro_batch: int,
        checkpointing: bool,
    ):
        self.tokens = 0
        self.seen: dict[str, Any] = {}  # what the last step was trained on

        def rewards(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
            self.tokens = sum(map(len, completion_ids))
            return [reward(ids) for ids in completion_ids]

        config = GRPOConfig(
            output_dir=str(Path(gettempdir()) / "mempo-bench-trl"),  # nothing is saved
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=len(prompts_Q) * group // micro_batch,
            num_generations=group,
            max_completion_length=output,
            gradient_checkpointing=checkpointing,
            bf16=dtype == "bfloat16",
            use_cpu=not torch.cuda.is_available(),
            max_steps=1,
            lr_scheduler_type="constant",
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
        )
        text = subject.codec.text
        self.clock = _Clock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer = GRPOTrainer(
                model=subject.model(dtype),
                reward_funcs=[rewards],
                args=config,
                train_dataset=Dataset.from_list([{"prompt": text(ids)} for ids in prompts_Q]),
                processing_class=subject.codec.tokenizer,
                callbacks=[self.clock],
            )
        self.trainer.remove_callback(PrinterCallback)
        score = self.trainer._generate_and_score_completions

        def note(inputs: Any) -> Any:
            self.seen = score(inputs)
            return dict(self.seen)

        self.trainer._generate_and_score_completions = note

    def step(self) -> Lap:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer.train()
        return self.clock.lap

    @property
    def logged(self) -> dict[str, float]:
        """What TRL logged of the last step: loss, grad_norm, ..."""
        return [entry for entry in self.trainer.state.log_history if "grad_norm" in entry][-1]
