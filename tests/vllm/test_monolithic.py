"""The harness itself: one engine, greedy tokens that do not change."""

from conftest import Engines
from harness.engine import Job
from harness.setups import Setup, prompt


def test_the_same_prompt_gives_the_same_tokens(engines: Engines, models) -> None:
    engine = engines.start("mono", Setup(models / "llama")).wait_ready()
    first = engine.run(Job("a", prompt(1, 300), 8))
    second = engine.run(Job("b", prompt(1, 300), 8))
    other = engine.run(Job("c", prompt(2, 300), 8))
    assert first.tokens == second.tokens
    assert first.tokens != other.tokens
