"""`ukjax animate`, and the pictures of `ukjax simulate`: what they write, and what they say when they cannot."""

import re
import subprocess
from pathlib import Path

import imageio_ffmpeg
import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from models import simple_pendulum

from ..cli.test_cli import run as command  # noqa: F401  (a fixture)
from ..inside import replaced, speed_of
from .drawn import colors_of, data_of, pendulum, simulated


OWN = """
import jax.numpy as jnp
import ukjax
from models import simple_pendulum

def scenario(t1=0.3, link=None, name="drawn", force=True) -> ukjax.Scenario:
    plain = simple_pendulum.scenario()
    kinds = {None: lambda q, t: jnp.stack([jnp.zeros(2), q]), "flat": lambda q, t: q,
             "wide": lambda q, t: jnp.zeros((2, 4)), "bad": lambda q, t: q @ jnp.zeros(3)}
    forces = {"force": lambda q, t, f: (q, f)} if force else {}
    if force == "lonely":
        forces = {"force": lambda q, t, f: f}
    if force == "deep":
        forces = {"force": lambda q, t, f: (jnp.zeros(3), jnp.zeros(3))}
    drawing = ukjax.study.Drawing({"rod": kinds[link]}, trails=["rod"], forces=forces)
    return ukjax.Scenario(plain.mechanism, plain.q0, plain.v0, t1, name=name, projection=plain.projection,
                          observables={"path [m]": lambda q, v, t: q}, drawing=drawing)
"""


@pytest.fixture
def animate(command, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    (tmp_path / "drawn.py").write_text(OWN)
    return lambda *arguments: command("animate", *arguments)


@pytest.fixture
def simulated_before():
    """The command need not simulate: a film of any motion will do."""
    with replaced(timed_run=lambda *_: (simulated(pendulum)[1], 0.0, 0.0)):
        yield


@pytest.mark.long
def test_writes_a_gif_and_a_page(animate, tmp_path):
    status, shown, _ = animate("drawn.py:scenario", "--fps", "10", "--speed", "0.5", "--out", "here")
    assert status == 0
    assert "drawn: 0 to 0.3 s, 0.5 times as fast as it is, 7 frames" in shown
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["animation.gif", "animation.html"]
    assert "wrote here/animation.gif" in shown
    with Image.open(tmp_path / "here" / "animation.gif") as gif:
        assert gif.n_frames == 7
        assert gif.info["loop"] == 0
        frames = []
        for i in range(7):
            gif.seek(i)
            assert gif.info["duration"] == 100
            frames.append(np.asarray(gif.convert("RGB"), float))
    assert all(colors_of(frame) > 20 for frame in frames)
    assert np.mean(np.abs(frames[0] - frames[3])) > 0.1
    data = data_of((tmp_path / "here" / "animation.html").read_text("utf-8"))
    np.testing.assert_allclose(data["t"], np.linspace(0.0, 0.3, 13), rtol=1e-8)
    exact = simple_pendulum.exact(np.linspace(0.0, 0.3, 13))
    np.testing.assert_allclose(np.reshape(data["links"][0]["at"], (13, 2, 2))[:, 1], exact, atol=2e-5)


@pytest.mark.long
def test_frames_last_what_a_gif_can_say(simulated_before, animate, tmp_path):
    # Thirty a second would be a third of a hundredth too long.
    animate("drawn.py:scenario", "--fps", "30", "--speed", "1", "--format", "gif", "--out", "here")
    with Image.open(tmp_path / "here" / "animation.gif") as gif:
        assert (gif.info["duration"], gif.n_frames) == (30, 6)


@pytest.mark.long
def test_writes_an_mp4(simulated_before, animate, tmp_path):
    (ffmpeg,) = (Path(imageio_ffmpeg.__file__).parent / "binaries").glob("ffmpeg*")
    with mpl.rc_context({"animation.ffmpeg_path": str(ffmpeg)}):
        arguments = ("drawn.py:scenario", "--speed", "1", "--format", "mp4", "--format", "mp4", "--out", "here")
        status, _, errors = animate(*arguments)
    assert (status, errors.count("Error")) == (0, 0)
    (film,) = (tmp_path / "here").iterdir()
    read = [ffmpeg, "-i", film, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(read, capture_output=True, check=True)
    about = decoded.stderr.decode()
    width, height = map(int, re.findall(r"h264.*?, (\d+)x(\d+)", about)[0])
    assert "25 fps" in about
    frames = np.frombuffer(decoded.stdout, np.uint8).reshape(-1, height, width, 3)
    assert len(frames) == 6
    assert colors_of(frames[3]) > 20
    assert np.any(frames[0] != frames[5])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["models.two_mass_spring:bare"], "has no factory 'bare'"),
        (["own.py:scenario"], "The scenario 'mine' has no drawing. Pass drawing=ukjax.study.Drawing(links)"),
        (["drawn.py:scenario", "--t1", "0"], "--t1 must be later than the start, 0.0 s, but is 0.0 s"),
        (["drawn.py:scenario", "--speed", "0"], "--speed must be positive, but is 0"),
        (["drawn.py:scenario", "--speed", "100"], "make 1 frames of 40 ms, but 2 to 1000 are possible. Pass a lower"),
        (["drawn.py:scenario", "--speed", "1e-3"], "possible. Pass a higher --speed"),
        (["drawn.py:scenario", "--set", "link=flat"], "links['rod'](q, t) must return points (k, 2) or (k, 3), but "
         "returned shape (2,). For a single point write point[None]."),
        (["drawn.py:scenario", "--set", "link=wide"], "but returned shape (2, 4). One row per point"),
        (["drawn.py:scenario", "--set", "link=bad"], "links['rod'] of the drawing failed: "),
        (["drawn.py:scenario", "--set", "force=lonely"], "forces['force'](q, t, constraint_force) must return a"),
        (["drawn.py:scenario", "--set", "force=deep"], "forces['force'] has 3 components, but links['rod'] has 2"),
        (["drawn.py:scenario", "--out", "own.py"], "--out own.py cannot be written to"),
    ],
)  # fmt: skip
def test_what_cannot_be_animated_says_why_and_leaves_nothing(animate, tmp_path, arguments, match):
    status, _, errors = animate(*arguments)
    assert status == 2
    assert match in errors
    left = [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert sorted(p.name for p in left) == ["drawn.py", "own.py"]


def test_no_ffmpeg_is_said_before_any_work(animate, tmp_path):
    with mpl.rc_context({"animation.ffmpeg_path": "no-such-ffmpeg"}):
        status, _, errors = animate("no.such.module:scenario", "--format", "mp4", "--out", "here")
    assert status == 2
    assert "--format mp4 needs ffmpeg, which is not on the PATH. Install it, or pass --format gif." in errors
    assert not (tmp_path / "here").exists()


def test_an_ffmpeg_that_fails_leaves_nothing(animate, simulated_before, tmp_path):
    broken = tmp_path / "ffmpeg"
    broken.write_text("#!/bin/sh\ncat > /dev/null\nexit 1\n")
    broken.chmod(0o755)
    with mpl.rc_context({"animation.ffmpeg_path": str(broken)}):
        status, _, errors = animate("drawn.py:scenario", "--speed", "1", "--format", "mp4", "--out", "here")
    assert status == 1
    assert "ffmpeg could not write animation.mp4" in errors
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize(
    ("duration", "speed"),
    [(2.0, 1.0), (30.0, 1.0), (0.5, 0.1), (1.9, 0.2), (31.0, 5.0), (6000.0, 1000.0), (4e-3, 5e-4)],
)
def test_what_is_too_short_to_see_is_slowed_down(duration, speed):
    assert speed_of(duration, None) == speed


def test_simulate_saves_the_path_and_keeps_a_persons_own(animate, command, tmp_path):  # noqa: F811
    status, _, _ = command("simulate", "drawn.py:scenario", "--points", "21", "--out", "here")
    assert status == 0
    written = {p.name for p in (tmp_path / "here").iterdir()}
    assert written == {"trajectory.nc", "overview.png", "energy.png", "path.png", "path-over-time.png"}
    status, _, errors = command("simulate", "drawn.py:scenario", "--set", "link=flat", "--out", "there")
    assert status == 2
    assert "links['rod'](q, t) must return points" in errors
    assert not (tmp_path / "there").exists()
