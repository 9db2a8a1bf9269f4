"""`fsdp` and `fsdp_config` of transformers' arguments in Python: what moves, how it is written, and what is kept."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_findings, check_noop, check_rewrites, findings, rewrite

IMPORTS = "from transformers import TrainingArguments\n"


def _after(source: str) -> str:
    return rewrite(IMPORTS + source).source.decode()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        ("fsdp='full_shard'", "fsdp='full_shard', fsdp_config={\"version\": 2}"),
        ("fsdp=True, fsdp_config=None", 'fsdp=True, fsdp_config={"version": 2}'),
        ("fsdp=True, fsdp_config={}", 'fsdp=True, fsdp_config={"version": 2}'),
        ("fsdp=True, fsdp_config={'version': 1}", "fsdp=True, fsdp_config={'version': 2}"),
        ("fsdp=True, fsdp_config={'fsdp_use_orig_params': True}", "fsdp=True, fsdp_config={'fsdp_version': 2}"),
        (
            "fsdp=['shard_grad_op', 'auto_wrap'], fsdp_config={'xla': False}",
            "fsdp=['shard_grad_op', 'auto_wrap'], "
            "fsdp_config={'xla': False, 'version': 2, 'reshard_after_forward': False}",
        ),
        (
            "fsdp='full_shard offload', fsdp_min_num_params=0",
            'fsdp=\'full_shard offload\', fsdp_config={"version": 2, "cpu_offload": True}',
        ),
        (
            "fsdp='full_shard', fsdp_transformer_layer_cls_to_wrap='A, B'",
            'fsdp=\'full_shard\', fsdp_config={"transformer_layer_cls_to_wrap": ["A", "B"], "version": 2}',
        ),
        (
            "fsdp='full_shard' if on else '', fsdp_config={'cpu_offload': False} if on else None",
            "fsdp='full_shard' if on else '', fsdp_config={'cpu_offload': False, 'version': 2} if on else None",
        ),
        (
            "fsdp=True, fsdp_config={'reshard_after_forward': 'shard_grad_op'}",
            "fsdp=True, fsdp_config={'reshard_after_forward': False, 'version': 2}",
        ),
    ],
)
def test_a_call_moves(arguments: str, after: str) -> None:
    text = " ".join(_after(f"arguments = TrainingArguments({arguments})\n").split())
    assert text.replace("( ", "(").replace(", )", ")").replace(" )", ")").endswith(f"TrainingArguments({after})")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("TrainingArguments(fsdp=args.fsdp, fsdp_config={'xla': False})", "without a version"),
        ("TrainingArguments(fsdp=True, fsdp_config=read())", "without a version"),
        ("TrainingArguments(fsdp=True, fsdp_config={**base})", "without a version"),
        ("TrainingArguments(fsdp='full_shard', **options)", "without a version"),
        ("TrainingArguments(fsdp=args.fsdp, fsdp_config='fsdp.json')", "fsdp.json sets the FSDP version"),
        ("TrainingArguments(fsdp='hybrid_shard auto_wrap')", "refuses hybrid_shard"),
        ("TrainingArguments(fsdp='no_shard', fsdp_config={'version': 1})", "refuses no_shard"),
        ("TrainingArguments(fsdp=True, fsdp_config={'auto_wrap_policy': 'SIZE_BASED_WRAP'})", "SIZE_BASED_WRAP fails"),
    ],
)
def test_a_call_is_kept(line: str, said: str) -> None:
    source = f"{IMPORTS}arguments = {line}\n"
    assert line in _after(f"arguments = {line}\n")
    check_findings(source, {("FSDP552", "manual")})
    assert any(said in one.message for one in findings(source))


def test_a_dictionary_of_a_variable_moves_in_its_place() -> None:
    check_rewrites(
        """
        from trl import SFTConfig

        settings = {
            "transformer_layer_cls_to_wrap": ["Block"],  # one unit per layer
            "backward_prefetch": "backward_pre",
        }
        config = SFTConfig(
            output_dir="out",
            fsdp="full_shard auto_wrap",
            fsdp_config=settings,
            fsdp_transformer_layer_cls_to_wrap=None,
        )
        """,
        """
        from trl import SFTConfig

        settings = {
            "transformer_layer_cls_to_wrap": ["Block"],  # one unit per layer
            "version": 2,
        }
        config = SFTConfig(
            output_dir="out",
            fsdp="full_shard auto_wrap",
            fsdp_config=settings,
        )
        """,
    )


def test_a_dictionary_that_others_read_is_kept() -> None:
    source = f"{IMPORTS}settings = {{'xla': False}}\nprint(settings)\n"
    check_findings(f"{source}a = TrainingArguments(fsdp=True, fsdp_config=settings)\n", {("FSDP552", "manual")})


def test_arguments_that_are_unpacked_later() -> None:
    check_rewrites(
        """
        kwargs = dict(
            fsdp="full_shard auto_wrap",
            fsdp_config={"transformer_layer_cls_to_wrap": [name]},
        )
        """,
        """
        kwargs = dict(
            fsdp="full_shard auto_wrap",
            fsdp_config={"transformer_layer_cls_to_wrap": [name], "version": 2},
        )
        """,
    )
    check_noop("kwargs = dict(fsdp=True, other=1)\noptions = {'fsdp': config, 'a': {'fsdp': 'on'}}\n")


def test_subclasses_and_their_defaults() -> None:
    source = (
        f"{IMPORTS}class Mine(TrainingArguments):\n    fsdp: str = 'full_shard auto_wrap'\n"
        "mine = Mine('out', fsdp='full_shard', fsdp_config={'xla': False})\n"
    )
    check_findings(source, {("FSDP552", "manual"), ("FSDP552", "review")})
    assert "{'xla': False, 'version': 2}" in rewrite(source).source.decode()  # type: ignore[union-attr]


def test_keys_that_were_never_read_are_said() -> None:
    source = f"{IMPORTS}a = TrainingArguments(fsdp='full_shard', fsdp_config={{'fsdp_offload_params': True}})\n"
    manual = [one.message for one in findings(source) if one.level.value == "manual"]
    assert manual == ["fsdp_offload_params is never read: the word `offload` in `fsdp` enables offloading"]


def test_a_file_of_settings_is_a_note() -> None:
    check_findings(f"{IMPORTS}TrainingArguments(fsdp='full_shard', fsdp_config='f.json')\n", {("FSDP552", "info")})
