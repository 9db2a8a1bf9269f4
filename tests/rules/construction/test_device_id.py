"""FSDP106: where the parameters are."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.construction.helpers import IMPORTS, is_native, wrapped
from tests.rules.helpers import rewrite

MESH = "mesh=init_device_mesh({}, (dist.get_world_size(),))"


@pytest.mark.parametrize(
    ("value", "above"),
    [
        ("None", ""),
        ("torch.cuda.current_device()", ""),
        ("torch.device('cuda')", ""),
        ("device", "device = torch.device('cuda')"),
        ("device", "device = torch.cuda.current_device()"),
        ("args.rank", "torch.cuda.set_device(args.rank)"),
    ],
)
def test_the_current_device_is_not_set_again(value: str, above: str) -> None:
    text = wrapped(f"device_id={value}", above)
    assert "fully_shard(model)" in text
    assert text.count("set_device(") == above.count("set_device(")


@pytest.mark.parametrize(
    ("value", "parameters"),
    [
        ("0", "model, args"),
        ("args.rank % 8", "model, args"),
        ("local_rank", "model, local_rank"),
        ("place", "model, place: int"),
        ("torch.device('cuda:1')", "model, args"),
        ("torch.device('cuda', args.rank)", "model, args"),
        ("torch.device(type='cuda', index=1)", "model, args"),
        ("torch.device(args.rank)", "model, args"),
        ("torch.device(f'cuda:{args.place}')", "model, args"),
    ],
)
def test_another_device_becomes_the_current_one(value: str, parameters: str) -> None:
    text = wrapped(f"device_id={value}", parameters=parameters)
    assert f"    torch.cuda.set_device({value})\n    fully_shard(model)\n" in text


def test_one_of_several_devices_becomes_the_current_one() -> None:
    above = "if args.first:\n    place = torch.device('cuda:0')\nelse:\n    place = torch.device('cuda:1')"
    assert "    torch.cuda.set_device(place)\n    fully_shard(model)\n" in wrapped("device_id=place", above)


@pytest.mark.parametrize("value", ["torch.device('cpu')", "torch.device('cpu', 0)"])
def test_the_cpu_is_a_mesh_of_it(value: str) -> None:
    text = wrapped(f"device_id={value}")
    assert "fully_shard(model, " + MESH.format('"cpu"') in text and "set_device" not in text


@pytest.mark.parametrize(
    "above",
    [
        "if args.gpu:\n    place = torch.device('cuda')\nelse:\n    place = torch.device('cpu')",
        "place = torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "place = torch.device('cuda:0') if args.gpu else torch.device('cpu')",
        "place = torch.device(args.place)",
    ],
)
def test_a_device_that_is_chosen_at_run_time_is_set_where_it_has_an_index(above: str) -> None:
    text = wrapped("device_id=place", above)
    assert is_native(text) and MESH.format("place.type") in text
    assert 'if place.type == "cuda" and place.index is not None:\n        torch.cuda.set_device(place)\n' in text


def test_a_parameter_may_be_a_device_or_a_number() -> None:
    assert MESH.format("place.type") in wrapped("device_id=place", parameters="model, place: torch.device")
    text = wrapped("device_id=place", parameters="model, place")
    assert MESH.format("torch.device(place).type") in text
    assert 'if torch.device(place).type == "cuda" and torch.device(place).index is not None:' in text


@pytest.mark.parametrize("value", ['settings["device"]', "self.settings.devices[0]"])
def test_an_item_of_a_configuration_is_asked_for_its_type(value: str) -> None:
    text = wrapped(f"device_id={value}", parameters="model, self, settings")
    assert MESH.format(f"torch.device({value}).type") in text
    assert "fsdp_compat" not in text


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("torch.device(args.place)", "device"),
        ("torch.device('xpu')", "device"),
        ("args.rank if args.gpu else torch.device('cpu')", "torch.device(device)"),
        ("torch.device(f'cuda:{args.rank}' if args.gpu else 'cpu')", "device"),
    ],
)
def test_what_surely_is_a_device_has_a_name_for_the_mesh(value: str, place: str) -> None:
    text = wrapped(f"device_id={value}")
    assert is_native(text) and MESH.format(f"{place}.type") in text
    assert text.index(f"device = {value}\n") < text.index("torch.cuda.set_device(device)")


@pytest.mark.parametrize("other", ["torch.device('cpu')", "'cpu'", "None"])
def test_the_device_of_the_default_mesh_is_not_named(other: str) -> None:
    value = f"torch.cuda.current_device() if torch.cuda.is_available() else {other}"
    assert ("    fully_shard(model)\n" in wrapped(f"device_id={value}")) is (other != "'cpu'")


@pytest.mark.parametrize(
    "value", ["pick(args)", "'cpu' if args.slow else None", "torch.device('cpu') if args else None"]
)
def test_what_is_not_seen_is_left_to_the_helper(value: str) -> None:
    assert f"fsdp_compat.shard(model, device_id={value})" in wrapped(f"device_id={value}")


@pytest.mark.parametrize(
    ("value", "parameters"),
    [
        ("args.rank if args.gpu else None", "model, args"),
        ("None if args.slow else torch.device('cuda', args.rank)", "model, args"),
        ("device_id", "model, device_id: Optional[int]"),
        ("device_id", "model, device_id: int | None = None"),
    ],
)
def test_none_leaves_the_current_device(value: str, parameters: str) -> None:
    text = wrapped(f"device_id={value}", parameters=parameters)
    name = value if value == "device_id" else "device"
    assert f"    if {name} is not None:\n        torch.cuda.set_device({name})\n    fully_shard(model)\n" in text
    assert (f"    {name} = {value}\n" in text) is (name == "device")
    # It is the current one already.
    text = wrapped(f"device_id={value}", "torch.cuda.set_device(3)", parameters=parameters)
    assert "    fully_shard(model)\n" in text and "is not None" not in text
    # What rank 0 sends has to be on the device first.
    assert "fsdp_compat.shard(" in wrapped(f"device_id={value}, sync_module_states=True", parameters=parameters)


def test_the_current_device_or_none_is_that_of_the_default_mesh() -> None:
    assert "    fully_shard(model)\n" in wrapped("device_id=torch.cuda.current_device() if args.gpu else None")


def test_an_index_or_the_current_device() -> None:
    value = "device_id or torch.cuda.current_device()"
    text = wrapped(f"device_id={value}", parameters="model, device_id: Optional[int] = None")
    assert f"    torch.cuda.set_device({value})\n    fully_shard(model)\n" in text
    assert "fsdp_compat.shard(" in wrapped(f"device_id={value}", parameters="model, device_id")


def test_both_arms_of_one_kind_are_that_kind() -> None:
    value = "args.rank if args.many else 0"
    assert f"    torch.cuda.set_device({value})\n    fully_shard(model)\n" in wrapped(f"device_id={value}")


@pytest.mark.parametrize(("default", "given"), [("=None", ""), ("", ", None"), ("=None", ", device_id=args.device")])
def test_no_type_is_asked_of_a_device_that_may_be_none(default: str, given: str) -> None:
    source = (
        f"{IMPORTS}\n\ndef build(model, device_id{default}):\n    return FSDP(model, device_id=device_id)\n\n"
        f"def main(model, args):\n    return build(model{given})\n"
    )
    result = rewrite(source)
    assert isinstance(result, Changed)
    helped = "fsdp_compat.shard(model, device_id=device_id)" in result.source.decode()
    assert helped is ("args" not in given)
    said = [one.message for one in result.findings if one.rule == "FSDP101"]
    assert any("device_id=device_id may be None" in one for one in said) is helped


def test_an_attribute_that_is_set_where_it_is_first_read_is_a_device() -> None:
    source = (
        f"{IMPORTS}\n\nclass Runner:\n    _device = None\n\n    @property\n    def device(self):\n"
        "        if self._device is None:\n            self._device = torch.device(self.config.device)\n"
        "        return self._device\n\n    def wrap(self, model):\n"
        "        return FSDP(model, device_id=self.device)\n"
    )
    result = rewrite(source)
    assert isinstance(result, Changed) and "fsdp_compat" not in result.source.decode()
