"""FSDP304 and 309: how calls that grow are laid out."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_rewrites

BEFORE = """\
import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, path, others, somewhere_else):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
        {body}
"""
AFTER = """\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

def save(model, path, others, somewhere_else):
    {body}
"""
NAMED = "options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n    "
GET = "get_model_state_dict(model, options={})"
NAME = GET.format("options")
SPELLED = GET.format("StateDictOptions(full_state_dict=True, cpu_offload=True)")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("f({})", ""),
        ("torch.save({}, path / somewhere_else)", NAMED),
        ("return {{**others, **{{f'{{path}}.{{k}}': v for k, v in {}.items()}}}}", NAMED),
        ("return [(k, v.clone()) for k, v in {}.items() if k in others]", NAMED),
        ("return others[path].restored({}, path)", NAMED),
    ],
)
def test_a_call_inside_of_brackets_stays_on_its_line(body: str, expected: str) -> None:
    state = NAME if expected else SPELLED
    check_rewrites(
        BEFORE.format(body=body.format("model.state_dict()")), AFTER.format(body=expected + body.format(state))
    )


def test_a_name_that_is_taken_is_not_taken_again() -> None:
    body = "return {{**others, **{{options: v for options, v in {}.items()}}}}"
    named = NAMED.replace("options =", "state_dict_options =")
    check_rewrites(
        BEFORE.format(body=body.format("model.state_dict()")),
        AFTER.format(body=named + body.format(GET.format("state_dict_options"))),
    )


def test_where_no_statement_fits_in_front_the_line_grows() -> None:
    body = "for k, v in sorted({}.items(), key=somewhere_else):\n        {}print(k, v)"
    check_rewrites(
        BEFORE.format(body=body.format("model.state_dict()", "    ")),
        AFTER.format(body=body.format(SPELLED, "")),
        Settings(line_length=200),
    )


def test_a_call_that_ends_its_line_is_broken() -> None:
    place = "others.states.of_all_models_that_there_are = {}"
    broken = "get_model_state_dict(\n        model,\n        {},\n    )"
    options = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
    check_rewrites(
        BEFORE.format(body=place.format("model.state_dict()")),
        AFTER.format(body=place.format(broken.format(options))),
    )
