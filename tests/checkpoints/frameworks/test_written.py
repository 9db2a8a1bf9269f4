"""What the frameworks' own code writes: known without a false alarm, and converted exactly or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.judge.judge import findings
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.cli import main
from tests.checkpoints.frameworks.writers import WRITERS

pytest.importorskip("accelerate", reason="make frameworks installs accelerate")
pytestmark = pytest.mark.filterwarnings("default")
#: What no target has a place for: numpy's random states, settings, schedulers and optimizers that are keyed by number.
REFUSED = (
    "which only running code can create: --leave-out",
    "and contains no tensors to convert",
    "no tensor is left to write",
    "it contains no model, and safetensors have no optimizer",
    "looks like a second model next to the one under",
    "pass the groups (--groups FILE)",
)


@pytest.fixture(scope="module", params=WRITERS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what one of them writes."""
    framework, write = WRITERS[request.param]
    pytest.importorskip(framework, reason="make frameworks installs all but Composer and verl")
    folder = tmp_path_factory.mktemp("written")
    write(folder)
    return folder


def test_nothing_in_it_is_reported_as_harmful_or_broken(written: Path) -> None:
    found = open_all(written)
    assert found
    assert [one.problems for one in found if one.problems] == []
    rules = {entry.rule for entry in findings(written)}
    assert not rules & {"FSDP405", "FSDP406"}


@pytest.mark.parametrize("to", Target)
def test_all_of_it_is_converted_or_refused(
    written: Path, to: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, one in enumerate(open_all(written)):
        target = tmp_path / str(number)
        code = main(["checkpoint", "convert", str(one.path), str(target), "--to", to.value])
        said = capsys.readouterr().err
        assert target.exists() is (code == 0)
        assert code == 0 or any(reason in said for reason in REFUSED), said
