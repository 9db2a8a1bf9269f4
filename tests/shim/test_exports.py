"""What fsdp_compat exports, and what it says where it cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed.fsdp
import torch.distributed.fsdp.wrap

import fsdp_compat

OF_FSDP2 = {
    "CPUOffloadPolicy",
    "DataParallelMeshDims",
    "FSDPModule",
    "GradientReductionHandle",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "UnshardHandle",
    "fully_shard",
    "register_fsdp_forward_method",
    "share_comm_ctx",
}


def test_every_public_name_of_fsdp1_is_exported() -> None:
    theirs = {*torch.distributed.fsdp.__all__, *torch.distributed.fsdp.wrap.__all__} - OF_FSDP2
    assert theirs <= set(fsdp_compat.__all__)
    assert "ShardedGradScaler" in fsdp_compat.__all__


def test_all_names_exist() -> None:
    assert all(hasattr(fsdp_compat, name) for name in fsdp_compat.__all__)


@pytest.mark.parametrize(
    ("torch_module", "message"),
    [
        ("None", "ImportError: fsdp_compat needs torch: pip install 'torch>=2.6'"),
        (
            "types.SimpleNamespace(__version__='2.5.1+cpu')",
            "ImportError: fsdp_compat needs torch 2.6 or newer, where fully_shard is public; this is 2.5.1",
        ),
    ],
)
def test_a_missing_or_old_torch_is_said_in_one_line(torch_module: str, message: str) -> None:
    shim = Path(fsdp_compat.__file__).parent.parent
    code = f"import sys, types; sys.path.insert(0, {str(shim)!r}); sys.modules['torch'] = {torch_module}; "
    done = subprocess.run([sys.executable, "-c", code + "import fsdp_compat"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == message
