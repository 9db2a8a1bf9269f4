"""What ``convert --to safetensors`` writes is what transformers' own ``from_pretrained`` loads, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fsdp_migrate.cli import main

transformers = pytest.importorskip("transformers", reason="make frameworks installs transformers")
pytestmark = pytest.mark.filterwarnings("default")

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}


def _model(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
        return transformers.GPT2LMHeadModel(config)
    is_tied = kind == "tied llama"
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS, tie_word_embeddings=is_tied))


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "tied llama"])
def test_transformers_loads_it(kind: str, shard_size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tied weights are in the files once, as transformers writes them."""
    model = _model(kind)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    state = model.state_dict()
    torch.save({"model": state, "step": 1}, tmp_path / "full.pt")
    target = tmp_path / "model"
    options = ("--to", "safetensors", "--shard-size", shard_size)
    assert main(["checkpoint", "convert", str(tmp_path / "full.pt"), str(target), *options]) == 0, capsys.readouterr()
    assert (target / "model.safetensors.index.json").exists() is (shard_size == "20KB")
    written = [name for file in target.glob("*.safetensors") for name in load_file(file)]
    assert ("lm_head.weight" in written) is (kind == "llama")
    model.config.save_pretrained(target)
    loaded, report = type(model).from_pretrained(target, output_loading_info=True)
    assert [list(report[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")] == [[], [], []]
    found = loaded.state_dict()
    assert found.keys() == state.keys()
    assert [name for name, value in state.items() if not torch.equal(found[name], value)] == []
    tokens = torch.arange(8)[None]
    assert torch.equal(loaded(input_ids=tokens).logits, model.eval()(input_ids=tokens).logits)


def test_the_index_is_as_transformers_writes_it(tmp_path: Path) -> None:
    model = _model("llama")
    torch.save(model.state_dict(), tmp_path / "full.pt")
    target = tmp_path / "model"
    options = ("--to", "safetensors", "--shard-size", "20KB")
    assert main(["checkpoint", "convert", str(tmp_path / "full.pt"), str(target), *options]) == 0
    model.save_pretrained(tmp_path / "own", max_shard_size="20KB")
    own, index = (
        json.loads((folder / "model.safetensors.index.json").read_text()) for folder in (tmp_path / "own", target)
    )
    assert index["weight_map"].keys() == own["weight_map"].keys()
    assert index["metadata"]["total_size"] == own["metadata"]["total_size"]
