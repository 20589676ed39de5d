"""Pictures and animations of a drawing: what they show, what they write, and what they say when they cannot."""

import functools
import json
import re
import subprocess
from pathlib import Path

import equinox as eqx
import imageio_ffmpeg
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image
from py_mini_racer import MiniRacer

import ukjax
from models import parallelogram, scara, simple_pendulum
from ukjax import plot
from ukjax.cli import _animate
from ukjax.plot import _scene

from .helpers import assert_close, falling, rod, run
from .test_cli import run as command  # noqa: F401  (a fixture)


class Chain(ukjax.AbstractSystem):
    """Three equal particles on a string that is fixed at both ends: a closed chain, q = (x1, y1, ..., y3) [m]."""

    def mass(self, q, t):
        return jnp.eye(6)

    def force(self, q, v, t):
        return jnp.tile(jnp.array([0.0, -9.81]), 3)

    def points(self, q, t):
        """(5, 2) [m]"""
        ends = jnp.array([[0.0, 0.0], [2.0, 0.0]])
        return jnp.concatenate([ends[:1], q.reshape(3, 2), ends[1:]])

    def lengths(self, q, t):
        pieces = jnp.diff(self.points(q, t), axis=0)
        return jnp.sum(pieces**2, axis=1) - 0.5


def redrawn(scenario, drawing, **changes):
    """A scenario with another drawing, and other fields changed."""
    fields = {"drawing": drawing, **changes}
    names = list(fields)
    at = lambda s: [getattr(s, name) for name in names]
    return eqx.tree_at(at, scenario, [fields[name] for name in names], is_leaf=lambda x: x is None)


def pendulum(t1=0.5):
    drawing = ukjax.Drawing(
        {"rod": lambda q, t: jnp.stack([jnp.zeros(2), q])},
        trails=["rod"],
        forces={"force of the rod": lambda q, t, force: (q, force)},
        scenery={"pivot": [[0.0, 0.0]], "floor": [[-1.0, -1.2], [1.0, -1.2]]},
    )
    return redrawn(simple_pendulum.scenario(t1), drawing)


def spherical(t1=0.5):
    drawing = ukjax.Drawing(
        {"rod": lambda q, t: jnp.stack([jnp.zeros(3), q])},
        trails=["rod"],
        forces={"force": lambda q, t, force: (q, force)},
        scenery={"plumb line": [[0.0, 0.0, 0.0], [0.0, 0.0, -1.0]]},
    )
    return ukjax.Scenario(
        ukjax.Mechanism(falling(n=3), rod(1.0)),
        [0.8, 0.0, -0.6],
        [0.0, 1.5, 0.0],
        t1,
        name="Spherical <pendulum>",
        coordinates=["x [m]", "y [m]", "z [m]"],
        projection=ukjax.Projection(),
        drawing=drawing,
        source="A </script> that ends nothing & more",
    )


def chain():
    model = Chain()
    mechanism = ukjax.Mechanism(model, ukjax.Holonomic(model.lengths))
    return ukjax.Scenario(
        mechanism, [0.5, -0.5, 1.0, 0.0, 1.5, -0.5], jnp.zeros(6), 0.5, drawing=ukjax.Drawing({"string": model.points})
    )


def links_of_parallelogram():
    case = parallelogram.scenario(t1=0.2)

    def bar(i):
        along = lambda q: jnp.stack([jnp.cos(q[3 * i + 2]), jnp.sin(q[3 * i + 2])])
        half = 1.0 if i == 3 else 0.5
        return lambda q, t: jnp.stack([q[3 * i : 3 * i + 2] + s * half * along(q) for s in (-1, 1)])

    return redrawn(case, ukjax.Drawing({f"bar {i}": bar(i) for i in range(4)}, trails=["bar 3"]))


def robot():
    model = scara.Scara()

    def arm(q, t):
        elbow = model.l1 * jnp.stack([-jnp.sin(q[0]), jnp.cos(q[0]), jnp.zeros(())])
        return jnp.stack([jnp.zeros(3), elbow, model.tool(q)])

    helix = np.stack([scara.helix(t) for t in np.linspace(0.0, 1.0, 9)])
    forces = {"lift": lambda q, t, force: (model.tool(q), jnp.zeros(3).at[2].set(force[3]))}
    drawing = ukjax.Drawing({"arm": arm}, trails=["arm"], scenery={"helix": helix}, forces=forces)
    return redrawn(scara.scenario(t1=0.5), drawing)


CASES = {"plane": pendulum, "space": spherical, "chain": chain, "four links": links_of_parallelogram, "robot": robot}


def moved(scenario):
    """Some trajectory at eleven times, where it does not matter that it is no solution."""
    t = jnp.linspace(scenario.t0, scenario.t1, 11)
    phase = t[:, None] + jnp.arange(1.0, 1.0 + len(scenario.q0))[None]
    q, force = scenario.q0[None] + 0.1 * jnp.sin(3 * phase), 7.0 * jnp.cos(phase)
    zero = jnp.zeros_like(t)
    rest = (zero, zero, None, None, None, jnp.zeros(11, int), ukjax.RESULTS.successful, {})
    return ukjax.Trajectory(t, q, 0.3 * jnp.cos(3 * phase), -0.9 * jnp.sin(3 * phase), force, 0 * q, None, *rest)


@functools.cache
def simulated(make):
    """A scenario and its trajectory at eleven times, simulated once."""
    scenario = make()
    return scenario, run(scenario, points=11)


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A scenario and its trajectory at eleven times."""
    scenario = CASES[request.param]()
    return scenario, moved(scenario)


def colors_of(pixels):
    return len(np.unique(np.asarray(pixels)[..., :3].reshape(-1, 3), axis=0))


def test_a_path_shows_what_the_drawing_says_to_scale(case):
    scenario, trajectory = case
    figure = plot.path(scenario, trajectory, positions=3)
    (axis,) = figure.axes
    names = ("x", "y", "z") if hasattr(axis, "get_zlim") else ("x", "y")
    assert [getattr(axis, f"get_{k}label")() for k in names] == [f"{k} [m]" for k in names]
    # Equal axes, and nothing outside of them.
    limits = np.array([getattr(axis, f"get_{k}lim")() for k in names])
    if len(names) == 3:
        ratio = axis._box_aspect / (limits[:, 1] - limits[:, 0])
        np.testing.assert_allclose(ratio, ratio[0])
    else:
        assert axis.get_aspect() == 1.0
    drawn = [np.stack(line.get_data_3d() if len(names) == 3 else line.get_data(), axis=1) for line in axis.lines]
    for points in drawn:
        assert np.all((points > limits[:, 0]) & (points < limits[:, 1]))
    # The links at start, middle and end are among what is drawn, computed here by a loop without jit or vmap.
    for name, link in scenario.drawing.links.items():
        for i in (0, 5, 10):
            want = np.asarray(link(trajectory.q[i], trajectory.t[i]))
            assert any(x.shape == want.shape and np.allclose(x, want, atol=1e-12) for x in drawn), name
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert set(scenario.drawing.links) | set(scenario.drawing.scenery) <= set(shown)
    assert f"t = {trajectory.t[0]:.3g}" in axis.get_title()


def test_arrows_are_as_long_as_the_legend_says():
    scenario, trajectory = simulated(pendulum)
    seen = _scene.scene(scenario, trajectory)
    length, newton = seen.scale
    figure = plot.path(scenario, trajectory)
    assert f"force of the rod: {newton:g} N are {length:g} m" in [t.get_text() for t in figure.legends[0].get_texts()]
    at, along = seen.vectors["force of the rod"]
    assert_close(at, np.asarray(trajectory.q), atol=1e-14)
    # The force of a rod in closed form: along it, m (v^2 + g y ...) / L, here from the acceleration.
    force = np.asarray(trajectory.acceleration) + np.array([[0.0, 9.81]])
    assert_close(along * newton / length, force, atol=1e-9)
    # Round numbers, and the longest arrow is neither tiny nor longer than that.
    assert {length / 10 ** np.floor(np.log10(length)), newton / 10 ** np.floor(np.log10(newton))} <= {1.0, 2.0, 5.0}
    longest = np.max(np.linalg.norm(along, axis=1))
    assert 0.3 * length < longest <= length


@pytest.mark.parametrize(
    ("value", "up", "want"),
    [(0.3, False, 0.2), (0.2, False, 0.2), (29.4, True, 50.0), (1e-7, True, 1e-7), (6, True, 10)],
)
def test_round_numbers(value, up, want):
    assert _scene._round(value, up) == pytest.approx(want, rel=1e-12)


def test_an_animation_draws_every_frame_at_its_time():
    film = plot.animation(*simulated(spherical), step=5)
    frames, draw = list(film.new_frame_seq()), film._func
    assert frames == [0, 5, 10]
    shown = [draw(i)[0].pixels.copy() for i in frames]
    assert all(colors_of(pixels) > 20 for pixels in shown)
    assert np.any(shown[0] != shown[1])
    assert np.any(shown[1] != shown[2])
    # What rests is the same in all, and drawing a frame again gives the same again.
    np.testing.assert_array_equal(shown[0][-60:], shown[2][-60:])
    np.testing.assert_array_equal(draw(0)[0].pixels, shown[0])
    film._draw_was_started = True  # else matplotlib warns that nobody looked at it


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_a_page_is_self_contained_and_holds_the_simulated_positions(case):
    scenario, trajectory = case
    page = plot.page(scenario, trajectory, speed=0.5)
    assert not re.search(r"https?:|src=|href=|@import|url\(|fetch\(|XMLHttp|import\(", page)
    assert "default-src 'none'" in page  # the browser is told as well
    assert page.count("<script") == page.count("</script>") == 2
    assert len(page) < 40_000
    data = data_of(page)
    assert (data["title"], data["source"], data["speed"]) == (scenario.name, scenario.source, 0.5)
    np.testing.assert_allclose(data["t"], trajectory.t, rtol=1e-8)
    d, extent = data["dimension"], np.max(np.subtract(data["upper"], data["lower"]))
    assert [link["name"] for link in data["links"]] == list(scenario.drawing.links)
    for link in data["links"]:
        want = np.stack([scenario.drawing.links[link["name"]](q, t) for q, t in zip(trajectory.q, trajectory.t)])
        np.testing.assert_allclose(np.reshape(link["at"], (11, link["count"], d)), want, atol=1e-5 * extent)
        assert link["trail"] == (link["name"] in scenario.drawing.trails)
    for arrow in data["arrows"]:
        pairs = zip(trajectory.q, trajectory.t, trajectory.constraint_force)
        at, force = map(np.stack, zip(*(scenario.drawing.forces[arrow["name"]](*x) for x in pairs)))
        np.testing.assert_allclose(np.reshape(arrow["at"], (11, d)), at, atol=1e-5 * extent)
        newton = data["scale"]["force"] / data["scale"]["length"]
        np.testing.assert_allclose(np.reshape(arrow["along"], (11, d)) * newton, force, atol=1e-5 * extent * newton)
    assert [thing["name"] for thing in data["scenery"]] == list(scenario.drawing.scenery)


# As much of a browser as the page's script needs. What it draws is written down, and time passes when a test says so.
BROWSER = """
const elements = {}, calls = [], listeners = {};
let waiting = [], clock = 0, tall = 600, wide = 800;
function listen(key) { return (name, f) => { (listeners[key + "." + name] ||= []).push(f); }; }
function fire(key, event = {}) { for (const f of listeners[key] || []) f(event); }
function element(id) {
  return elements[id] ||= { id, checked: true, textContent: id === "data" ? DATA : "", style: { setProperty() {} },
    addEventListener: listen(id), append(x) { (this.children ||= []).push(x); }, setPointerCapture() {},
    getBoundingClientRect: () => ({ width: wide, height: tall }), getContext: () => ink };
}
const ink = new Proxy({}, { get: (own, name) => name in own ? own[name] : (...a) => { calls.push([name, ...a]); } });
var document = { getElementById: element, createElement: () => element("new" + Object.keys(elements).length),
  addEventListener: listen("document"), documentElement: {} };
var window = { devicePixelRatio: 2, addEventListener: listen("window"),
  matchMedia: query => ({ matches: false, addEventListener: listen("dark") }) };
var performance = { now: () => clock };
function requestAnimationFrame(f) { waiting.push(f); }
function getComputedStyle() { return { getPropertyValue: () => "#123456" }; }
function pass(ms) { clock += ms; const now = waiting; waiting = []; for (const f of now) f(clock); }
function drawn(act) { calls.length = 0; act(); return calls.filter(c => c[0] === "arc").map(c => [c[1], c[2]]); }
"""


def browser(scenario, trajectory, speed=1.0):
    """A JavaScript engine in which the page of a trajectory has been opened."""
    page = plot.page(scenario, trajectory, speed)
    (text,) = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    engine = MiniRacer()
    engine.eval(f"const DATA = {json.dumps(text)};" + BROWSER)
    engine.eval(script)
    return lambda code: json.loads(engine.eval(f"JSON.stringify({code})"))


@pytest.fixture(scope="module", params=[pendulum, spherical])
def opened(request):
    scenario, trajectory = simulated(request.param)
    return browser(scenario, trajectory), np.asarray(trajectory.q), scenario


def test_the_page_draws_to_scale_and_scrubs(opened):
    js, q, _ = opened
    n, last = q.shape[1], 10
    js('fire("window.resize") || 1')
    scrub = lambda i: js(f'drawn(() => fire("frame.input", {{ target: {{ value: "{i}" }} }}))')
    a, e = np.deg2rad([-55.0, 22.0])
    right = np.array([1.0, 0.0]) if n == 2 else np.array([-np.sin(a), np.cos(a), 0.0])
    up = [0.0, 1.0] if n == 2 else [-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e)]
    zoom = []
    for i in (0, 4, last):
        # A dot of scenery first where there is one; then the two ends of the rod.
        pivot, tip = np.array(scrub(i))[-2:]
        assert js('find("time").textContent') == f"t = {0.05 * i:.2f} s"
        assert js('find("frame").value') == i
        want = np.array([right @ q[i], -np.array(up) @ q[i]])
        zoom.append(np.linalg.norm(tip - pivot) / np.linalg.norm(want))
        np.testing.assert_allclose(tip - pivot, zoom[0] * want, atol=1e-2)
        assert np.all(tip > 0)
        assert np.all(tip < [800, 600])
    # In another window the picture is smaller, and still to one scale.
    small = np.array(js('(wide = 300, tall = 400, drawn(() => fire("window.resize")))'))[-2:]
    assert 0.1 < np.linalg.norm(small[1] - small[0]) / np.linalg.norm(tip - pivot) < 0.7
    assert np.all(small > 0)
    assert np.all(small < [300, 400])
    js('(wide = 800, tall = 600, fire("window.resize")) || 1')


def test_the_page_plays_and_pauses(opened):
    js, _, _ = opened
    js('fire("frame.input", { target: { value: "0" } }) || 1')
    assert js('find("play").textContent') == "Play"
    # A key on the page plays; the first frame may be from before it.
    js('fire("document.keydown", { key: " ", target: {}, preventDefault() {} }) || 1')
    assert js('(pass(-5), find("play").textContent)') == "Pause"
    assert js('(pass(105), find("time").textContent)') == "t = 0.10 s"
    js('fire("play.click") || 1')
    assert js('(pass(200), find("time").textContent)') == "t = 0.10 s"
    # On the button the space key is the browser's own click.
    js('fire("document.keydown", { key: " ", target: { tagName: "BUTTON" } }) || 1')
    assert js('find("play").textContent') == "Play"
    # From the end it starts anew, and past the end it goes round.
    js('fire("frame.input", { target: { value: "10" } }) || 1')
    js('fire("play.click") || 1')
    assert js('(pass(250), find("time").textContent)') == "t = 0.25 s"
    assert js('(pass(260), find("time").textContent)') == "t = 0.00 s"
    js('fire("play.click") || 1')


def test_the_page_shows_trails_and_arrows_when_asked(opened):
    js, _, scenario = opened
    js('fire("frame.input", { target: { value: "10" } }) || 1')
    count = lambda kind: js(f'(drawn(() => fire("{kind}.change")), calls.filter(c => c[0] === "lineTo").length)')
    both = count("trails")
    js('(find("trails").checked = false) || 1')
    without_trail = count("trails")
    assert both - without_trail == 10
    js('(find("arrows").checked = false) || 1')
    # Three strokes for the arrow, and three for the one that tells the scale.
    assert without_trail - count("arrows") == 6
    scale = js('(find("arrows").checked = true, drawn(draw), calls.filter(c => c[0] === "fillText").map(c => c[1]))')
    assert any(re.fullmatch(r"\d+ N", words) for words in scale)
    assert {"x [m]", "y [m]"} <= set(scale)
    js('(find("trails").checked = true) && 1')
    names = {*scenario.drawing.links, *scenario.drawing.forces, *scenario.drawing.scenery}
    assert set(js('find("legend").children.map(x => x.textContent)')) == names


def test_the_page_turns_in_space(opened):
    js, q, _ = opened
    js('fire("frame.input", { target: { value: "4" } }) || 1')
    before = np.array(js("drawn(draw)"))[-2:]
    js('fire("canvas.pointermove", { clientX: 9, clientY: 9 }) || 1')  # nothing is held
    np.testing.assert_array_equal(np.array(js("drawn(draw)"))[-2:], before)
    js('fire("canvas.pointerdown", { clientX: 0, clientY: 0, pointerId: 1 }) || 1')
    js('fire("canvas.pointermove", { clientX: 360, clientY: 0 }) || 1')  # half a turn about the vertical
    js('fire("canvas.pointerup") || 1')
    after = np.array(js("drawn(draw)"))[-2:]
    if q.shape[1] == 2:
        np.testing.assert_array_equal(after, before)
        return
    # Half a turn is a reflection of what lies to the right, at unchanged zoom.
    np.testing.assert_allclose((after[1] - after[0])[0], -(before[1] - before[0])[0], atol=1e-9)
    js("(azimuth = -55, elevation = 22, look(), fit(), draw()) || 1")


def test_a_page_that_is_slow_or_fast_passes_time_so():
    js = browser(*simulated(pendulum), speed=0.1)
    assert js('(pass(1000), find("time").textContent)') == "t = 0.10 s"
    assert js('find("source").textContent').startswith("Speed × 0.1.")


# --- The command ---

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
    drawing = ukjax.Drawing({"rod": kinds[link]}, trails=["rod"], forces=forces)
    return ukjax.Scenario(plain.mechanism, plain.q0, plain.v0, t1, name=name, projection=plain.projection,
                          observables={"path [m]": lambda q, v, t: q}, drawing=drawing)
"""


@pytest.fixture
def animate(command, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    (tmp_path / "drawn.py").write_text(OWN)
    return lambda *arguments: command("animate", *arguments)


def test_writes_a_gif_and_a_page(animate, tmp_path):
    status, shown, _ = animate("drawn.py:scenario", "--fps", "20", "--speed", "0.5", "--out", "here")
    assert status == 0
    assert "drawn: 0 to 0.3 s, 0.5 times as fast as it is, 13 frames" in shown
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["animation.gif", "animation.html"]
    assert "wrote here/animation.gif" in shown
    with Image.open(tmp_path / "here" / "animation.gif") as gif:
        assert gif.n_frames == 13
        assert gif.info["loop"] == 0
        frames = []
        for i in range(13):
            gif.seek(i)
            assert gif.info["duration"] == 50
            frames.append(np.asarray(gif.convert("RGB"), float))
    assert all(colors_of(frame) > 20 for frame in frames)
    assert np.mean(np.abs(frames[0] - frames[6])) > 0.1
    data = data_of((tmp_path / "here" / "animation.html").read_text("utf-8"))
    np.testing.assert_allclose(data["t"], np.linspace(0.0, 0.3, 25), rtol=1e-8)
    exact = simple_pendulum.exact(np.linspace(0.0, 0.3, 25))
    np.testing.assert_allclose(np.reshape(data["links"][0]["at"], (25, 2, 2))[:, 1], exact, atol=2e-5)


def test_frames_last_what_a_gif_can_say(monkeypatch, animate, tmp_path):
    # Thirty a second would be a third of a hundredth too long.
    monkeypatch.setattr(_animate, "timed_run", lambda *_: (simulated(pendulum)[1], 0.0, 0.0))
    animate("drawn.py:scenario", "--fps", "30", "--speed", "1", "--format", "gif", "--out", "here")
    with Image.open(tmp_path / "here" / "animation.gif") as gif:
        assert (gif.info["duration"], gif.n_frames) == (30, 6)


def test_writes_an_mp4(monkeypatch, animate, tmp_path):
    (ffmpeg,) = (Path(imageio_ffmpeg.__file__).parent / "binaries").glob("ffmpeg*")
    monkeypatch.setattr(_animate, "timed_run", lambda *_: (simulated(pendulum)[1], 0.0, 0.0))
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
        (["own.py:scenario"], "own.py:scenario: The scenario 'mine' has no drawing. Pass drawing=ukjax.Drawing(links)"),
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


def test_an_ffmpeg_that_fails_leaves_nothing(animate, tmp_path, monkeypatch):
    monkeypatch.setattr(_animate, "timed_run", lambda *_: (simulated(pendulum)[1], 0.0, 0.0))
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
    assert _animate._speed(duration, None) == speed


def test_simulate_saves_the_path_and_keeps_a_persons_own(animate, command, tmp_path):  # noqa: F811
    status, _, _ = command("simulate", "drawn.py:scenario", "--points", "21", "--out", "here")
    assert status == 0
    written = {p.name for p in (tmp_path / "here").iterdir()}
    assert written == {"trajectory.nc", "overview.png", "energy.png", "path.png", "path-over-time.png"}
    status, _, errors = command("simulate", "drawn.py:scenario", "--set", "link=flat", "--out", "there")
    assert status == 2
    assert "links['rod'](q, t) must return points" in errors
    assert not (tmp_path / "there").exists()


def test_kinetic_energy_and_power_in_closed_form():
    # A particle led along a line at x = t^2 / 2: v = t, so m t^2 / 2 and, as the force is m, the power m t.
    led = ukjax.Mechanism(
        ukjax.System(lambda q, t: 3.0 * jnp.eye(1), lambda q, v, t: jnp.zeros(1)),
        ukjax.Holonomic(lambda q, t: q - t**2 / 2),
    )
    scenario = ukjax.Scenario(led, [0.0], [0.0], 2.0)
    some = moved(scenario)
    t = some.t
    values = [t[:, None] ** 2 / 2, t[:, None], 3.0 * jnp.ones((11, 1))]
    exact = eqx.tree_at(lambda x: [x.q, x.v, x.constraint_force], some, values)
    upper, lower = plot.energy(scenario, exact).axes
    np.testing.assert_allclose(upper.lines[0].get_ydata(), 1.5 * t**2, atol=1e-14)
    np.testing.assert_allclose(lower.lines[0].get_ydata(), 3.0 * t, atol=1e-14)
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("kinetic energy [J]", "power of constraint forces [W]")
    _, lower = plot.energy(*simulated(pendulum)).axes
    assert [text.get_text() for text in lower.texts] == ["none, up to rounding"]


def test_what_has_no_picture():
    drawn, trajectory = simulated(pendulum)
    for make in (plot.path, plot.animation, plot.page):
        with pytest.raises(ValueError, match=r"has no drawing. Pass drawing=ukjax.Drawing\(links\)"):
            make(redrawn(drawn, None), trajectory)
        with pytest.raises(ValueError, match=r"one trajectory, not a batch, but q has shape \(1, 11, 2\)"):
            make(drawn, jax.tree_util.tree_map(lambda x: jnp.asarray(x)[None], trajectory))
    endless = redrawn(drawn, ukjax.Drawing({"rod": lambda q, t: (q / (t - t))[None]}))
    with pytest.raises(ValueError, match=r"links\['rod'\] of the drawing is not finite at t = 0 s"):
        plot.path(endless, trajectory)
    with pytest.raises(ValueError, match="positions must be at least 1, but is 0"):
        plot.path(drawn, trajectory, positions=0)
