"""`ukjax animate --live`: one page, and what is refused before anything is written."""

import pytest

from models import simple_pendulum

from ..plot.drawn import data_of
from .test_cli import run as command  # noqa: F401  (a fixture)


OWN = """
import jax.numpy as jnp
import ukjax
from models import simple_pendulum

def scenario(special=False, held=False, t1=0.4) -> ukjax.Scenario:
    import jax
    plain = simple_pendulum.scenario()
    tip = lambda q, t: jnp.stack([jnp.zeros(2), jax.scipy.special.erf(q) if special else q])
    law = ukjax.Feedback(lambda q, v, t: -q[:1], [[1.0], [0.0]], period=0.1) if held else None
    return ukjax.Scenario(plain.mechanism, plain.q0, plain.v0, t1, name="Rod", servo=law,
                          drawing=ukjax.study.Drawing({"rod": tip}))
"""


@pytest.fixture
def animate(command, tmp_path):  # noqa: F811
    (tmp_path / "own.py").write_text(OWN)
    return lambda *arguments: command("animate", "own.py:scenario", *arguments)


def test_one_page_is_written(animate, tmp_path):
    status, shown, _ = animate("--live", "--speed", "0.5", "--parameter", "system_g", "--out", "here")
    assert status == 0
    assert "wrote here/live.html (0." in shown
    (path,) = (tmp_path / "here").iterdir()
    data = data_of(path.read_text("utf-8"))
    assert (data["title"], data["speed"], data["t0"]) == ("Rod", 0.5, 0.0)
    assert data["parameters"] == [{"name": "g", "value": 9.81}]
    assert data["q0"] == list(map(float, simple_pendulum.scenario().q0))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--live", "--format", "html"], "--live writes live.html alone. Leave out --format"),
        (["--parameter", "system_g"], "--parameter is about the sliders of a live page. Pass --live too."),
        (["--live", "--parameter", "mass"], "parameters must be of system_m"),
        (["--live", "--t1", "0"], "--t1 must be later than the start"),
        (["--live", "--set", "special=True"], "what='points' cannot be exported"),
        (["--live", "--set", "held=True"], "no controller with memory or samples"),
    ],
)
def test_nonsense_leaves_no_file(animate, tmp_path, arguments, match):
    status, _, errors = animate(*arguments, "--out", "here")
    assert status == 2
    assert match in " ".join(errors.split())
    assert not list(tmp_path.glob("here/*"))
