"""enable(): when `import mori` means stagelink, and when it does not."""

from collections.abc import Callable
from pathlib import Path

from child import Child

Children = Callable[..., Child]

IMPORT_AS_VLLM_DOES = """
import sys
assert "mori" not in sys.modules
from stagelink.compat.mori import enable
assert "mori" not in sys.modules
first = enable()
from mori.io import (
    BackendType, EngineDesc, IOEngine, IOEngineConfig, MemoryDesc, PollCqMode,
    RdmaBackendConfig, XgmiBackendConfig,
)
import mori, mori.io
import stagelink.compat.mori.io as ours
first, enable(), mori.io is ours, IOEngine is ours.IOEngine, IOEngine.Session.__name__
"""

WITH_MORI_INSTALLED = """
import sys
sys.path.insert(0, folder)
if imported: import mori.io
import io, logging
text = io.StringIO()
logging.basicConfig(stream=text, format="%(message)s")
from stagelink.compat.mori import enable
answer = enable(replace)
import mori, mori.io
answer, mori.__name__, mori.io.__name__, text.getvalue()
"""


def test_enable_stands_in_for_mori(child: Children) -> None:
    answer = child().run(IMPORT_AS_VLLM_DOES)
    assert answer == (True, True, True, True, "IOEngineSession")


def test_an_installed_mori_stays_unless_it_is_to_be_replaced(
    child: Children, tmp_path: Path
) -> None:
    package = tmp_path / "mori"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "io.py").write_text("")
    for imported in (False, True):
        names = {"folder": str(tmp_path), "imported": imported}
        kept = child().run(WITH_MORI_INSTALLED, replace=False, **names)
        assert kept[:3] == (False, "mori", "mori.io")
        assert "stays in use" in kept[3]
        replaced = child().run(WITH_MORI_INSTALLED, replace=True, **names)
        assert replaced[:3] == (True, "stagelink.compat.mori", "stagelink.compat.mori.io")
        assert "takes the place" in replaced[3]
