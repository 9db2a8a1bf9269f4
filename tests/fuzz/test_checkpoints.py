"""Generated and broken checkpoints, the same ones on every run; ``make fuzz`` draws others."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import checkpoint_properties, checkpoints

ROOT = Path(__file__).parents[2]
_SAME = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


@given(st.integers(0, 2**32))
@settings(_SAME, max_examples=100)
def test_structures(seed: int) -> None:
    checkpoint_properties.hold(checkpoints.structured(random.Random(seed)))


@given(st.integers(0, 2**32))
@settings(_SAME, max_examples=150)
def test_broken_files(seed: int) -> None:
    checkpoint_properties.hold(checkpoints.broken(random.Random(seed)))


@given(st.sampled_from(("model.pt", "model.safetensors", ".metadata", "model.safetensors.index.json")), st.binary())
@settings(_SAME, max_examples=200)
def test_bytes(name: str, data: bytes) -> None:
    checkpoint_properties.hold(checkpoints.packed({name: data}))


def test_any_hash_seed_gives_the_same() -> None:
    """Checkpoint commands have no jobs; order in sets is what could change from run to run."""
    command = [sys.executable, "-m", "tests.fuzz.hashed", "0", "20"]
    runs = [
        subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout.splitlines()
        for seed in ("0", "1", "4294967295")
    ]
    assert len(runs[0]) == 100
    assert runs[0] == runs[1] == runs[2]
