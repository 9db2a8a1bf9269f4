"""Digests do not depend on how a tensor is cut, and see every bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch

from fsdp_migrate.verify.recorder.batch import digest_together, is_small
from fsdp_migrate.verify.recorder.digest import BLOCK, SAMPLES, Digested, Grid, Range, digest, sample_indices
from fsdp_migrate.verify.recorder.host import digest_on_host, is_for_host

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


def whole(tensor: torch.Tensor) -> Digested:
    return digest(tensor, Range(0, tensor.numel(), tensor.numel()))


def total(parts: list[Digested]) -> int:
    return sum(int(part.digests) for part in parts) % 2**64


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pieces_add_up_to_the_whole(dtype: torch.dtype) -> None:
    tensor = (torch.randn(3, BLOCK + 77) * 100).to(dtype)
    flat, numel = tensor.flatten(), tensor.numel()
    cuts = [0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 9, numel, numel]
    parts = [digest(flat[a:b], Range(a, b - a, numel)) for a, b in itertools.pairwise(cuts)]
    assert total(parts) == int(whole(tensor).digests) % 2**64
    samples = {k: int(bits) for part in parts for k, bits in zip(part.which[0], part.samples, strict=True)}
    expected = whole(tensor)
    assert samples == dict(enumerate(expected.samples.tolist()))


def test_columns_and_blocks_add_up_to_the_whole() -> None:
    tensor = torch.randn(7, 10, 3)
    rows, columns, rest = torch.arange(7), torch.arange(10), torch.arange(3)
    parts = [
        digest(tensor[r][:, c], Grid((r, c, rest), tuple(tensor.shape)))
        for r in (rows[:4], rows[4:])
        for c in (columns[:3], columns[3:9], columns[9:], columns[:0])
    ]
    assert total(parts) == int(whole(tensor).digests) % 2**64


Together = Callable[[Sequence[torch.Tensor], Sequence[Range], Sequence[bool]], Digested]


def agree(together: Together, tensors: list[torch.Tensor], places: list[Range], wanted: list[bool]) -> None:
    """Several at once are what each is by itself."""
    found = together(tensors, places, wanted)
    alone = [digest(*each) for each in zip(tensors, places, wanted, strict=True)]
    assert found.digests.tolist() == [int(one.digests) for one in alone]
    assert (found.which, found.numels) == (tuple(one.which[0] for one in alone), tuple(one.numels[0] for one in alone))
    assert {found.dtype} == {one.dtype for one in alone}
    assert found.samples.tolist() == torch.cat([one.samples for one in alone]).tolist()
    # The same squares, added up in another order, in float64.
    numbers = torch.cat([one.numbers for one in alone])
    torch.testing.assert_close(found.numbers, numbers, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("together", [digest_together, digest_on_host])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_at_once_are_digested_as_each_by_itself(dtype: torch.dtype, together: Together) -> None:
    numel = 3 * BLOCK
    places = [Range(0, 1, 1), Range(0, 50, 50), Range(17, 30, 50), Range(BLOCK, BLOCK, numel), Range(5, 9, numel)]
    tensors = [(torch.randn(place.length) * 100).to(dtype) for place in places]
    if dtype.is_floating_point:
        tensors[1][3] = float("inf")
        tensors[2][3] = float("nan")
    assert all(map(is_small, tensors, places))
    agree(together, tensors, places, [True, True, False, True, True])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_host_takes_what_crosses_blocks_and_what_is_empty(dtype: torch.dtype) -> None:
    numel = 4 * BLOCK
    places = [Range(0, 0, 50), Range(0, 7, 7), Range(BLOCK - 5, 2 * BLOCK + 11, numel), Range(9, 0, 20)]
    places += [Range(3, BLOCK // 2, numel), Range(BLOCK + 1, 3 * BLOCK - 1, numel), Range(0, 40, 40)]
    tensors = [(torch.randn(place.length) * 100).to(dtype) for place in places]
    assert all(map(is_for_host, tensors, places))
    agree(digest_on_host, tensors, places, [True] * len(places))
    agree(digest_on_host, tensors[:1], places[:1], [True])


def test_the_host_takes_what_has_gradients_or_strides() -> None:
    tensor = torch.randn(40, 30, requires_grad=True)
    agree(digest_on_host, [tensor, tensor.t(), tensor.flatten()], [Range(0, 1200, 1200)] * 3, [True] * 3)
    assert tensor.requires_grad


def test_the_host_does_not_take_other_forms() -> None:
    tensor = torch.ones(10)
    assert not is_for_host(tensor, Grid((torch.arange(2), torch.arange(5)), (4, 5)))
    assert not is_for_host(tensor, Range(0, 5, 5))
    assert not is_for_host(tensor.to(torch.complex64), Range(0, 10, 10))
    assert not is_for_host(tensor.to("meta"), Range(0, 10, 10))


def test_what_crosses_a_block_or_is_empty_is_not_small() -> None:
    tensor = torch.ones(10)
    assert not is_small(tensor, Range(BLOCK - 5, 10, 2 * BLOCK))
    assert not is_small(tensor[:0], Range(0, 0, 10))
    assert not is_small(tensor, Grid((torch.arange(2), torch.arange(5)), (4, 5)))


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_one_bit_is_seen_and_so_is_the_order(dtype: torch.dtype) -> None:
    tensor = torch.randn(1000).to(dtype)
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    changed = tensor.clone()
    changed.view(integers)[617] ^= 1
    swapped = tensor.clone()
    swapped[[3, 700]] = tensor[[700, 3]]
    zeros, negative = torch.zeros(5, dtype=dtype), -torch.zeros(5, dtype=dtype)
    digests = [int(whole(t).digests) for t in (tensor, changed, swapped, zeros, negative, torch.zeros(6, dtype=dtype))]
    assert len(set(digests)) == len(digests)


def test_numbers_quantify() -> None:
    tensor = torch.tensor([3.0, -4.0, 0.0])
    assert whole(tensor).numbers.tolist() == [[25.0, -1.0, 4.0, 0.0]]
    assert whole(torch.tensor([1.0, float("inf"), float("nan")])).numbers[0, 3] == 2


def test_samples_have_the_first_and_the_last_element() -> None:
    assert sample_indices(3) == [0, 1, 2]
    found = sample_indices(1000)
    assert (found[0], found[-1], len(set(found))) == (0, 999, SAMPLES)


def test_nothing_is_changed_and_no_random_number_drawn() -> None:
    tensors = [torch.randn(100, requires_grad=True), torch.arange(100), torch.randn(2 * BLOCK, dtype=torch.float64)]
    before, state = [tensor.clone() for tensor in tensors], torch.get_rng_state()
    for tensor in tensors:
        whole(tensor)
        digest_on_host([tensor], [Range(0, tensor.numel(), tensor.numel())], [True])
    assert all(map(torch.equal, tensors, before))
    assert torch.equal(state, torch.get_rng_state())
