"""vLLM-Omni's connectors without the rest of the stack, and its plug-ins with ours among them."""

import sys
import types
from importlib.metadata import files
from pathlib import Path
from typing import Any

# Packages whose modules can be imported, and whose __init__ is not run: it needs everything.
PARTS = (
    "vllm_omni",
    "vllm_omni.entrypoints",
    "vllm_omni.platforms",
    "vllm_omni.platforms.npu",
    "vllm_omni.distributed",
    "vllm_omni.config",
)
PROJECT = Path(__file__).parents[2]


def package_folder() -> Path:
    """Where vLLM-Omni is installed; raises PackageNotFoundError."""
    init = next(f for f in files("vllm-omni") or [] if str(f) == "vllm_omni/__init__.py")
    return Path(str(init.locate())).parent


def prepare() -> None:
    """From now on ``vllm_omni.distributed.omni_connectors`` can be imported."""
    root = package_folder()
    for name in PARTS:
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    platforms: Any = sys.modules["vllm_omni.platforms"]
    platforms.current_omni_platform = None


def install_entry_points(folder: Path) -> None:
    """Lets importlib.metadata find the project's entry points, as if it were installed."""
    import tomllib

    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    info = folder / "stagelink-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stagelink\nVersion: 0\n")
    lines: list[str] = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path.insert(0, str(folder))


def connectors() -> Any:
    """The package of connectors, with the plug-ins loaded as the host does it."""
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()
    assert "vllm_omni.distributed.omni_connectors.factory" not in sys.modules
    import vllm_omni.distributed.omni_connectors as package

    return package


def reference_pull() -> Any:
    """vLLM-Omni's own YuanrongTransferEngineConnector, unmodified, over our engine.

    Its transfer engine is ours by stagelink.compat.yuanrong, and its pool is memory of the host.
    """
    prepare()
    import vllm_omni.platforms.npu.omni_connectors.yuanrong_transfer_engine_connector as module

    from stagelink.compat import yuanrong

    module.TransferEngine = yuanrong.TransferEngine
    module._resolve_pool_device = lambda configured: "cpu"
    return module.YuanrongTransferEngineConnector
