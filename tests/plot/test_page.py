"""The page that plays a trajectory: what it holds, and what its script draws and does."""

import json
import re

import numpy as np
import pytest
from py_mini_racer import MiniRacer

from ukjax import plot

from .drawn import CASES, data_of, moved, pendulum, simulated, spherical


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_page_is_self_contained_and_holds_the_simulated_positions(make):
    scenario = make()
    trajectory = moved(scenario)
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
