"""Keywords and files that set the engine's options."""

from pathlib import Path

import pytest

import stagelink as sl


def test_keywords_set_options() -> None:
    with sl.Engine(name="decode-0", bind="127.0.0.1:0", transports=["shm", "unix"]) as engine:
        assert engine.name == "decode-0"
        host, port = engine.address.rsplit(":", 1)
        assert (host, int(port) > 0) == ("127.0.0.1", True)
        assert len(engine.instance) == 32
        assert "decode-0" in repr(engine)


def test_an_unknown_keyword_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(sl.InvalidArgument, match="copy_threads") as caught:
        sl.Engine(copy_thread=2)  # type: ignore[call-arg]
    assert (caught.value.code, caught.value.scope) == ("invalid_argument", "call")
    assert caught.value.reason == "unknown_key"


@pytest.mark.parametrize("value", [1 << 16, "64KiB", "65536"])
def test_sizes_are_numbers_or_text(value: int | str) -> None:
    with sl.Engine(inline_bytes=value):
        pass


@pytest.mark.parametrize("value", [2, 2.5, "2s", "2500ms"])
def test_durations_are_seconds_or_text(value: float | str) -> None:
    with sl.Engine(connect_timeout=value):
        pass


@pytest.mark.parametrize(
    "options",
    [
        {"inline_bytes": "64 parsecs"},
        {"inline_bytes": -1},
        {"inline_bytes": 1.5},
        {"connect_timeout": "soon"},
        {"connect_timeout": -1.0},
        {"connect_timeout": float("nan")},
        {"copy_threads": "many"},
        {"transports": ["shm", "pigeon"]},
        {"transports": ["ucx"]},
        {"pin": "perhaps"},
        {"bind": "no port"},
    ],
    ids=str,
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(options: dict[str, object]) -> None:
    with pytest.raises(sl.InvalidArgument, match=next(iter(options))):
        sl.Engine(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["\n", "\x7f", "\x85", "\x99", "\u2028", "\ufeff", "\ufffe"])
def test_text_that_is_not_plain_is_refused_and_shown_escaped(text: str) -> None:
    with pytest.raises(sl.InvalidArgument, match=r"name: `a\\(n|x)") as caught:
        sl.Engine(name="a" + text)
    assert text not in str(caught.value)


def test_text_may_hold_letters_of_any_script() -> None:
    with sl.Engine(name="ä漢😀") as engine:
        assert engine.name == "ä漢😀"


def test_the_longest_name_of_letters_of_many_bytes_is_text_everywhere() -> None:
    name = "😀" * 32  # 128 bytes.
    with sl.Engine(name=name) as engine, sl.Engine() as other:
        with other.connect(engine.descriptor()) as peer:
            assert peer.name == name
        assert 'engine="' + name[:31] + '"' in engine.metrics_text()  # Its file has room for 127.


def test_a_file_sets_options_and_keywords_go_before_it(tmp_path: Path) -> None:
    file = tmp_path / "stagelink.yaml"
    file.write_text("engine:\n  name: from-file\n  copy_threads: 0\n")
    with sl.Engine(config=file) as engine:
        assert engine.name == "from-file"
    with sl.Engine(config=str(file), name="from-keyword") as engine:
        assert engine.name == "from-keyword"


def test_a_bad_file_is_refused_with_path_and_line(tmp_path: Path) -> None:
    file = tmp_path / "stagelink.yaml"
    file.write_text("engine:\n  name: x\n  copy_thread: 0\n")
    with pytest.raises(sl.InvalidArgument, match=r"stagelink.yaml:3.*copy_threads"):
        sl.Engine(config=file)
    with pytest.raises(sl.Error, match="missing.yaml"):
        sl.Engine(config=tmp_path / "missing.yaml")


def test_the_environment_sets_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELINK_NAME", "from-environment")
    with sl.Engine() as engine:
        assert engine.name == "from-environment"
    with sl.Engine(name="from-keyword") as engine:
        assert engine.name == "from-keyword"


def test_a_taken_port_is_an_error_with_its_reason(engine: sl.Engine) -> None:
    with pytest.raises(sl.AlreadyExists) as caught:
        sl.Engine(bind=engine.address)
    assert caught.value.reason == "port_in_use"
