"""vLLM-Omni's package of connectors, imported without the rest of the stack."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

PARTS = (
    "vllm_omni",
    "vllm_omni.distributed",
    "vllm_omni.distributed.omni_connectors",
    "vllm_omni.distributed.omni_connectors.utils",
)
SERIALIZATION = "vllm_omni.distributed.omni_connectors.utils.serialization"


def _stand_in(name: str, root: Path) -> None:
    """A package whose modules can be imported, and whose __init__ is not run."""
    module = types.ModuleType(name)
    module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    sys.modules[name] = module


@pytest.fixture(scope="session")
def omni_serializer() -> Any:
    """The OmniSerializer of vLLM-Omni 0.30."""
    found = importlib.util.find_spec("vllm_omni")
    if found is None or found.origin is None:
        pytest.skip("vllm-omni is not installed here; tests/omni/run.sh says how")
    root = Path(found.origin).parent
    for name in PARTS:
        if name not in sys.modules:
            _stand_in(name, root)
    return importlib.import_module(SERIALIZATION).OmniSerializer
