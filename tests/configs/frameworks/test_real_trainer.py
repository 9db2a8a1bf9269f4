"""Training by transformers' Trainer before and after a rewrite of its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdp_rules.verdict.result import Changed
from tests.pool import Pool
from tests.rules.helpers import findings, rewrite

pytest.importorskip("transformers", reason="make frameworks installs transformers")
pytestmark = pytest.mark.filterwarnings("default")
HEAD = """
from transformers import TrainingArguments

arguments = TrainingArguments(
    folder, use_cpu=True, max_steps=4, per_device_train_batch_size=2, logging_steps=1, save_strategy="no", seed=3,
    report_to=[], disable_tqdm=True, learning_rate=0.01, lr_scheduler_type="constant", max_grad_norm=0.0,
"""


def _train(pool: Pool, folder: Path, arguments: str) -> list[dict[str, Any]]:
    from tests.configs.frameworks.trainer_worker import train

    before = f"{HEAD}    {arguments}\n)\n"
    result = rewrite(before)
    after = result.source.decode() if isinstance(result, Changed) else before
    # What an unversioned dictionary meant before transformers 5.10.
    programs = [
        one if '"version"' in one else one.replace("fsdp_config={", 'fsdp_config={"version": 1, ')
        for one in (before, after)
    ]
    return [pool.run(train, 2, program, str(folder))[0] for program in programs]


@pytest.mark.parametrize(
    "arguments",
    [
        'fsdp="full_shard auto_wrap", fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}',
        'fsdp="full_shard auto_wrap", fsdp_config={"backward_prefetch": "backward_pre", "use_orig_params": True}',
        'fsdp="shard_grad_op auto_wrap", fsdp_config={"use_orig_params": True}',
        'fsdp=["full_shard", "auto_wrap"], fsdp_config={"min_num_params": 2000}',
        'fsdp=True, fsdp_config={"activation_checkpointing": True}',
    ],
)
def test_losses_are_equal_before_and_after(arguments: str, pool: Pool, tmp_path: Path) -> None:
    first, second = _train(pool, tmp_path, arguments)
    assert first["class"] == "FullyShardedDataParallel"
    assert second["class"].startswith("FSDP")
    assert len(first["losses"]) == 4
    assert first["losses"] == second["losses"]


def test_low_precision_differs_as_the_finding_says(pool: Pool, tmp_path: Path) -> None:
    arguments = 'bf16=True, fsdp="full_shard auto_wrap", fsdp_config={"use_orig_params": True}'
    accepted = arguments.replace('{"use_orig_params": True}', '{"version": 2}')
    (first, kept), (_, second) = (_train(pool, tmp_path, one) for one in (arguments, accepted))
    assert first["losses"] == kept["losses"] != second["losses"]
    assert any("bf16 changes the losses" in one.message for one in findings(f"{HEAD}    {arguments}\n)\n"))
