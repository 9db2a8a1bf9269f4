"""FSDP122: inputs that units share, in a tree with the words of cross-attention; the shim adds up as FSDP1 does."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

WRAPS = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{words}

def build(model):
    return FSDP(model)
"""


@pytest.mark.parametrize(
    "words",
    [
        "from transformers.models.t5.modeling_t5 import T5Block",
        "from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer",
        "def forward(x, encoder_hidden_states): ...",
        "class CrossAttention: ...",
    ],
)
def test_said_where_the_words_are(words: str) -> None:
    found = [f for f in findings(WRAPS.format(words=words)) if f.rule == "FSDP122"]
    assert [(f.line, f.level.value) for f in found] == [(6, "review")]
    assert "FSDP122" not in {f.rule for f in findings(WRAPS.format(words=words), Settings(to="shim"))}


def test_said_where_an_imported_file_has_the_words() -> None:
    found = findings(WRAPS.format(words="import layers"), layers="class CrossAttention: ...")
    assert "FSDP122" in {f.rule for f in found}


@pytest.mark.parametrize("words", ["", "from transformers import LlamaDecoderLayer", "attention = 'across'"])
def test_not_said_elsewhere(words: str) -> None:
    assert "FSDP122" not in {f.rule for f in findings(WRAPS.format(words=words))}
