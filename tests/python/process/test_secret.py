"""Engines with a secret, as Python sees them."""

import os
from pathlib import Path

import pytest

import stagelink as sl


def secret(folder: Path, name: str, mode: int = 0o600) -> Path:
    path = folder / name
    path.write_bytes(os.urandom(32))
    path.chmod(mode)
    return path


def test_engines_with_one_secret_meet_and_others_are_refused(tmp_path: Path) -> None:
    ours, theirs = secret(tmp_path, "ours"), secret(tmp_path, "theirs")
    with sl.Engine(secret_file=str(ours), checksum=True) as owner:
        with sl.Engine(secret_file=str(ours)) as friend:
            friend.connect(owner.descriptor()).close()
        with sl.Engine(secret_file=str(theirs)) as stranger:
            with pytest.raises(sl.Error, match="secret") as caught:
                stranger.connect(owner.descriptor())
        assert (caught.value.code, caught.value.reason) == ("permission", "authentication")
        with sl.Engine() as plain:
            with pytest.raises(sl.Error, match="secret"):
                plain.connect(owner.address)


def test_a_secret_that_others_may_read_is_refused_with_its_mode(tmp_path: Path) -> None:
    with pytest.raises(sl.Error, match=r"mode 0640, 32 bytes") as caught:
        sl.Engine(secret_file=str(secret(tmp_path, "open", 0o640)))
    assert caught.value.code == "permission"
