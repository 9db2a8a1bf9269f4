"""What pickles may name: all that checkpoints of torch and of frameworks need, and nothing besides."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._weights_only_unpickler

from fixtures.checkpoints import hostile
from fsdp_migrate.checkpoints.judge.judge import findings
from fsdp_migrate.checkpoints.read.danger import needed
from fsdp_migrate.checkpoints.read.unpickle import Global
from fsdp_rules.verdict.finding import Level

#: Callables that run code, touch files or reach the network when a pickle calls them; few of them on anybody's list.
GADGETS = (
    "io.open",
    "_io.FileIO",
    "_pyio.open",
    "codecs.open",
    "builtins.exec",
    "builtins.getattr",
    "builtins.__import__",
    "builtins.type",
    "__builtin__.apply",
    "importlib.import_module",
    "runpy.run_path",
    "shutil.rmtree",
    "pathlib.Path.write_text",
    "tempfile.NamedTemporaryFile",
    "zipfile.ZipFile",
    "tarfile.open",
    "logging.FileHandler",
    "logging.config.dictConfig",
    "ctypes.CDLL",
    "multiprocessing.util.spawnv_passfds",
    "functools.partial",
    "functools.reduce",
    "operator.attrgetter",
    "operator.methodcaller",
    "types.FunctionType",
    "types.CodeType",
    "marshal.loads",
    "pickle.loads",
    "copyreg.add_extension",
    "sqlite3.connect",
    "dbm.open",
    "shelve.open",
    "socket.create_connection",
    "urllib.request.urlopen",
    "http.client.HTTPSConnection",
    "webbrowser.open",
    "asyncio.create_subprocess_shell",
    "code.InteractiveInterpreter",
    "timeit.timeit",
    "cProfile.run",
    "pdb.run",
    "doctest.debug_script",
    "unittest.mock._importer",
    "site.addsitedir",
    "venv.create",
    "ensurepip.bootstrap",
    "lib2to3.pgen2.driver.load_grammar",
    "xmlrpc.client.ServerProxy",
    "torch.load",
    "torch.hub.load",
    "torch.classes.load_library",
    "torch.ops.load_library",
    "torch.utils.cpp_extension.load",
    "torch.storage._load_from_bytes",
    "torch.package.PackageImporter",
    "torch.jit.load",
    "torch._dynamo.guards.GuardBuilder.get",
    "torch.distributed.init_process_group",
    "torch.utils.data.DataLoader",
    "torch.fx.experimental.symbolic_shapes.ShapeEnv",
    "numpy.load",
    "numpy.fromfile",
    "numpy.testing._private.utils.runstring",
    "numpy.f2py.compile",
    "numpy.ctypeslib.load_library",
)


def _naming(dotted: str, where: Path) -> Path:
    """A file of ``torch.save`` whose pickle calls ``dotted`` with a path."""
    module, _, name = dotted.rpartition(".")
    argument = str(where / "written").encode()
    pickled = f"c{module}\n{name}\n".encode() + b"X" + struct.pack("<I", len(argument)) + argument + b"\x85R."
    hostile.archive(b"\x80\x02" + pickled, where / "model.pt")
    return where / "model.pt"


@pytest.mark.parametrize("gadget", GADGETS)
def test_whatever_is_not_needed_is_reported(gadget: str, tmp_path: Path) -> None:
    (found, *_) = findings(_naming(gadget, tmp_path))
    assert (found.rule, found.level) == ("FSDP406", Level.MANUAL)
    assert f"would execute {gadget}" in found.message
    assert not (tmp_path / "written").exists()


def test_a_program_s_own_class_is_named_and_left_to_its_reader(tmp_path: Path) -> None:
    found = findings(_naming("my_project.config.ModelConfig", tmp_path))
    assert [(one.rule, one.level) for one in found] == [("FSDP406", Level.REVIEW)]
    assert "my_project.config.ModelConfig" in found[0].message


def test_a_model_that_was_pickled_whole_is_no_attack(tmp_path: Path) -> None:
    torch.save({"model": torch.nn.Linear(2, 2)}, tmp_path / "model.pt")
    found = findings(tmp_path / "model.pt")
    assert [(one.rule, one.level) for one in found] == [("FSDP406", Level.REVIEW)]
    assert "torch.nn.modules.linear.Linear" in found[0].message


def test_all_that_torch_loads_by_itself_is_needed() -> None:
    admitted = torch._weights_only_unpickler._get_allowed_globals()
    names = {Global(*name.rpartition(".")[::2]) for name in admitted}
    assert names <= needed()


def _random_states() -> dict[str, Any]:
    import random

    import numpy as np

    return {
        "random_state": random.getstate(),
        "numpy_random_seed": np.random.get_state(),
        "generator": np.random.default_rng(0),
        "torch_manual_seed": torch.get_rng_state(),
        "when": __import__("datetime").datetime(2026, 1, 1),
        "path": Path("somewhere"),
        "scalar": np.float64(1.5),
        "best": float("inf"),
        "names": {"a", "b"},
        "dtype": torch.bfloat16,
        "shape": torch.Size([2, 3]),
        "device": torch.device("cpu"),
    }


def test_random_states_and_plain_values_are_no_alarm(tmp_path: Path) -> None:
    """What accelerate's ``random_states_0.pkl`` and the checkpoints of Trainer, Lightning and Composer hold."""
    torch.save(_random_states(), tmp_path / "random_states.pt")
    assert findings(tmp_path / "random_states.pt") == []
    (tmp_path / "random_states_0.pkl").write_bytes(pickle.dumps(_random_states()["numpy_random_seed"], 2))
    assert findings(tmp_path / "random_states_0.pkl") == []


@pytest.mark.parametrize("name", hostile.PAYLOADS)
def test_in_a_tensor_chunk_of_a_folder(name: str, tmp_path: Path) -> None:
    payload = hostile.PAYLOADS[name](tmp_path / "sentinel")
    hostile.in_tensor_chunk(payload, tmp_path / "step")
    assert findings(tmp_path / "step")[0].rule == "FSDP406"
    assert not (tmp_path / "sentinel").exists()


def test_optimizers_and_schedulers_of_torch_are_no_alarm(tmp_path: Path) -> None:
    """All that plain torch, verl's extra states and Trainer save of them, in both formats of torch.save."""
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    held: dict[str, Any] = {}
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop"):
        weight.grad = torch.ones(2, 2)
        optimizer = getattr(torch.optim, name)([weight], lr=0.1)
        optimizer.step()
        held[name] = optimizer.state_dict()
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    of = torch.optim.lr_scheduler
    for made in (
        of.OneCycleLR(optimizer, 0.1, total_steps=5),
        of.CyclicLR(optimizer, 0.1, 0.2),
        of.LambdaLR(optimizer, lambda step: 0.5),
        of.MultiStepLR(optimizer, [1, 2, 2]),
        of.ReduceLROnPlateau(optimizer),
        of.CosineAnnealingWarmRestarts(optimizer, 3),
        of.SequentialLR(optimizer, [of.LinearLR(optimizer), of.ExponentialLR(optimizer, 0.9)], [2]),
    ):
        held[type(made).__name__] = made.state_dict()
    held["scaler"] = torch.amp.GradScaler("cpu").state_dict()
    held["sampler"] = {"epoch": 1, "generator": torch.Generator().get_state()}
    for archive in (True, False):
        torch.save(held, tmp_path / "model.pt", _use_new_zipfile_serialization=archive)
        assert "FSDP406" not in [one.rule for one in findings(tmp_path / "model.pt")]
