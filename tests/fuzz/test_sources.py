"""Generated and broken sources, the same ones on every run; ``make fuzz`` draws others for as long as it is given."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import fragments, mutations, programs, source_properties

_SAME = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


@given(st.integers(0, 2**32))
@settings(_SAME, max_examples=80)
def test_programs(seed: int) -> None:
    source = programs.source(random.Random(seed))
    source_properties.hold(source.data, source.neutral)


@given(st.integers(0, 2**32))
@settings(_SAME, max_examples=150)
def test_broken_sources(seed: int) -> None:
    source_properties.hold(mutations.mutated(random.Random(seed)))


@given(st.binary(max_size=400))
@settings(_SAME, max_examples=500)
def test_bytes(data: bytes) -> None:
    source_properties.hold(data)
    source_properties.hold(b"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n" + data)


@given(st.text(alphabet=st.sampled_from("FSDP(model)=.:,\n \t'\"#\\@*[]{}if\r\f;"), max_size=120))
@settings(_SAME, max_examples=500)
def test_text(text: str) -> None:
    source_properties.hold(f"{fragments.IMPORTS[0]}\n{text}".replace("@F", "FSDP").encode())
